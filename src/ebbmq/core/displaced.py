"""Rows that lost the order of their ring (retried, delayed, released), smallest place first.

Theory of operation. New rows gather in a short sorted list; when it is full it becomes a run: two
sorted arrays, 12 bytes an entry (16 from message number 2^32 on). A heap holds the head of every
run, so a row is found in O(log runs) however many rows there are, and runs need not be merged to
keep it fast. They are merged only when rows taken out have left them short, since one straggler in
each would cost the memory of a run; a few at a time, so that no call takes long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush, heapreplace, merge, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    Numbers = Sequence[int] | npt.NDArray[np.uint64]

BUFFER_ROWS: Final = 1_024
RUN_ROWS_MAX: Final = 65_536
_RUN_ROWS_SHORT: Final = 512
_RUNS_MIN: Final = 8
_MERGE_RUNS: Final = 64
_PLACE_END: Final = 1 << 64
#: Numbers below it are kept in half as many bytes.
_SMALL_END: Final = 1 << 32


class _Run:
    """Rows in order of place, taken from the head by moving `at`."""

    __slots__ = ("at", "places", "seqs")

    def __init__(self, places: array[int], seqs: array[int]) -> None:
        self.places = places
        self.seqs = seqs
        self.at = 0

    def __len__(self) -> int:
        return len(self.places) - self.at

    def advance(self, at: int) -> None:
        self.at = at
        if at >= BUFFER_ROWS and at * 5 > len(self.places):
            del self.places[:at]
            del self.seqs[:at]
            self.at = 0


class Displaced:
    """A set of (place, seq) taken in order; a pair is in it at most once."""

    __slots__ = ("_buffer", "_count", "_heads", "_last_run", "_runs")

    def __init__(self) -> None:
        self._buffer: list[tuple[int, int]] = []
        #: Heap of (place, seq, number of the run) with the head of each run.
        self._heads: list[tuple[int, int, int]] = []
        self._runs: dict[int, _Run] = {}
        self._last_run = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, place: int, seq: int) -> None:
        """Add one row."""
        insort(self._buffer, (place, seq))
        self._count += 1
        if len(self._buffer) > BUFFER_ROWS:
            self._flush()

    def extend(self, places: Numbers, seqs: Numbers) -> None:
        """Add rows, in any order."""
        self._count += len(seqs)
        if len(seqs) > BUFFER_ROWS:
            self._add_runs(np.asarray(places, dtype=np.uint64), np.asarray(seqs, dtype=np.uint64))
            self._merge_short_runs()
            return
        self._buffer.extend(zip(_integers(places), _integers(seqs), strict=True))
        self._buffer.sort()
        if len(self._buffer) > BUFFER_ROWS:
            self._flush()

    def head(self) -> tuple[int, int] | None:
        """Return the row with the smallest place."""
        if self._buffer and not (self._heads and self._heads[0] < self._buffer[0]):
            return self._buffer[0]
        return self._heads[0][:2] if self._heads else None

    def pop(self) -> tuple[int, int]:
        """Take the row with the smallest place.

        Raises:
            IndexError: there is none.
        """
        if not self._count:
            raise IndexError("pop from an empty set")
        self._count -= 1
        if self._heads and not (self._buffer and self._buffer[0] < self._heads[0]):
            taken: list[tuple[int, int]] = []
            self._pop_run(taken, 1, _PLACE_END)
            return taken[0]
        return self._buffer.pop(0)

    def pop_many(self, n: int) -> list[tuple[int, int]]:
        """Take up to n rows in order of place."""
        return self.pop_below(_PLACE_END, n)

    def pop_below(self, limit_place: int, n: int) -> list[tuple[int, int]]:
        """Take up to n rows in order of place, all of them below a place."""
        taken: list[tuple[int, int]] = []
        buffer, heads = self._buffer, self._heads
        while len(taken) < n:
            room = n - len(taken)
            if heads and not (buffer and buffer[0] < heads[0]):
                if heads[0][0] >= limit_place:
                    break
                self._pop_run(taken, room, limit_place)
            elif buffer and buffer[0][0] < limit_place:
                before = (limit_place, -1)
                end = bisect_left(buffer, min(before, heads[0][:2]) if heads else before)
                end = min(end, room)
                taken += buffer[:end]
                del buffer[:end]
            else:
                break
        self._count -= len(taken)
        return taken

    def sift(self, keep: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]) -> None:
        """Let go of the rows of one run that are not to be kept; the runs take turns."""
        number = next(iter(self._runs), None)
        if number is None:
            return
        run = self._runs.pop(number)
        seqs = np.array(run.seqs[run.at :], dtype=np.uint64)
        # In order of row number, so that the index is read page by page.
        order = np.argsort(seqs)
        kept = np.empty(len(seqs), dtype=np.bool_)
        kept[order] = keep(seqs[order])
        if kept.all():
            self._runs[number] = run
            return
        self._count -= len(seqs) - int(np.count_nonzero(kept))
        self._heads = [head for head in self._heads if head[2] != number]
        heapify(self._heads)
        if kept.any():
            places = np.array(run.places[run.at :], dtype=np.uint64)[kept]
            self._add_run(array("Q", places.tobytes()), _kept(seqs[kept]))

    def last(self) -> tuple[int, int] | None:
        """Return the row with the largest place, in O(runs)."""
        ends = [(run.places[-1], run.seqs[-1]) for run in self._runs.values()]
        return max(ends + self._buffer[-1:], default=None)

    def peek(self, n: int) -> list[tuple[int, int]]:
        """Return up to n rows as they would be taken."""
        return list(islice(merge(self._buffer, self._walk_runs()), max(0, n)))

    def pop_last(self) -> tuple[int, int]:
        """Take the row with the largest place, in O(runs).

        Raises:
            IndexError: there is none.
        """
        if not self._count:
            raise IndexError("pop from an empty set")
        self._count -= 1
        place, seq, number = max(
            ((run.places[-1], run.seqs[-1], number) for number, run in self._runs.items()),
            default=(-1, -1, -1),
        )
        if self._buffer and self._buffer[-1] > (place, seq):
            return self._buffer.pop()
        run = self._runs[number]
        run.places.pop()
        run.seqs.pop()
        if not run:
            del self._runs[number]
            self._heads.remove((place, seq, number))
            heapify(self._heads)
        return place, seq

    def _pop_run(self, taken: list[tuple[int, int]], n: int, limit_place: int) -> None:
        """Take up to n rows from the run with the smallest head, up to the head of any other.

        The first row is below the limit; the others are below it too.
        """
        heads = self._heads
        place, seq, number = heads[0]
        taken.append((place, seq))
        run = self._runs[number]
        places = run.places
        at = run.at + 1
        limit = min(limit_place, self._second_place()) if n > 1 else 0
        if at < len(places) and places[at] < limit:
            end = bisect_left(places, limit, at, min(at + n - 1, len(places)))
            taken.extend(zip(places[at:end], run.seqs[at:end], strict=True))
            at = end
        if at < len(places):
            heapreplace(heads, (places[at], run.seqs[at], number))
            run.advance(at)
        else:
            heappop(heads)
            del self._runs[number]

    def _second_place(self) -> int:
        """Return the smallest place outside the run with the smallest head."""
        # In a heap the second smallest is a child of the smallest.
        second = _PLACE_END
        for head in self._heads[1:3]:
            second = min(second, head[0])
        if self._buffer and self._buffer[0][0] < second:
            second = self._buffer[0][0]
        return second

    def _walk_runs(self) -> Iterator[tuple[int, int]]:
        heads = self._heads.copy()
        ats: dict[int, int] = {}
        while heads:
            place, seq, number = heads[0]
            yield place, seq
            run = self._runs[number]
            at = ats[number] = ats.get(number, run.at) + 1
            if at < len(run.places):
                heapreplace(heads, (run.places[at], run.seqs[at], number))
            else:
                heappop(heads)

    def _flush(self) -> None:
        places, seqs = zip(*self._buffer, strict=True)
        self._buffer.clear()
        self._add_run(array("Q", places), array("I" if max(seqs) < _SMALL_END else "Q", seqs))
        self._merge_short_runs()

    def _add_runs(self, places: npt.NDArray[np.uint64], seqs: npt.NDArray[np.uint64]) -> None:
        order = np.lexsort((seqs, places))
        for start in range(0, len(order), RUN_ROWS_MAX):
            part = order[start : start + RUN_ROWS_MAX]
            self._add_run(array("Q", places[part].tobytes()), _kept(seqs[part]))

    def _add_run(self, places: array[int], seqs: array[int]) -> None:
        self._last_run += 1
        self._runs[self._last_run] = _Run(places, seqs)
        heappush(self._heads, (places[0], seqs[0], self._last_run))

    def _merge_short_runs(self) -> None:
        if len(self._runs) <= _RUNS_MIN + self._count // _RUN_ROWS_SHORT:
            return
        short = nsmallest(_MERGE_RUNS, self._runs, key=lambda number: len(self._runs[number]))
        runs = [self._runs.pop(number) for number in short]
        self._heads = [head for head in self._heads if head[2] in self._runs]
        heapify(self._heads)
        self._add_runs(
            np.concatenate([np.array(run.places[run.at :], dtype=np.uint64) for run in runs]),
            np.concatenate([np.array(run.seqs[run.at :], dtype=np.uint64) for run in runs]),
        )


def _kept(seqs: npt.NDArray[np.uint64]) -> array[int]:
    if int(seqs.max()) < _SMALL_END:
        return array("I", seqs.astype(np.uint32).tobytes())
    return array("Q", seqs.tobytes())


def _integers(numbers: Numbers) -> Sequence[int]:
    """Python's own integers, since numpy's would make every later comparison slow."""
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
