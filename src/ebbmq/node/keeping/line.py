"""Names of messages that wait in line, packed: of millions that wait each takes a few bytes.

They come and go in runs, which are kept as ranges; what is no run takes eight bytes a name.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from ebbmq.core.values import as_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.copies import Name

    Part = range | array[int]


class Line:
    """First come, first taken."""

    __slots__ = ("_count", "_parts", "_taken")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        #: How many of the first part are not in line any more.
        self._taken = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, name: Name) -> None:
        """One more waits."""
        self.extend((name,))

    def extend(self, names: Sequence[Name]) -> None:
        """More wait."""
        if not names:
            return
        part, self._count = _packed(names), self._count + len(names)
        last = self._parts[-1] if self._parts else None
        if isinstance(last, range) and isinstance(part, range) and last.stop == part.start:
            self._parts[-1] = range(last.start, part.stop)
        elif isinstance(last, array) and isinstance(part, array):
            last.extend(part)
        else:
            self._parts.append(part)

    def put_back(self, names: Sequence[Name]) -> None:
        """Those that were taken wait again, before all others."""
        if not names:
            return
        if self._taken:
            self._parts[0] = self._parts[0][self._taken :]
            self._taken = 0
        self._parts.appendleft(_packed(names))
        self._count += len(names)

    def take(self, count: int) -> Sequence[Name]:
        """The first of those that wait, at most so many."""
        taken: list[Sequence[Name]] = []
        while count and self._parts:
            first = self._parts[0]
            part = first[self._taken : self._taken + count]
            taken.append(part if isinstance(part, range) else part.tolist())
            count, self._count = count - len(part), self._count - len(part)
            self._taken += len(part)
            if self._taken == len(first):
                self._parts.popleft()
                self._taken = 0
        if len(taken) == 1:
            return taken[0] if isinstance(taken[0], range) else as_run(taken[0])
        return as_run([name for part in taken for name in part])

    def clear(self) -> None:
        """Nobody waits any more."""
        self._parts.clear()
        self._taken = self._count = 0


def _packed(names: Sequence[Name]) -> Part:
    run = as_run(names)
    return run if isinstance(run, range) and run.step == 1 else array("q", names)
