"""Tables of a lake: the files that manifests name, read as Arrow batches in the tasks.

Small files are read together by one task, large ones by several, each some of their row groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.dataset as pads  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq.feed import layout, manifests
from ebbmq.feed.manifests import TABLES, UnknownFeed
from ebbmq_spark.connector import columns, filters, places
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from ebbmq_spark.connector.options import Place
    from ebbmq_spark.connector.places import Files

#: What one task reads, about.
TASK_BYTES: Final = 32 * limits.MIB
_BATCH_ROWS: Final = 65_536


class Piece(NamedTuple):
    """A file, or a share of its row groups: the `part`th of `parts`."""

    path: str
    part: int = 0
    parts: int = 1


@dataclass
class Pieces(InputPartition):
    """What one task reads."""

    pieces: list[Piece]


def spread(files: Iterable[tuple[str, int]], task_bytes: int = TASK_BYTES) -> list[InputPartition]:
    """Files by name and size, to tasks of about the same size."""
    out: list[InputPartition] = []
    small: list[Piece] = []
    filled = 0
    for path, size in files:
        parts = max(1, round(size / task_bytes))
        if parts > 1:
            out += [Pieces([Piece(path, part, parts)]) for part in range(parts)]
            continue
        if filled + size > task_bytes and small:
            out.append(Pieces(small))
            small, filled = [], 0
        small.append(Piece(path))
        filled += size
    if small:
        out.append(Pieces(small))
    return out


def batches(
    files: Files, piece: Piece, schema: pa.Schema, condition: Any = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece in the columns of a schema; one that a file lacks is empty.

    Raises:
        DamagedRecord: the file cannot be read.
    """
    try:
        with files.open(piece.path) as opened:
            file = pq.ParquetFile(opened)
            groups = range(piece.part, file.num_row_groups, piece.parts)
            there = set(file.schema_arrow.names)
            names = [name for name in schema.names if name in there]
            if condition is None:
                found = file.iter_batches(_BATCH_ROWS, list(groups), names, use_threads=False)
            else:
                found = _chosen(opened, file, groups, schema, condition)
            for batch in found:
                yield _shaped(batch, schema)
    except (pa.ArrowException, OSError) as error:
        raise DamagedRecord(
            f"{piece.path} in {files.where} cannot be read: {error}",
            "restore it, or remove what names it to go on without its rows",
        ) from error


def _chosen(
    opened: pa.NativeFile, file: pq.ParquetFile, groups: range, schema: pa.Schema, condition: Any
) -> Iterator[pa.RecordBatch]:
    """Rows that meet a condition, which row groups that cannot hold any are not read for."""
    fragment = pads.ParquetFileFormat().make_fragment(opened, row_groups=list(groups))
    scanner = fragment.scanner(
        # A column the file lacks is known to the condition as one that is empty.
        schema=pa.unify_schemas([file.schema_arrow.remove_metadata(), _lacking(file, schema)]),
        columns=schema.names,
        filter=condition,
        batch_size=_BATCH_ROWS,
        use_threads=False,
    )
    yield from scanner.to_batches()


def _lacking(file: pq.ParquetFile, schema: pa.Schema) -> pa.Schema:
    there = set(file.schema_arrow.names)
    return pa.schema([field for field in schema if field.name not in there])


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        array = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
        return spread(visible(places.open_place(self._place), self._table.name))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files."""
        if not isinstance(partition, Pieces):  # Spark's own, for a table without files
            return
        files, schema = places.open_place(self._place), columns.arrow_of(self._schema)
        for piece in partition.pieces:
            yield from batches(files, piece, schema, self._condition)


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


def visible(files: Files, table: str) -> Sequence[tuple[str, int]]:
    """Name and size of the files of a table that are complete, by their manifests.

    Raises:
        UnknownFeed: a manifest cannot be read, or a file it names is not as it says.
    """
    sizes = dict(files.list(table))
    prefix = f"{table}/{layout.MANIFESTS}/"
    out: list[tuple[str, int]] = []
    for path in sizes:
        if not path.startswith(prefix) or not path.endswith(".json"):
            continue
        for part in manifests.decode(files.read(path), path).parts:
            if sizes.get(part.path) != part.bytes:
                state = "is missing" if part.path not in sizes else "is not of the size"
                raise UnknownFeed(
                    f"{part.path}, which {path} names, {state} it should have",
                    "restore it, or remove that manifest to go on without its rows",
                )
            out.append((part.path, part.bytes))
    return out
