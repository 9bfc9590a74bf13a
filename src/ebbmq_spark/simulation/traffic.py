"""The traffic of one queue as columns of numbers: what a simulation replays.

As rows it is the table TRACE; between the driver and the tasks that replay it, it travels as one
compressed block a queue, so that no row is ever an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq import limits
from ebbmq.errors import ClientError
from ebbmq.feed.traces import TRACE

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

#: What stands for "not said" in a column of numbers.
NONE: Final = -1
MESSAGES_MAX: Final = 20_000_000
_COLUMNS: Final = tuple(name for name in TRACE.names if name not in ("queue", "consumers"))
_FLOATS: Final = ("service_ms", "decay_rate")


class InvalidTrace(ClientError):
    """A trace holds something that no broker would have taken."""

    code = "invalid_trace"


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages of one queue in the order they were published; NONE where nothing was said."""

    queue: str
    at_ms: Ints
    importance: Ints
    ttl_ms: Ints
    decay_rate: Floats
    delay_ms: Ints
    bytes: Ints
    service_ms: Floats
    failures: Ints
    useful_ms: Ints
    consumers: int

    def __len__(self) -> int:
        return len(self.at_ms)

    def span_ms(self) -> int:
        """From the first publish to the last."""
        return int(self.at_ms[-1] - self.at_ms[0]) if len(self) else 0


def from_table(table: pa.Table) -> Traffic:
    """The traffic of a queue from its rows in order; NONE stands where nothing was said.

    Raises:
        InvalidTrace: a value is outside what a broker takes; the detail names column and value.
    """
    columns = {
        name: table.column(name).to_numpy().astype(np.float64 if name in _FLOATS else np.int64)
        for name in _COLUMNS
    }
    consumers = int(max(table.column("consumers").to_numpy().max(), 0)) if len(table) else 0
    traffic = Traffic(str(table.column("queue")[0].as_py()), **columns, consumers=consumers)
    _check(traffic)
    return traffic


def to_table(traffic: Traffic) -> pa.Table:
    """The rows of the traffic."""
    shared = {
        "queue": [traffic.queue] * len(traffic),
        "consumers": [traffic.consumers] * len(traffic),
    }
    return pa.table({name: shared.get(name, getattr(traffic, name)) for name in TRACE.names})


def pack(traffic: Traffic) -> bytes:
    """The traffic as one block of bytes."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = to_table(traffic)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack(block: bytes) -> Traffic:
    """The traffic of a block."""
    return from_table(pa.ipc.open_stream(block).read_all())


_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "importance": (limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX),
    "ttl_ms": (1, limits.DURATION_MS_MAX),
    "decay_rate": (0.0, 1.0),
    "delay_ms": (0, limits.DURATION_MS_MAX),
    "bytes": (0, limits.BODY_BYTES_MAX + limits.HEADERS_BYTES_MAX),
    "service_ms": (0.0, limits.DURATION_MS_MAX),
    "failures": (0, limits.FAILURES_MAX),
    "useful_ms": (1, limits.DURATION_MS_MAX),
}


def _check(traffic: Traffic) -> None:
    if len(traffic) > MESSAGES_MAX:
        raise InvalidTrace(
            f"queue {traffic.queue!r} has {len(traffic):,} messages in the trace, "
            f"the limit is {MESSAGES_MAX:,}",
            "simulate a shorter time",
        )
    for name, (low, high) in _BOUNDS.items():
        values = getattr(traffic, name)
        wrong = ~((values >= low) & (values <= high))
        if name not in TRACE.required:
            wrong &= values != NONE
        if wrong.any():
            raise InvalidTrace(
                f"{name} is {values[wrong][0]} in the trace of queue {traffic.queue!r}",
                f"use {low:g} to {high:g}",
            )
