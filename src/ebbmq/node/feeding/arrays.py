"""Records as Arrow tables, and tables as Parquet; needs pyarrow, which only a feed loads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.node.feeding.expanding import ABSENT
from ebbmq.node.feeding.unpacking import ID_BYTES, spell_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ebbmq.node.feeding.expanding import Expanded, Texts

_EVENTS: Final = schema_of(EVENTS)
#: Columns that have a longer name in the lake.
CALLED: Final = {
    "rate": "decay_rate",
    "score": "decay_score",
    "given_rate": "given_decay_rate",
}
#: Columns of which each value is near the one before it.
_DELTAS: Final = {
    "seq": "DELTA_BINARY_PACKED",
    "at_ms": "DELTA_BINARY_PACKED",
    "enqueued_at_ms": "DELTA_BINARY_PACKED",
    "message_id": "DELTA_BYTE_ARRAY",
}
#: Columns by whose range groups of rows are passed over; to know the others' costs time. Texts of
#: events are looked for among those that a group has, as these are codes.
_SOUGHT: Final = ("seq", "at_ms", "review_at_ms")
_SOUGHT_BY_REVIEW: Final = (*_SOUGHT, "queue")
#: After every instant: where those stand that are never looked at.
_NEVER_MS: Final = 2**63 - 1
#: Rows of a group: a reader that wants few of them does not read all.
_GROUP_ROWS: Final = 128 * 1024
#: The first group of a file of which most readers want the first few rows.
_FIRST_GROUP_ROWS: Final = 4 * 1024


def events_table(told: Sequence[Expanded], texts: Texts, node: str, boot: int) -> pa.Table:
    """Events as the table they are in the lake; texts that repeat are codes and their meaning.

    A column that no event has a value of is there as well: who reads many files takes them to have
    the same columns.
    """
    words = pa.array([*texts.all(), node], pa.string())
    return pa.concat_tables([_events(each, words, boot) for each in told])


def _events(told: Expanded, words: pa.Array, boot: int) -> pa.Table:
    """Some events; the last of the words is their node."""
    known, count = told.columns, len(told.columns["number"])
    columns = {
        "node": coded(np.full(count, len(words) - 1, dtype=np.int32), words),
        "boot": pa.repeat(pa.scalar(boot, pa.int64()), count),
        "seq": plain(known["number"]),
        "at_ms": plain(known["at_ms"]),
        "queue": coded(known["queue"], words),
        "partition": plain(known["partition"].astype(np.int32, copy=False)),
        "message_id": message_ids(known["pid"], known["seq"]),
        "generation": plain(known["generation"].astype(np.int32, copy=False)),
        "event": coded(known["event"], words),
    }
    for name in ABSENT:
        column = CALLED.get(name, name)
        columns[column] = _optional(told, name, _EVENTS.field(column).type, words)
    return table_of(columns, _EVENTS)


def _optional(told: Expanded, name: str, kind: pa.DataType, words: pa.Array) -> pa.Array:
    """A column that some events may have no value of."""
    values, is_text = told.columns.get(name), kind == pa.string()
    if values is None:
        codes = pa.nulls(len(told.columns["number"]), pa.int32() if is_text else kind)
        return pa.DictionaryArray.from_arrays(codes, words) if is_text else codes
    stored = np.int32 if is_text else kind.to_pandas_dtype()
    values = values.astype(stored, copy=False)
    if name in told.whole:
        numbers = plain(values)
    elif name in told.present:
        numbers = _numbers(values, told.present[name])
    else:
        numbers = plain(values, _lacking(values, ABSENT[name]))
    # Every code has a text: they need not be looked at once more.
    return pa.DictionaryArray.from_arrays(numbers, words, safe=False) if is_text else numbers


def _lacking(values: npt.NDArray[Any], absent: float) -> npt.NDArray[np.bool_] | None:
    """Where nothing is; None where nothing is lacking."""
    lacking: npt.NDArray[np.bool_] = np.isnan(values) if math.isnan(absent) else values == absent
    return lacking if lacking.any() else None


def table_of(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """Columns as a table; where one has codes, so has the table."""
    fields = [
        field.with_type(columns[field.name].type)
        if pa.types.is_dictionary(columns[field.name].type)
        else field
        for field in schema
    ]
    whole = pa.schema(fields, metadata=schema.metadata)
    return pa.table([columns[name] for name in schema.names], schema=whole)


def plain(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers, some of them absent."""
    values = np.ascontiguousarray(values)
    if absent is not None or values.dtype == np.bool_:
        return pa.array(values, mask=absent)
    return _numbers(values)


def _numbers(values: npt.NDArray[Any], present: npt.NDArray[np.uint8] | None = None) -> pa.Array:
    """Numbers as they stand in memory, and which of them count.

    Nothing is copied. `pa.array` would let the interpreter go and ask for it again, for each.
    """
    known = None if present is None else pa.py_buffer(present)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(values)])


def coded(
    codes: npt.NDArray[Any], words: pa.Array, absent: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Texts by their codes, some of them absent."""
    codes = codes.astype(np.int32, copy=False)
    # Every code has a text: they need not be looked at once more.
    return pa.DictionaryArray.from_arrays(plain(codes, absent), words, safe=False)


def message_ids(pids: npt.NDArray[np.int64], seqs: npt.NDArray[np.int64]) -> pa.Array:
    """Ids of messages as publishers are told them; empty for partition 0, which there is not."""
    count = len(pids)
    ends, text = np.empty(count + 1, dtype=np.int32), np.empty(count * ID_BYTES, dtype=np.uint8)
    used = spell_ids(pids, seqs, ends, text)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(text[:used]))


def encode(table: pa.Table, *, is_by_review: bool = False) -> pa.Buffer:
    """A table as the bytes of a Parquet file.

    Readers pass over whole groups of rows. In the order of `by_review`, groups are small at first,
    each twice as large as the one before: who wants one row in a hundred reads two, not half.
    """
    out, sought = pa.BufferOutputStream(), _SOUGHT_BY_REVIEW if is_by_review else _SOUGHT
    with pq.ParquetWriter(
        out,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in table.column_names if name not in _DELTAS],
        column_encoding={name: _DELTAS[name] for name in _DELTAS if name in table.column_names},
        write_statistics=[name for name in sought if name in table.column_names],
        # What is a code here is a text to whoever reads it.
        store_schema=False,
        # So that readers pass over pages of a group, too.
        write_page_index=True,
    ) as writer:
        at, rows = 0, _FIRST_GROUP_ROWS if is_by_review else _GROUP_ROWS
        while not at or at < len(table):
            writer.write_table(table.slice(at, rows), row_group_size=rows)
            at, rows = at + rows, min(2 * rows, _GROUP_ROWS)
        writer.add_key_value_metadata(table.schema.metadata)
    return out.getvalue()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of several."""
    return pa.concat_tables(tables).unify_dictionaries()


def by_review(table: pa.Table) -> pa.Table:
    """Messages in the order in which they are to be looked at: most readers want the first few."""
    instants = table.column("review_at_ms").fill_null(_NEVER_MS).to_numpy()
    # Most of them are in order already, because ages are.
    if (instants[1:] >= instants[:-1]).all():
        return table
    return table.take(pc.sort_indices(table, [("review_at_ms", "ascending")]))
