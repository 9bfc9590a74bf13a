"""Timing wheels of a replay, which knows before what a broker has to remember."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from typing_extensions import override

from ebbmq.core import lifecycle
from ebbmq.core.classes import NEVER
from ebbmq.core.wheel import Wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.core.partition import Partition
    from ebbmq_spark.simulation.arrivals import Arrivals
    from ebbmq_spark.simulation.traffic import Traffic

#: The outcome of a message that has none yet.
WAITING: Final = 0


class DueWheel(Wheel):
    """What is due some day; leases never expire here, so they need not be remembered."""

    def __init__(self, never_ms: int) -> None:
        super().__init__()
        self.never_ms = never_ms

    @override
    def add_many(self, deadline_ms: int, seqs: Sequence[int]) -> None:
        if deadline_ms < self.never_ms:
            super().add_many(deadline_ms, seqs)

    @override
    def add(self, deadline_ms: int, seq: int) -> None:
        if deadline_ms < self.never_ms:
            super().add(deadline_ms, seq)


class Ends(Wheel):
    """When messages end by their age: all of that is known before, so nothing has to be added."""

    def __init__(
        self, partition: Partition, traffic: Traffic, arrivals: Arrivals, slice_ms: int
    ) -> None:
        super().__init__()
        self.partition = partition
        self.first = partition.index.next_seq
        ages = [
            partition.profile((kind.importance, kind.ttl_ms, kind.decay_rate)).end_age_ms
            for kind in arrivals.kinds
        ]
        came_ms = traffic.at_ms // slice_ms * slice_ms
        self.ends_ms = came_ms + np.array(ages, dtype=np.int64)[arrivals.kind_of]
        ending = np.flatnonzero(self.ends_ms < NEVER)
        self.numbers = ending[np.argsort(self.ends_ms[ending], kind="stable")]
        self.instants = self.ends_ms[self.numbers]
        #: Which row each message is: they come in in the order of the arrivals.
        self.row_of = np.empty(len(traffic), dtype=np.uint64)
        self.row_of[arrivals.numbers] = np.arange(len(traffic), dtype=np.uint64)
        self.done = 0
        self.begins_ms = int(self.instants[0]) if len(self.instants) else NEVER

    @override
    def add_many(self, deadline_ms: int, seqs: Sequence[int]) -> None:
        return

    @override
    def add(self, deadline_ms: int, seq: int) -> None:
        return

    def next_ms(self, outcome: npt.NDArray[np.int16]) -> float:
        """When the next message ends that still waits; the last one, if none does."""
        waiting = outcome[self.numbers[self.done :]] == WAITING
        if not waiting.any():
            return float(self.instants[-1]) if len(self.instants) else 0.0
        return float(self.instants[self.done + int(np.argmax(waiting))])

    def take_out(self, outcome: npt.NDArray[np.int16], now_ms: int) -> None:
        """Take out what has ended and still waits."""
        if self.begins_ms > now_ms:
            return
        stop = int(np.searchsorted(self.instants, now_ms, side="right"))
        numbers = self.numbers[self.done : stop]
        self.done = stop
        self.begins_ms = int(self.instants[stop]) if stop < len(self.instants) else NEVER
        waiting = numbers[outcome[numbers] == WAITING]
        if len(waiting):
            seqs = np.sort(self.row_of[waiting]) + np.uint64(self.first)
            lifecycle.end_waiting(self.partition, seqs, now_ms)
