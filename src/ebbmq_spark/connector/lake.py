"""Tables of a lake: the files that manifests name, read as Arrow batches in the tasks.

See `pieces` for which task reads what.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from ebbmq.feed import layout, manifests
from ebbmq.feed.claims import is_lake, no_lake
from ebbmq.feed.manifests import TABLES, UnknownFeed
from ebbmq_spark import pieces, places
from ebbmq_spark.connector import columns, filters
from ebbmq_spark.pieces import TASK_BYTES
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from ebbmq.feed.manifests import Part
    from ebbmq_spark.pieces import Piece
    from ebbmq_spark.places import Files, Listed, Place

#: Manifests that are asked for at once: it is mostly waiting.
_AT_ONCE: Final = 16


@dataclass
class Pieces(InputPartition):
    """What one task reads."""

    pieces: list[Piece]


def spread(files: Iterable[tuple[str, int]], task_bytes: int = TASK_BYTES) -> list[InputPartition]:
    """Files by name and size, to tasks of about the same size."""
    return [Pieces(some) for some in pieces.spread(files, task_bytes)]


class LakeReader(DataSourceReader):
    """Reads one table of a lake."""

    def __init__(self, place: Place, table: str, schema: StructType) -> None:
        self._place = place
        self._table = TABLES[table]
        self._schema = columns.checked(schema, schema_of(self._table))
        self._condition: Any = None

    @override
    def partitions(self) -> list[InputPartition]:
        """The files that manifests name.

        Raises:
            UnknownFeed: a manifest or a file is not one this version can read.
        """
        found = visible(places.open_place(self._place), self._table.name)
        return spread((each.path, each.size) for each in found)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files."""
        if not isinstance(partition, Pieces):  # Spark's own, for a table without files
            return
        files, schema = places.open_place(self._place), columns.arrow_of(self._schema)
        for piece in partition.pieces:
            yield from pieces.batches(files, piece, schema, self._condition)


class PushedLakeReader(LakeReader):
    """The same, where the session lets filters be pushed down."""

    @override
    def pushFilters(self, filters_offered: list[Filter]) -> Iterable[Filter]:
        """Take what Arrow can decide; the others are Spark's."""
        taken: list[Any] = []
        for each in filters_offered:
            condition = filters.condition_of(each, self._schema.names)
            if condition is None:
                yield each
            else:
                taken.append(condition)
        self._condition = filters.all_of(taken)


def visible(files: Files, table: str, tries: int = 3) -> Sequence[Listed]:
    """The files of a table that are complete, by their manifests.

    A node takes away a manifest and then its files; what it takes away while they are looked for
    is looked for once more, and then not missed.

    Raises:
        UnknownFeed: there is no lake, a manifest cannot be read, or a file it names is not as it
            says.
        Gone: so often in a row was something taken away meanwhile.
    """
    if not is_lake(files.list):
        raise no_lake(files.where)
    try:
        return _visible(files, table)
    except (UnknownFeed, places.Gone):
        if tries == 1:
            raise
        return visible(files, table, tries - 1)


def _visible(files: Files, table: str) -> Sequence[Listed]:
    found = {each.path: each for each in files.list(table)}
    prefix = f"{table}/{layout.MANIFESTS}/"
    names = [path for path in found if path.startswith(prefix) and path.endswith(".json")]
    out: list[Listed] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for path, stored in zip(names, pool.map(files.read, names), strict=True):
            for part in manifests.decode(stored, path).parts:
                out.append(_checked(part, found.get(part.path), path))
    return out


def _checked(part: Part, found: Listed | None, manifest: str) -> Listed:
    """The file that a manifest names, if it is as that says."""
    if found is None or found.size != part.bytes:
        state = "is missing" if found is None else "is not of the size"
        raise UnknownFeed(
            f"{part.path}, which {manifest} names, {state} it should have",
            "restore it, or remove that manifest to go on without its rows",
        )
    return found
