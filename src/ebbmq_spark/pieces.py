"""Parquet files cut into pieces for tasks, and read as Arrow batches wherever they are.

Small files are read together by one task, large ones by several, each some of their row groups. How
many cores there are is not known where that is decided, so there is something to do for many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq import limits
from ebbmq.errors import DamagedRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ebbmq_spark.places import Files

#: What one task reads, at most about.
TASK_BYTES: Final = 32 * limits.MIB
#: Where there is less to read it is still spread over so many, unless a task had hardly anything.
_TASKS: Final = 32
_LEAST_BYTES: Final = limits.MIB
_BATCH_ROWS: Final = 65_536


class Piece(NamedTuple):
    """A file, or a share of its row groups: the `part`th of `parts`."""

    path: str
    part: int = 0
    parts: int = 1


def spread(files: Iterable[tuple[str, int]], task_bytes: int = TASK_BYTES) -> list[list[Piece]]:
    """Files by name and size, to tasks of about the same size, which is at most the one given."""
    known = list(files)
    total = sum(size for _, size in known)
    enough = min(task_bytes, max(total // _TASKS, _LEAST_BYTES))
    out: list[list[Piece]] = []
    small: list[Piece] = []
    filled = 0
    for path, size in known:
        parts = max(1, round(size / task_bytes))
        if parts > 1:
            out += [[Piece(path, part, parts)] for part in range(parts)]
            continue
        if filled + size > enough and small:
            out.append(small)
            small, filled = [], 0
        small.append(Piece(path))
        filled += size
    if small:
        out.append(small)
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
    # It takes as long to load as all else together.
    import pyarrow.dataset as pads  # type: ignore[import-untyped]  # noqa: PLC0415

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
