"""Records as Arrow tables, and tables as Parquet; needs pyarrow, which only a feed loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.node.feeding.expanding import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ebbmq.node.feeding.expanding import Columns, Texts

    #: By partition: its queue, and which partition of it.
    Places = Mapping[int, tuple[str, int]]
    Codes = npt.NDArray[np.int32]

#: Every 16 bits as four hexadecimal digits.
_FOURS: Final = np.frombuffer("".join(f"{each:04x}" for each in range(65_536)).encode(), np.uint32)
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
#: Rows of a group: a reader that wants few of them does not read all.
_GROUP_ROWS: Final = 128 * 1024
#: The first group of a file of which most readers want the first few rows.
_FIRST_GROUP_ROWS: Final = 4 * 1024


def events_table(
    pieces: Sequence[Columns], texts: Texts, places: Places, node: str, boot: int
) -> pa.Table:
    """Events as the table they are in the lake; texts that repeat are codes and their meaning."""
    queues = [places_of(columns["pid"], places, texts) for columns in pieces]
    own = texts.code(node)
    words = pa.array(texts.all(), pa.string())
    return pa.concat_tables(
        _events(columns, words, known, (own, boot))
        for columns, known in zip(pieces, queues, strict=True)
    )


def _events(
    told: Columns, words: pa.Array, queues: tuple[Codes, pa.Array], told_by: tuple[int, int]
) -> pa.Table:
    count, (node, boot) = len(told["number"]), told_by
    columns = {
        "node": coded(np.full(count, node, dtype=np.int32), words),
        "boot": pa.repeat(pa.scalar(boot, pa.int64()), count),
        "seq": plain(told["number"]),
        "at_ms": plain(told["at_ms"]),
        "queue": coded(queues[0], words),
        "partition": queues[1],
        "message_id": message_ids(told["pid"], told["seq"]),
        "generation": plain(told["generation"].astype(np.int32)),
        "event": coded(told["event"], words),
    }
    for name, absent in ABSENT.items():
        column, values = _CALLED.get(name, name), told.get(name)
        kind = _EVENTS.field(column).type
        if values is None:
            columns[column] = _nothing(kind, count, words)
            continue
        lacking = np.isnan(values) if absent != absent else values == absent  # noqa: PLR0124
        mask = lacking if lacking.any() else None
        if kind == pa.string():
            columns[column] = coded(values, words, mask)
        else:
            columns[column] = plain(values.astype(kind.to_pandas_dtype(), copy=False), mask)
    return table_of(columns, _EVENTS)


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
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=absent), words)


def places_of(pids: npt.NDArray[Any], places: Places, texts: Texts) -> tuple[Codes, pa.Array]:
    """The queue and the number in it of each partition; what is about no message has neither."""
    known, which = _distinct(pids)
    found = [places.get(int(pid), ("", -1)) for pid in known]
    numbers = np.array([number for _, number in found], dtype=np.int32)
    queues = np.array([texts.code(name) for name, _ in found], dtype=np.int32)
    return queues[which], plain(numbers[which])


def _distinct(pids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if (pids == pids[0]).all():
        return pids[:1], np.zeros(len(pids), dtype=np.int32)
    return np.unique(pids, return_inverse=True)


def message_ids(pids: npt.NDArray[Any], seqs: npt.NDArray[np.uint64]) -> pa.Array:
    """Ids of messages as publishers are told them; empty for partition 0, which there is not."""
    known, which = _distinct(pids)
    if len(known) == 1 and known[0]:
        return hexadecimal(seqs, f"{known[0]:x}-".encode())
    heads = pa.array([f"{pid:x}-" if pid else "" for pid in known.tolist()], pa.string())
    ids = pc.binary_join_element_wise(heads.take(pa.array(which)), hexadecimal(seqs), "")
    return pc.if_else(pa.array(pids == 0), "", ids) if known[0] == 0 else ids


def hexadecimal(values: npt.NDArray[np.uint64], head: bytes = b"") -> pa.Array:
    """Numbers as `format(number, "x")` has them, after a head."""
    count, before = len(values), len(head)
    fewest, most = _digits_of(int(values.min(initial=0))), _digits_of(int(values.max(initial=0)))
    fours = -(-most // 4)
    packed = np.empty((count, fours), dtype=np.uint32)
    for at in range(fours):
        packed[:, fours - 1 - at] = _FOURS[(values >> np.uint64(16 * at)) & np.uint64(0xFFFF)]
    shown = np.empty((count, before + most), dtype=np.uint8)
    shown[:, :before] = np.frombuffer(head, dtype=np.uint8)
    shown[:, before:] = packed.view(np.uint8)[:, 4 * fours - most :]
    ends = np.arange(0, (count + 1) * (before + most), before + most, dtype=np.int32)
    if fewest < most:
        lengths = np.full(count, before + fewest, dtype=np.int32)
        for digits in range(fewest, most):
            lengths += values >= np.uint64(16**digits)
        at_all = np.arange(before + most)
        shown = shown[(at_all < before) | (at_all >= 2 * before + most - lengths[:, None])]
        np.cumsum(lengths, out=ends[1:])
    data = pa.py_buffer(np.ascontiguousarray(shown))
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), data)


def _digits_of(value: int) -> int:
    return max(1, -(-value.bit_length() // 4))


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
    # Most of them are in order already, because ages are.
    order = pc.sort_indices(table, [("review_at_ms", "ascending")])
    return table.take(order)


def where(table: pa.Table, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    """Some rows of a table."""
    return table if chosen.all() else table.filter(pa.array(chosen))
