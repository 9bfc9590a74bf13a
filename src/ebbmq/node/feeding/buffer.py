"""What happened and is not in the lake yet: batches in order, numbered, in a bounded amount of RAM.

The broker never waits for a lake: when the buffer is full, what happens then is counted and left
out. It keeps its numbers, so that a reader sees them missing, and a gap in the feed says how many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.node.feeding.joining import (
    BATCH_BYTES,
    CHAR_BYTES,
    EVENTS_MAX,
    KEY_BYTES,
    ROW_BYTES_MAX,
    Joined,
    is_by_rows,
    join_batch,
)
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.core.happened import Happened

#: What a batch takes, about, that is told otherwise than by rows, and each of its messages.
_OTHER_BYTES: Final = 800
_OTHER_ROW_BYTES: Final = 72
#: So many are used again, if they were about full: to ask for memory takes time from who publishes.
_SPARE: Final = 3


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
    """One thread takes and lets go, others tell; who tells or takes holds the engine's lock."""

    def __init__(self, bytes_max: int, wake: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._wake = wake
        self._last = Joined()
        self._last.begin(1, bytes_max // 2)
        #: What is told goes to the last of these.
        self._told = deque((self._last,))
        self._taken: list[Joined] = []
        #: Of what was told, how many were taken before and wait again.
        self._again = 0
        self._spare: list[Joined] = []
        #: Of what was told before the last, taken, and let go of; each written by one thread only.
        self._told_bytes = self._taken_bytes = self._done_bytes = 0
        self._is_woken = False
        #: Events left out since the last gap was told, and in all.
        self._missing = 0
        #: Events since then that have their numbers and could not be written.
        self._spoiled = 0
        self.missed = 0
        self.at_ms = 0

    @property
    def pending_bytes(self) -> int:
        """What is kept in RAM."""
        return self._told_bytes + self._last.bytes - self._done_bytes

    @property
    def _left(self) -> int:
        """What there is room for, in bytes."""
        return self._bytes_max - self.pending_bytes

    @property
    def is_half_full(self) -> bool:
        """Whether what is there and not taken should be written now."""
        return self._waiting_bytes * 2 >= self._bytes_max

    @property
    def _waiting_bytes(self) -> int:
        return self._told_bytes + self._last.bytes - self._taken_bytes

    def tell(self, told: Happened | Decided) -> None:
        """Something happened; what cannot be kept, for whatever reason, is left out."""
        try:
            if not join_batch(told, self._last.into):
                self._tell_otherwise(told)
        except Exception as error:  # no message may depend on it
            log.error("feed_bug", error=repr(error))
            self._leave_out(told)

    def _tell_otherwise(self, told: Happened | Decided) -> None:
        """Tell what is not told by rows, or what the last has no room for."""
        if self._missing:
            if _bytes_most(told) + BATCH_BYTES > self._left:
                self._leave_out(told)
                return
            # There surely is room for what comes after it, too: one gap, not many.
            self._tell_gap(told.at_ms)
        if self._last.is_full:
            self._begin()
        left_of_half = self._bytes_max // 2 - self._waiting_bytes
        if self._is_told(told, min(self._left, left_of_half)):
            return
        if not self._is_woken:
            self._is_woken = True
            self._wake()
        if not self._is_told(told, self._left):
            self._leave_out(told)

    def _is_told(self, told: Happened | Decided, bytes_left: int) -> bool:
        """Add to the last, which may take so many bytes more; whether that was enough."""
        self._last.leave(bytes_left)
        if is_by_rows(told):
            return join_batch(told, self._last.into)
        size = _bytes_most(told)
        if size > bytes_left:
            return False
        self._last.add_other(told, size)
        return True

    def _leave_out(self, told: Happened | Decided) -> None:
        self._missing += told.messages
        self.missed += told.messages
        self.at_ms = told.at_ms
        # What comes next has to tell of the gap before.
        self._last.leave(-1)

    def _begin(self) -> None:
        """Have room for what is told from now on."""
        before = self._last
        self._told_bytes += before.bytes
        self._last = self._spare.pop() if self._spare else Joined()
        self._last.begin(before.next_number, 0)
        self._told.append(self._last)

    def tell_gap(self) -> None:
        """Tell what is missing, if anything is and there is room again."""
        if (self._missing or self._spoiled) and self._left >= BATCH_BYTES:
            self._tell_gap(self.at_ms)

    def _tell_gap(self, at_ms: int) -> None:
        """What was left out keeps its numbers."""
        gap = Gap(at_ms, self._missing + self._spoiled)
        self._last.add_other(gap, BATCH_BYTES, self._missing)
        self._missing = self._spoiled = 0

    @property
    def is_taken(self) -> bool:
        """Whether something was taken and is not let go of."""
        return bool(self._taken or self._again)

    def take(self, events_max: int) -> list[Joined]:
        """The oldest events, about so many; the same again until they are let go."""
        if self._taken:
            return self._taken
        self._is_woken = False
        count = 0
        while count < events_max and self._told[0].events:
            if len(self._told) == 1:
                self._begin()
            joined = self._told.popleft()
            self._again = max(0, self._again - 1)
            self._taken.append(joined)
            count += joined.events
        self._taken_bytes += sum(joined.bytes for joined in self._taken)
        if not count:
            self._spare.clear()
        return self._taken

    def spoil(self, at_ms: int) -> int:
        """What was taken can never be written; returns how many events are left out.

        Several pieces may be of use all the same: then only the oldest of them stays taken.
        """
        first, *others = self._taken
        if others:
            self._taken, self._again = [first], self._again + len(others)
            self._told.extendleft(reversed(others))
            self._taken_bytes -= sum(joined.bytes for joined in others)
            return 0
        # What gaps told of that go with it is still to be told.
        gaps = sum(each.missing for _, each in first.others if isinstance(each, Gap))
        self._spoiled += first.events + gaps
        self.missed += first.events
        self.at_ms = max(self.at_ms, at_ms)
        self.let_go()
        return first.events

    def let_go(self) -> None:
        """What was taken is in the lake."""
        self._done_bytes += sum(joined.bytes for joined in self._taken)
        for joined in self._taken:
            if joined.events >= EVENTS_MAX // 2 and len(self._spare) < _SPARE:
                joined.begin(1, 0)
                self._spare.append(joined)
        self._taken = []


def _bytes_most(told: Happened | Decided) -> int:
    """What a batch takes at most."""
    if is_by_rows(told):
        keys = KEY_BYTES * (2 + len(told.given)) + CHAR_BYTES * len(told.name)
        return told.messages * ROW_BYTES_MAX + BATCH_BYTES + keys
    return told.messages * _OTHER_ROW_BYTES + _OTHER_BYTES
