"""Reading a lake: the files that manifests name, all of a known version, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ebbmq.feed import layout, manifests
from ebbmq.feed.manifests import UnknownFeed
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Manifest
    from ebbmq.feed.table import Table


class Visible(NamedTuple):
    """What is to be read of a table, and what cannot be."""

    manifests: list[Manifest]
    files: list[str]
    #: Why a manifest was left out; the others are read all the same.
    refused: list[UnknownFeed]
    #: The names of those, in the same order.
    refused_names: list[str]


def visible(root: Path, table: Table) -> Visible:
    """The files of a table that are complete, by their manifests, in the order of these.

    Raises:
        UnknownFeed: there is no such directory.
    """
    if not root.is_dir():
        raise UnknownFeed(f"there is no lake at {root}", "name the directory that nodes write to")
    found = Visible([], [], [], [])
    for path in sorted((root / table.name / layout.MANIFESTS).rglob("*.json")):
        try:
            manifest = manifests.decode(path.read_bytes(), str(path.relative_to(root)))
            files = [_checked(root, part, path) for part in manifest.parts]
        except UnknownFeed as error:
            found.refused.append(error)
            found.refused_names.append(str(path.relative_to(root)))
            continue
        found.manifests.append(manifest)
        found.files.extend(files)
    return found


def _checked(root: Path, part: manifests.Part, manifest: Path) -> str:
    """The path of a part, if it is inside the lake and of the size its manifest says."""
    path = (root / part.path).resolve()
    if not path.is_relative_to(root.resolve()):
        raise UnknownFeed(
            f"{manifest.name} names {part.path}, which is outside of the lake",
            "remove that manifest: no node wrote it",
        )
    size = path.stat().st_size if path.is_file() else -1
    if size != part.bytes:
        state = "is missing" if size < 0 else f"has {size} bytes instead of {part.bytes}"
        raise UnknownFeed(
            f"{part.path} {state}",
            "restore it, or remove its manifest to go on without its rows",
        )
    return str(path)


def read_table(spark: SparkSession, table: Table, files: list[str]) -> DataFrame:
    """Rows of a table; a column that an older file lacks is empty."""
    schema = schema_of(table)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)
