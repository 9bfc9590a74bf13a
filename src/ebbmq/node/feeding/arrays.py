"""Records as Arrow tables, and tables as Parquet; needs pyarrow, which only a feed loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ebbmq.node.feeding.expanding import Records, Texts

    #: By partition: its queue, and which partition of it.
    Places = Mapping[int, tuple[str, int]]

_DIGITS: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_EVENTS: Final = schema_of(EVENTS)
#: Columns of which all values differ gain nothing from a dictionary.
_PLAIN: Final = ("message_id", "seq", "at_ms")
#: Rows of a group: a reader that wants few of them does not read all.
_GROUP_ROWS: Final = 128 * 1024


def events_table(records: Records, texts: Texts, places: Places, node: str, boot: int) -> pa.Table:
    """Events as the table they are in the lake."""
    count, words = len(records), pa.array(texts.all(), pa.string())
    queues, partitions = _places(records["pid"], places)
    columns = {
        "node": pa.repeat(pa.scalar(node), count),
        "boot": pa.repeat(pa.scalar(boot, pa.int64()), count),
        "seq": _plain(records["number"]),
        "at_ms": _plain(records["at_ms"]),
        "queue": queues,
        "partition": partitions,
        "message_id": message_ids(records["pid"], records["seq"]),
        "generation": _plain(records["generation"]),
        "decay_rate": _plain(records["rate"], np.isnan(records["rate"])),
        "decay_score": _plain(records["score"], np.isnan(records["score"])),
    }
    for name in ("event", "reason", "consumer", "device"):
        columns[name] = _texts(records[name], words)
    for name in ("bytes", "failures", "latency_ms"):
        columns[name] = _plain(records[name], records[name] < 0)
    for name in ("importance", "ttl_ms", "delay_ms", "enqueued_at_ms"):
        columns[name] = _plain(records[name], records[name] == 0)
    return pa.table([columns[name] for name in _EVENTS.names], schema=_EVENTS)


def _plain(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=absent)


def _texts(codes: npt.NDArray[np.uint32], words: pa.Array) -> pa.Array:
    return words.take(pa.array(np.ascontiguousarray(codes)))


def _places(pids: npt.NDArray[np.uint32], places: Places) -> tuple[pa.Array, pa.Array]:
    """The queue and the number in it of each partition; what is about no message has neither."""
    known, which = np.unique(pids, return_inverse=True)
    found = [places.get(int(pid), ("", -1)) for pid in known]
    at = pa.array(which)
    return (
        pa.array([name for name, _ in found], pa.string()).take(at),
        pa.array([number for _, number in found], pa.int32()).take(at),
    )


def message_ids(pids: npt.NDArray[np.uint32], seqs: npt.NDArray[np.uint64]) -> pa.Array:
    """Ids of messages as publishers are told them; empty for partition 0, which there is not."""
    known, which = np.unique(pids, return_inverse=True)
    heads = pa.array([f"{pid:x}-" if pid else "" for pid in known.tolist()], pa.string())
    ids = pc.binary_join_element_wise(heads.take(pa.array(which)), hexadecimal(seqs), "")
    return pc.if_else(pa.array(pids == 0), "", ids) if known[0] == 0 else ids


def hexadecimal(values: npt.NDArray[np.uint64]) -> pa.Array:
    """Numbers as `format(number, "x")` has them."""
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 4))
    shifts = np.arange(4 * (width - 1), -1, -4, dtype=np.uint64)
    digits = _DIGITS[(values[:, None] >> shifts) & np.uint64(15)]
    lengths = np.ones(len(values), dtype=np.int32)
    for power in range(1, width):
        lengths += values >= np.uint64(16**power)
    shown = np.arange(width) >= (width - lengths)[:, None]
    ends = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(digits[shown])]
    return pa.StringArray.from_buffers(len(values), *buffers[1:])


def encode(table: pa.Table) -> pa.Buffer:
    """A table as the bytes of a Parquet file."""
    out = pa.BufferOutputStream()
    pq.write_table(
        table,
        out,
        compression="zstd",
        compression_level=1,
        row_group_size=_GROUP_ROWS,
        use_dictionary=[name for name in table.column_names if name not in _PLAIN],
    )
    return out.getvalue()


def where(table: pa.Table, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    """Some rows of a table."""
    return table if chosen.all() else table.filter(pa.array(chosen))
