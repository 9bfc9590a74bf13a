"""What happened and is not in the lake yet: batches in order, numbered, in a bounded amount of RAM.

The broker never waits for a lake: when the buffer is full, what happens then is counted and left
out. It keeps its numbers, so that a reader sees them missing, and a gap in the feed says how many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.core.happened import Happened

#: About what a batch takes, and each of its rows with its number.
_BATCH_BYTES: Final = 800
_ROW_BYTES: Final = 100


class Decided(NamedTuple):
    """The same was decided about, or came of, the copies of some messages of a partition."""

    event: str
    pid: int
    at_ms: int
    messages: int
    seqs: npt.NDArray[np.uint64]
    #: As they are; all zero where a message is gone.
    rows: Words
    device: str
    reason: str
    score: float | None = None


class Gap(NamedTuple):
    """So many events before this are missing."""

    at_ms: int
    missing: int
    messages: int = 1


class Buffer:
    """One thread takes and lets go; others tell, one at a time (the engine's lock is held)."""

    def __init__(self, bytes_max: int, wake: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._wake = wake
        self._told: deque[Happened | Decided | Gap] = deque()
        self._taken: list[Happened | Decided | Gap] = []
        self._taken_events = 0
        #: The number of the first event that is not let go of.
        self.first = 1
        # Each is written by one thread only, so that their difference needs no lock.
        self._told_bytes = self._done_bytes = 0
        #: Above so much told there is more to do than to add to it.
        self._plain_bytes = bytes_max // 2
        #: Events left out since the last gap was told, and in all.
        self._missing = 0
        self.missed = 0
        self.at_ms = 0

    @property
    def pending_bytes(self) -> int:
        """What is kept in RAM, about."""
        return self._told_bytes - self._done_bytes

    @property
    def is_half_full(self) -> bool:
        """Whether what is there should be written now."""
        return self.pending_bytes * 2 >= self._bytes_max

    def tell(self, told: Happened | Decided) -> None:
        """Something happened."""
        told_bytes = self._told_bytes + told.messages * _ROW_BYTES + _BATCH_BYTES
        if told_bytes <= self._plain_bytes:
            self._told_bytes = told_bytes
            self._told.append(told)
        else:
            self._tell_if_there_is_room(told)

    def _tell_if_there_is_room(self, told: Happened | Decided) -> None:
        done = self._done_bytes
        size = told.messages * _ROW_BYTES + _BATCH_BYTES
        if self._told_bytes - done + size > self._bytes_max:
            self._missing += told.messages
            self.missed += told.messages
            self.at_ms = told.at_ms
            # What comes next has to tell of the gap before.
            self._plain_bytes = 0
            return
        if self._missing:
            self._tell_gap(told.at_ms)
        self._told.append(told)
        self._told_bytes += size
        if (self._told_bytes - done) * 2 >= self._bytes_max:
            self._wake()
            self._plain_bytes = done + self._bytes_max
        else:
            self._plain_bytes = done + self._bytes_max // 2

    def tell_gap(self) -> None:
        """Tell what is missing, if anything is and there is room again."""
        if self._missing and self.pending_bytes + _BATCH_BYTES <= self._bytes_max:
            self._tell_gap(self.at_ms)

    def _tell_gap(self, at_ms: int) -> None:
        self._told.append(Gap(at_ms, self._missing))
        self._missing = 0
        self._told_bytes += _BATCH_BYTES

    def take(self, events_max: int) -> list[Happened | Decided | Gap]:
        """The oldest batches, about so many events; the same again until they are let go.

        The first event of them is number `first`; each has the next number, but for a gap, before
        which those are passed over that are missing.
        """
        told, taken, count = self._told, self._taken, self._taken_events
        while told and count < events_max:
            batch = told.popleft()
            taken.append(batch)
            count += batch.messages
        self._taken_events = count
        return taken

    def let_go(self) -> None:
        """What was taken is in the lake."""
        gaps = [batch for batch in self._taken if type(batch) is Gap]
        self.first += self._taken_events + sum(gap.missing for gap in gaps)
        told = self._taken_events - len(gaps)
        self._done_bytes += told * _ROW_BYTES + len(self._taken) * _BATCH_BYTES
        self._taken, self._taken_events = [], 0
