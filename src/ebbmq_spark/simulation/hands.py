"""Consumers of a replay: hands that each work on one message at a time, as columns of numbers."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


class Work(NamedTuple):
    """Messages that are worked on: until when, their rows, the generations of their leases."""

    until_ms: Floats
    rows: Ints
    generations: Ints
    #: Which messages of the traffic they are.
    numbers: Ints

    def where(self, chosen: Flags | Ints) -> Work:
        """Some of them."""
        until_ms, rows, generations, numbers = self
        return Work(until_ms[chosen], rows[chosen], generations[chosen], numbers[chosen])

    def in_order(self) -> Work:
        """The same, who is done first before the others."""
        return self.where(np.lexsort((self.generations, self.rows, self.until_ms)))


_NO_ROWS: Final[Ints] = np.empty(0, dtype=np.int64)
_NO_WORK: Final = Work(np.empty(0), _NO_ROWS, _NO_ROWS, _NO_ROWS)


def _joined(begun: list[Work]) -> Work:
    if len(begun) == 1:
        return begun[0]
    until_ms, rows, generations, numbers = zip(*begun, strict=True)
    join = np.concatenate
    return Work(join(until_ms), join(rows), join(generations), join(numbers))


class Hands:
    """Who works, until when, and on what."""

    def __init__(self, count: int, start_ms: float) -> None:
        #: A heap of the instants at which hands are free.
        self.free = [start_ms] * count
        self.working = 0
        #: When the first of them is done.
        self.soonest_ms = math.inf
        self._begun: list[Work] = []

    def take(self, ready_ms: Floats, service_ms: Floats) -> Floats:
        """Have hands begin with messages, who is free first with the first; when they begin."""
        free, replace = self.free, heapq.heapreplace
        begins: list[float] = []
        begin = begins.append
        for ready, service in zip(ready_ms.tolist(), service_ms.tolist(), strict=True):
            at = free[0]
            if at < ready:  # noqa: PLR1730  # a call of max takes longer than all the rest
                at = ready
            begin(at)
            replace(free, at + service)
        return np.array(begins)

    def add(self, work: Work) -> None:
        """Remember what was begun."""
        self._begun.append(work)
        self.working += len(work.until_ms)
        self.soonest_ms = min(self.soonest_ms, float(work.until_ms.min()))

    def done(self, now_ms: int) -> Work:
        """Take what is done by now."""
        if self.soonest_ms > now_ms:
            return _NO_WORK
        work = _joined(self._begun)
        is_done = work.until_ms <= now_ms
        rest = work.where(~is_done)
        self.working = len(rest.until_ms)
        self._begun = [rest] if self.working else []
        self.soonest_ms = float(rest.until_ms.min()) if self.working else math.inf
        return work.where(is_done)
