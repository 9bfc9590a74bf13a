"""What a bounded queue has room for while a replay goes from slice to slice.

While all that comes in a slice finds room even if nobody leaves, the slice may be as long as any.
Otherwise it ends where the room does; and where there is next to none, it ends once a few messages
came or left, few by what the queue may hold. There every arrival is weighed by what consumers will
have finished before it, so that a slice loses no room to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.core.row import DYING, READY
from ebbmq.model import Reason

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.partition import Partition
    from ebbmq_spark.simulation.hands import Work
    from ebbmq_spark.simulation.traffic import Traffic

#: More than any queue holds.
_ANY: Final = 1 << 62
#: The part of what may wait that comes or leaves in a slice of a queue that is next to full.
_FEW_PARTS: Final = 16


class Crowd(NamedTuple):
    """Arrivals that do not all find room: who gets in, and what has to go for them."""

    admitted: npt.NDArray[np.bool_]
    messages: int
    body_bytes: int


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
        mean_bytes = max(1.0, float(traffic.bytes.mean())) if len(traffic) else 1.0
        waiting = min(self.messages_max, self.bytes_max / mean_bytes) - traffic.consumers
        self.few = max(1, int(waiting / _FEW_PARTS))
        #: How long consumers take for so many.
        service_ms = float(traffic.service_ms.mean()) if len(traffic) else 1.0
        self.few_ms = self.few * service_ms / max(1, traffic.consumers)

    def slice_end(self, start: int, now_ms: int, end_ms: int) -> int:
        """Where a slice of time ends whose first arrival is `start`, at the latest at `end_ms`."""
        at_ms = self.traffic.at_ms
        room = self.room(start)
        if int(np.searchsorted(at_ms, end_ms, side="left")) - start <= room:
            return end_ms
        if room >= self.few:
            return min(end_ms, max(now_ms + 1, int(at_ms[start + room])))
        last = min(start + self.few, len(at_ms) - 1)
        return min(end_ms, max(now_ms + 1, min(int(at_ms[last]), int(now_ms + self.few_ms))))

    def room(self, start: int) -> int:
        """How many messages from `start` on find room even if nobody leaves."""
        messages, body_bytes = self._left()
        if self.bytes_max == _ANY:
            return max(0, messages)
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

    def crowd(self, start: int, stop: int, leaving: Work) -> Crowd:
        """Weigh arrivals one by one: what is done before each, in that order, makes room for it."""
        room, room_bytes = self._left()
        sizes = self.traffic.bytes
        arrivals = zip(
            self.traffic.at_ms[start:stop].tolist(), sizes[start:stop].tolist(), strict=True
        )
        done = zip(leaving.until_ms.tolist(), sizes[leaving.numbers].tolist(), strict=True)
        done_ms, done_bytes = next(done, (math.inf, 0))
        admitted: list[bool] = []
        lacking = lacking_bytes = 0
        for at_ms, size in arrivals:
            while done_ms <= at_ms:
                room += 1
                room_bytes += done_bytes
                done_ms, done_bytes = next(done, (math.inf, 0))
            fits = size <= self.bytes_max and (
                not self.rejects or (room >= 1 and size <= room_bytes)
            )
            admitted.append(fits)
            if fits:
                room -= 1
                room_bytes -= size
                lacking = max(lacking, -room)
                lacking_bytes = max(lacking_bytes, -room_bytes)
        return Crowd(np.array(admitted, dtype=np.bool_), lacking, lacking_bytes)

    def make_room(self, crowd: Crowd, now_ms: int) -> None:
        """Let the least important messages go for those that came."""
        partition = self.partition
        messages, body_bytes = crowd.messages, crowd.body_bytes
        while messages > 0 or body_bytes > 0:
            seq = partition.order.pop_least(now_ms)
            if seq < 0:
                return
            row = partition.index.read(seq)
            if row is not None and row[0] == READY:
                messages -= 1
                body_bytes -= row[11]
                partition.end_row(seq, row, Reason.OVERFLOW, now_ms)
