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


class Numbered(NamedTuple):
    """A batch and the number of its first event."""

    number: int
    told: Happened | Decided | Gap


class Buffer:
    """One thread takes and lets go; others tell, one at a time (the engine's lock is held)."""

    def __init__(self, bytes_max: int, wake: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._wake = wake
        self._told: deque[Numbered] = deque()
        self._taken: list[Numbered] = []
        self._next = 1
        # Each is written by one thread only, so that their difference needs no lock.
        self._told_bytes = self._done_bytes = self._taken_bytes = 0
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

    @property
    def last(self) -> int:
        """The number of the last event that happened."""
        return self._next - 1

    def tell(self, told: Happened | Decided) -> None:
        """Something happened."""
        size = told.messages * _ROW_BYTES + _BATCH_BYTES
        pending = self._told_bytes - self._done_bytes
        if pending + size > self._bytes_max:
            self._next += told.messages
            self._missing += told.messages
            self.missed += told.messages
            self.at_ms = told.at_ms
            return
        if self._missing:
            self._tell_gap(told.at_ms)
        self._told.append(Numbered(self._next, told))
        self._next += told.messages
        self._told_bytes += size
        if pending * 2 < self._bytes_max <= (pending + size) * 2:
            self._wake()

    def tell_gap(self) -> None:
        """Tell what is missing, if anything is and there is room again."""
        if self._missing and self.pending_bytes + _BATCH_BYTES <= self._bytes_max:
            self._tell_gap(self.at_ms)

    def _tell_gap(self, at_ms: int) -> None:
        self._told.append(Numbered(self._next, Gap(at_ms, self._missing)))
        self._next += 1
        self._missing = 0
        self._told_bytes += _BATCH_BYTES

    def take(self, events_max: int) -> list[Numbered]:
        """The oldest batches, about so many events; the same again until they are let go."""
        count = sum(each.told.messages for each in self._taken)
        while self._told and count < events_max:
            taken = self._told.popleft()
            self._taken.append(taken)
            count += taken.told.messages
            rows = 0 if isinstance(taken.told, Gap) else taken.told.messages
            self._taken_bytes += rows * _ROW_BYTES + _BATCH_BYTES
        return self._taken

    def let_go(self) -> None:
        """What was taken is in the lake."""
        self._done_bytes += self._taken_bytes
        self._taken_bytes = 0
        self._taken = []
