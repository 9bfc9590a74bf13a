"""When stored messages are to be looked at again: no timer per message, no sweep.

Without reads a decay score depends on age alone, and messages come in the order of their age. So
each threshold of a queue is an age and a cursor: everything before the cursor has passed it, and
what passes it next is at the cursor. Only messages that must be seen at another instant, because
they were read, are leased, or may get one more copy, have an entry of their own.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.index import PAGE_BITS, SLOT_MASK
from ebbmq.core.row import FREE, LOW48
from ebbmq.policy.decay import Access, Phase, next_crossing_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.core.index import Index, Page
    from ebbmq.policy.placement import Terms

_LOW48: Final = np.uint64(LOW48)
_NEVER_READ: Final = Access()
#: So many rows of a page are looked at together.
_WINDOW: Final = 512


def ages_of(terms: Terms) -> list[int]:
    """The ages at which messages of a queue that nobody reads are looked at."""
    ages: set[int] = set()
    phase = terms.score.phase(terms.score.at(0, 0.0))
    may_grow = terms.max_replicas is not None and terms.max_replicas > 1
    soon_ms = terms.evaluate_every_ms
    if phase is not Phase.FRESH or may_grow or terms.promotes:
        ages.add(soon_ms)
    at_ms = next_crossing_ms(terms.score, 0, _NEVER_READ, 0)
    while at_ms is not None:
        # What is promoted when it is first evaluated is not moved again at once.
        later_ms = 2 * soon_ms if terms.promotes and at_ms > soon_ms else soon_ms
        ages.add(max(at_ms, later_ms))
        at_ms = next_crossing_ms(terms.score, 0, _NEVER_READ, at_ms)
    return sorted(ages)


class Reviews:
    """The cursors and single entries of one partition."""

    def __init__(self, index: Index) -> None:
        self._index = index
        #: By age: the number of the first message that is not known to have passed it.
        self.cursors: dict[int, int] = {}
        self._single: list[tuple[int, int]] = []
        #: Messages that moved a moment ago, and until when they are not looked at.
        self._rests: dict[int, int] = {}

    def adopt(self, ages: list[int]) -> None:
        """Look at messages of these ages; for an age that is new, from the front on."""
        self.cursors = {age: self.cursors.get(age, 0) for age in ages}

    def passed_age(self, enqueued_at_ms: int, now_ms: int) -> int | None:
        """The last of the ages that a message has passed; None if it is too young for all."""
        return max((age for age in self.cursors if age <= now_ms - enqueued_at_ms), default=None)

    def go_back(self, age: int, seq: int) -> None:
        """Look again at messages that passed an age, from a number on."""
        if age in self.cursors:
            self.cursors[age] = min(self.cursors[age], seq)

    def look_at(self, seq: int, at_ms: int) -> None:
        """Have one message looked at, at an instant of its own."""
        heapq.heappush(self._single, (at_ms, seq))

    def rest(self, seq: int, until_ms: int) -> None:
        """Have one message looked at at an instant, and not before."""
        self._rests[seq] = until_ms
        self.look_at(seq, until_ms)

    def singles(self) -> list[tuple[int, int]]:
        """Instants and messages that `look_at` was told of."""
        return list(self._single)

    def resume(self, singles: list[tuple[int, int]]) -> None:
        """Look at these, too."""
        self._single += singles
        heapq.heapify(self._single)

    @property
    def is_idle(self) -> bool:
        """Whether no message will ever have to be looked at."""
        return not self.cursors and not self._single

    def due(self, now_ms: int, count: int) -> list[int]:
        """At most `count` messages that are to be looked at now; fewer: no more are due."""
        out: list[int] = []
        while self._single and self._single[0][0] <= now_ms and len(out) < count:
            seq = heapq.heappop(self._single)[1]
            if self._rests.get(seq, now_ms) <= now_ms:
                self._rests.pop(seq, None)
                if self._index.state_of(seq) != FREE:
                    out.append(seq)
        for age in self.cursors:
            if len(out) >= count:
                break
            out += self._passed(age, now_ms - age, count - len(out))
        return [seq for seq in dict.fromkeys(out) if seq not in self._rests]

    def _passed(self, age: int, before_ms: int, count: int) -> list[int]:
        """The next messages published at `before_ms` or earlier; the cursor goes behind them."""
        if before_ms < 0:
            return []
        index, cursor = self._index, self.cursors[age]
        next_row = index.read(cursor)
        if next_row is not None and next_row[5] & LOW48 > before_ms:
            return []  # as it nearly always is
        out: list[int] = []
        for page in self._pages_from(cursor >> PAGE_BITS):
            base, at, size = page.number << PAGE_BITS, cursor, SLOT_MASK + 1
            while at < base + size:
                at = max(at, base)
                seqs, enqueued = _rows(page, at - base, _WINDOW)
                late = np.flatnonzero(enqueued > before_ms)
                stop = int(late[0]) if len(late) else len(seqs)
                taken = seqs[: min(stop, count - len(out))]
                out += taken.tolist()
                if len(taken) < len(seqs):
                    self.cursors[age] = int(seqs[len(taken)])
                    return out
                at = size + base if page.thin is not None else at + _WINDOW
            cursor = min(index.next_seq, base + size)
        self.cursors[age] = cursor
        return out

    def _pages_from(self, number: int) -> Iterator[Page]:
        """The pages from a number on; only where some are missing all are looked through."""
        pages = self._index.pages
        while True:
            page = pages.get(number)
            if page is None:
                following = min((each for each in pages if each > number), default=None)
                if following is None:
                    return
                page = pages[following]
            yield page
            number = page.number + 1


def _rows(page: Page, start: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and instants of publishing of the live rows in a window; all of a thin page."""
    base = page.number << PAGE_BITS
    if page.thin is None:
        states = page.view["state"][start : start + window]
        slots = np.flatnonzero(states != FREE) + start
        return slots + base, (page.view["enqueued"][slots] & _LOW48).astype(np.int64)
    kept = sorted(
        (slot >> 6, at >> 6)
        for slot, at in page.thin.items()
        if slot >> 6 >= start and page.buffer[at] != FREE
    )
    places = np.array([at for _, at in kept], dtype=np.int64)
    slots = np.array([slot for slot, _ in kept], dtype=np.int64)
    return slots + base, (page.view["enqueued"][places] & _LOW48).astype(np.int64)
