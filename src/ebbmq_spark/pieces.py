"""Parquet files cut into pieces for tasks, and read as Arrow batches wherever they are.

Small files are read together by one task, large ones by several, each some of their row groups. How
many cores there are is not known where that is decided, so there is something to do for many.

What the footer of a file says of a column is believed: one that is empty throughout, or one text
throughout, as most columns of a node's events are, is not decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq_spark.places import gone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ebbmq_spark.places import Files

#: What one task reads, at most about.
TASK_BYTES: Final = 32 * limits.MIB
#: Where there is less to read it is still spread over so many, unless a task had hardly anything.
_TASKS: Final = 32
_LEAST_BYTES: Final = limits.MIB
#: More do not fit the caches of a core while Java makes rows of them.
_BATCH_ROWS: Final = 16_384
#: Rows with bodies are large: a batch is in memory here and, once more, in Java.
_BATCH_BYTES: Final = 8 * limits.MIB


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
        Gone: the file is there no more.
        DamagedRecord: it cannot be read.
    """
    try:
        with files.open(piece.path) as opened:
            file = pq.ParquetFile(opened)
            groups = range(piece.part, file.num_row_groups, piece.parts)
            if condition is None:
                yield from _all(file, groups, schema)
            else:
                yield from _chosen(opened, file, groups, schema, condition)
    except FileNotFoundError as error:
        raise gone(piece.path, files.where) from error
    except (pa.ArrowException, OSError) as error:
        raise DamagedRecord(
            f"{piece.path} in {files.where} cannot be read: {error}",
            "restore it, or remove what names it to go on without its rows",
        ) from error


def _all(file: pq.ParquetFile, groups: range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = _batch_rows(file.metadata, groups)
    there = set(file.schema_arrow.names)
    told = {name: pa.nulls(rows, schema.field(name).type) for name in set(schema.names) - there}
    told |= _told(file, groups, schema, rows)
    names = [name for name in schema.names if name not in told]
    for batch in file.iter_batches(rows, list(groups), names, use_threads=False):
        yield _shaped(batch, schema, told)


def _batch_rows(metadata: pq.FileMetaData, groups: range) -> int:
    """How many rows a batch has at most."""
    found = [metadata.row_group(group) for group in groups]
    rows: int = sum(group.num_rows for group in found)
    size: int = sum(group.total_byte_size for group in found)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))


def _told(file: pq.ParquetFile, groups: range, schema: pa.Schema, rows: int) -> dict[str, pa.Array]:
    """Columns of which the footer says every value, as arrays of so many rows."""
    metadata = file.metadata
    at = {metadata.schema.column(leaf).path: leaf for leaf in range(len(metadata.schema))}
    out = {}
    for field in schema:
        # A column of lists has paths of its own.
        if field.name not in at:
            continue
        found = [metadata.row_group(group).column(at[field.name]) for group in groups]
        if all(_is_empty(chunk) for chunk in found):
            out[field.name] = pa.nulls(rows, field.type)
        # Of floats the least and the greatest leave out what is no number.
        elif pa.types.is_string(field.type) and (text := _text_of(found)) is not None:
            out[field.name] = pa.repeat(pa.scalar(text, field.type), rows)
    return out


def _is_empty(chunk: pq.ColumnChunkMetaData) -> bool:
    told = chunk.statistics
    return told is not None and told.has_null_count and told.null_count == chunk.num_values


def _text_of(chunks: Sequence[pq.ColumnChunkMetaData]) -> str | None:
    """The text that is in every row, if there is one."""
    text = None
    for chunk in chunks:
        told = chunk.statistics
        if told is None or not (told.has_min_max and told.has_null_count) or told.null_count:
            return None
        least = told.min
        # Bytes without a type may be something else.
        if not isinstance(least, str) or least != told.max or text not in (None, least):
            return None
        text = least
    return text


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
    for batch in scanner.to_batches():
        yield _shaped(batch, schema, {})


def _lacking(file: pq.ParquetFile, schema: pa.Schema) -> pa.Schema:
    there = set(file.schema_arrow.names)
    return pa.schema([field for field in schema if field.name not in there])


def _shaped(
    batch: pa.RecordBatch, schema: pa.Schema, told: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        known = told.get(field.name)
        if known is not None:
            arrays.append(known.slice(0, batch.num_rows))
            continue
        array = batch.column(batch.schema.get_field_index(field.name))
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    for field, array in zip(schema, arrays, strict=True):
        # Java does not look whether a value is there where one has to be.
        if not field.nullable and array.null_count:
            raise pa.ArrowInvalid(f"column {field.name} has rows without a value")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
