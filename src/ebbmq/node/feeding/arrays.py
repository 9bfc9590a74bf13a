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
_CALLED: Final = {
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
#: Columns by which whole groups of rows are passed over; to know the others' range costs time.
_SOUGHT: Final = ("seq", "at_ms", "queue", "event", "review_at_ms")
#: After every instant: where those stand that are never looked at.
_NEVER_MS: Final = 2**63 - 1
#: Rows of a group: a reader that wants few of them does not read all.
_GROUP_ROWS: Final = 128 * 1024
#: The first group of a file of which most readers want the first few rows.
_FIRST_GROUP_ROWS: Final = 4 * 1024


def events_table(told: Sequence[Expanded], texts: Texts, node: str, boot: int) -> pa.Table:
    """Events as the table they are in the lake; texts that repeat are codes and their meaning."""
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
        "partition": plain(known["partition"].astype(np.int32)),
        "message_id": message_ids(known["pid"], known["seq"]),
        "generation": plain(known["generation"].astype(np.int32)),
        "event": coded(known["event"], words),
    }
    for name, absent in ABSENT.items():
        column, values = _CALLED.get(name, name), known.get(name)
        kind = _EVENTS.field(column).type
        if values is None:
            columns[column] = _nothing(kind, count, words)
            continue
        mask = None if name in told.whole else _lacking(values, absent)
        if kind == pa.string():
            columns[column] = coded(values, words, mask)
        else:
            columns[column] = plain(values.astype(kind.to_pandas_dtype(), copy=False), mask)
    return table_of(columns, _EVENTS)


def _lacking(values: npt.NDArray[Any], absent: float) -> npt.NDArray[np.bool_] | None:
    """Where nothing is; None where nothing is lacking."""
    lacking: npt.NDArray[np.bool_] = np.isnan(values) if math.isnan(absent) else values == absent
    return lacking if lacking.any() else None


def _nothing(kind: pa.DataType, count: int, words: pa.Array) -> pa.Array:
    if kind == pa.string():
        return pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), words)
    return pa.nulls(count, kind)


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
    return pa.array(np.ascontiguousarray(values), mask=absent)


def coded(
    codes: npt.NDArray[Any], words: pa.Array, absent: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Texts by their codes, some of them absent."""
    codes = np.ascontiguousarray(codes, dtype=np.int32)
    # Every code has a text: they need not be looked at once more.
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=absent), words, safe=False)


def message_ids(pids: npt.NDArray[np.int64], seqs: npt.NDArray[np.int64]) -> pa.Array:
    """Ids of messages as publishers are told them; empty for partition 0, which there is not."""
    count = len(pids)
    ends, text = np.empty(count + 1, dtype=np.int32), bytearray(count * ID_BYTES)
    used = spell_ids(pids, seqs, ends, text)
    del text[used:]
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(text))


def encode(table: pa.Table, *, is_by_review: bool = False) -> pa.Buffer:
    """A table as the bytes of a Parquet file.

    Readers pass over whole groups of rows. In the order of `by_review`, groups are small at first,
    each twice as large as the one before: who wants one row in a hundred reads two, not half.
    """
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in table.column_names if name not in _DELTAS],
        column_encoding={name: _DELTAS[name] for name in _DELTAS if name in table.column_names},
        write_statistics=[name for name in _SOUGHT if name in table.column_names],
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
