"""Tables of a lake and archives read by Spark itself, where no row goes through Python.

Who needs the same rows in each of several queries asks here instead of by `format("ebbmq")`, which
looks anew for each of them: the same files, the same checks. It is made of Spark's public verbs, so
that it is as fast over Spark Connect, where `format("ebbmq")` is not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from ebbmq.errors import InvalidSpec
from ebbmq.feed import layout
from ebbmq.feed.manifests import TABLES
from ebbmq_spark import places
from ebbmq_spark.connector import lake, signed
from ebbmq_spark.connector.columns import ARCHIVED
from ebbmq_spark.connector.files import NamedFile
from ebbmq_spark.lake import for_spark, open_lake, opened, read_table, visible
from ebbmq_spark.places import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Table


_TOLD: Final = ("store", "queue", "pack")
#: In the path of packs whose messages have no queue; Spark takes it for null.
_NO_QUEUE: Final = "__HIVE_DEFAULT_PARTITION__"
#: Where the number is in the name of a pack, and how many digits it has.
_NUMBER: Final = (len("pack-") + 1, 10)


def read_lake(
    spark: SparkSession,
    path: str | Path,
    table: str,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of a table in the files that are complete as of now.

    A directory is read by Spark's own Parquet reader, filters and columns included; an object store
    by Python.

    Args:
        spark: where to run.
        path: a directory, or the URL of an object store.
        table: such as `events`.
        columns: those that are needed; all unless given.
        options: of the store, as obstore names them.

    Raises:
        InvalidSpec: there is no such table or column.
        UnknownFeed: there is no lake, or a manifest or a file is not one this version can read.
    """
    known = TABLES.get(table)
    if known is None:
        raise InvalidSpec(f"table is {table!r:.80}", f"use one of {', '.join(TABLES)}")
    _check(columns, known.names)
    where = open_lake(path, options)
    found = visible(where, known)
    if found.refused:
        raise found.refused[0]
    return read_table(spark, known, found.files, where, columns)


def read_archive(
    spark: SparkSession,
    path: str | Path,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The messages of an archive in the packs that are there as of now, without the dead ones.

    A directory is read by Spark's own Parquet reader, filters and columns included; an object store
    by `format("ebbmq")`, which looks anew for each query, and so is an archive of which more is
    dead than can be told.

    Args:
        spark: where to run.
        path: a directory, or the URL of an object store.
        columns: those that are needed; all unless given.
        options: of the store, as obstore names them.

    Raises:
        InvalidSpec: there is no such column.
        UnknownFeed: there is no such directory.
        DamagedRecord: a pack is cut off, or dead marks cannot be read.
    """
    # Who reads a lake does without.
    from ebbmq_spark.connector import bits, packs  # noqa: PLC0415

    _check(columns, ARCHIVED.names)
    names = list(columns or ARCHIVED.names)
    place = Place(str(path), dict(options or {}))
    root = places.directory_of(place)
    found = None if root is None else packs.files_of(place, _TOLD)
    if root is None or found is None:
        return _by_format(spark, place, names)
    whole = [each for each in found if each.dead is None]
    thinned = [each for each in found if each.dead is not None]
    dead = bits.bits_of(thinned)
    if dead is None:
        return _by_format(spark, place, names)
    frames = []
    if whole or not thinned:
        frames.append(_messages(spark, root, whole))
    if thinned:
        frames.append(dead.alive(spark, _messages(spark, root, thinned)))
    chosen = [each.select(*names) for each in frames]
    return functools.reduce(lambda one, other: one.union(other), chosen)


def _check(columns: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in columns or ():
        if name not in known:
            raise InvalidSpec(f"columns name {name!r:.80}", f"use columns of {', '.join(known)}")


def _by_format(spark: SparkSession, place: Place, names: Sequence[str]) -> DataFrame:
    from ebbmq_spark.connector import source  # noqa: PLC0415  # it comes after this one

    source.register(spark)
    told = {f"store.{name}": value for name, value in place.store.items()}
    asked = spark.read.format(source.NAME).options(table="archive", columns=",".join(names), **told)
    return asked.load(place.address)


def _messages(spark: SparkSession, root: Path, packs: Sequence[NamedFile]) -> DataFrame:
    """Every row of some packs, dead ones, too."""
    if not packs:
        return spark.createDataFrame([], ARCHIVED)
    inside = T.StructType([field for field in ARCHIVED if field.name != "pack"])
    read = spark.read.schema(inside).option("basePath", f"file://{root.resolve() / layout.ARCHIVE}")
    frame = read.parquet(*(for_spark(each.path) for each in packs))
    queue = F.col("queue")
    if not all(str(each.told["queue"]).isascii() for each in packs):
        # Spark takes each byte of a name for a letter.
        queue = F.decode(F.encode(queue, "ISO-8859-1"), "UTF-8")
    assert all(int(each.told["pack"]) < 10 ** _NUMBER[1] for each in packs)
    told = {
        "store": F.col("store"),
        "queue": F.coalesce(queue, F.lit(_NO_QUEUE)),
        "pack": F.substring("_metadata.file_name", *_NUMBER).cast("bigint"),
    }
    return frame.withColumns(told)


def files_of(root: Path, table: Table) -> list[NamedFile]:
    """The files of a table in a directory that are complete as of now.

    Raises:
        UnknownFeed: there is no lake, or a manifest or a file is not one this version can read.
    """
    directory = opened(root)
    found = visible(directory, table)
    if found.refused:
        raise found.refused[0]
    parts = [part for each in found.manifests for part in each.parts]
    return [NamedFile(directory.file(part.path), part.bytes) for part in parts]


def objects_of(place: Place, table: Table) -> list[NamedFile] | None:
    """The same of a table in an object store; None if nobody else can be let read it.

    Raises:
        EbbError: there is no such store, or a manifest or a file is not one this version can read.
    """
    files = places.open_place(place)
    found = lake.visible(files, table.name)
    told = signed.addresses(place, files, [each.path for each in found])
    if told is None:
        return None
    return [
        NamedFile(at.path, each.size, url=at.url, tag=each.tag)
        for each, at in zip(found, told, strict=True)
    ]
