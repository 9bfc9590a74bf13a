"""Tables of a lake read by Spark itself, where no row goes through Python.

Who needs the same rows in each of several queries asks here instead of by `format("ebbmq")`, which
looks anew for each of them: the same files, the same checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.errors import InvalidSpec
from ebbmq.feed.manifests import TABLES
from ebbmq_spark import places
from ebbmq_spark.connector import lake, signed
from ebbmq_spark.connector.files import NamedFile
from ebbmq_spark.lake import open_lake, opened, read_table, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Table
    from ebbmq_spark.places import Place


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
    for name in columns or ():
        if name not in known.names:
            raise InvalidSpec(
                f"columns name {name!r:.80}", f"use columns of {', '.join(known.names)}"
            )
    where = open_lake(path, options)
    found = visible(where, known)
    if found.refused:
        raise found.refused[0]
    return read_table(spark, known, found.files, where, columns)


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
