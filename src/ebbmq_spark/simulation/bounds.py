"""What a bounded queue has room for while a replay goes from slice to slice.

While all that comes in a slice finds room even if nobody leaves, the slice may be as long as any.
Otherwise it ends where the room does, or once a few messages came, few by what the queue may hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.row import DYING, READY
from ebbmq.model import Reason

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.partition import Partition
    from ebbmq_spark.simulation.traffic import Traffic

#: More than any queue holds.
_ANY: Final = 1 << 62
#: The part of what a queue may hold that comes in a slice once it is next to full.
_FEW_PARTS: Final = 50


class Bounds:
    """How much a queue may hold, and which of its traffic finds room."""

    def __init__(self, partition: Partition, traffic: Traffic) -> None:
        spec = partition.spec
        self.partition = partition
        self.traffic = traffic
        self.rejects = spec.overflow == "reject"
        self.messages_max = spec.max_messages or _ANY
        self.bytes_max = spec.max_bytes or _ANY
        self.bytes_before = np.concatenate(([0], np.cumsum(traffic.bytes)))
        mean_bytes = self.bytes_before[-1] / max(1, len(traffic))
        held = min(self.messages_max, self.bytes_max / max(1.0, mean_bytes))
        self.few = max(1, int(held / _FEW_PARTS))

    def slice_end(self, start: int, now_ms: int, end_ms: int) -> int:
        """Where a slice of time ends whose first arrival is `start`, at the latest at `end_ms`."""
        stop = start + max(self.room(start), self.few)
        if stop >= len(self.traffic):
            return end_ms
        return min(end_ms, max(now_ms + 1, int(self.traffic.at_ms[stop])))

    def room(self, start: int) -> int:
        """How many messages from `start` on find room even if nobody leaves."""
        messages, body_bytes = self._left()
        before = self.bytes_before
        fitting = int(np.searchsorted(before, before[start] + body_bytes, side="right")) - 1
        return max(0, min(messages, fitting - start))

    def _left(self) -> tuple[int, int]:
        """Messages and bytes that may come; what the dead queue is about to take is gone."""
        partition = self.partition
        return (
            self.messages_max - partition.live() + partition.depth[DYING],
            self.bytes_max - partition.body_bytes + partition.dying_bytes,
        )

    def admitted(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Which of these arrivals get in, each by itself."""
        room, room_bytes = self._left()
        out: list[bool] = []
        for size in self.traffic.bytes[start:stop].tolist():
            has_room = room >= 1 and size <= room_bytes
            fits = has_room if self.rejects else size <= self.bytes_max
            out.append(fits)
            if fits:
                room -= 1
                room_bytes -= size
        return np.array(out, dtype=np.bool_)

    def make_room(self, now_ms: int) -> None:
        """Let the least important messages go until the queue holds what it may."""
        partition = self.partition
        while min(self._left()) < 0:
            seq = partition.order.pop_least(now_ms)
            if seq < 0:
                return
            row = partition.index.read(seq)
            if row is not None and row[0] == READY:
                partition.end_row(seq, row, Reason.OVERFLOW, now_ms)
