"""One band: the rows of all its classes, merged by row number.

Theory of operation. A class has at most one line in a band: its rows that were never displaced,
oldest first. Row numbers and places of such rows are given out together, so they rise together, and
lines are merged by row number without a look into the index. A heap holds one entry (row number,
line) for each line. Where several lines are deep, the rows of a window of row numbers are copied
out of all of them at once, sorted, and kept as a run: one more source, which is taken in slices.
The window adapts to how densely the band's rows lie.

Invariants:
1. Each line in `lines` has one entry in `heads`, with a row number not above its first row; a line
   that ran empty keeps its entry until that surfaces, or until half of the entries are such.
2. Rows of a class in the run are older than those of its line in the same band.
3. `cross_at` of a line and of the run is never after the instant at which the first row leaves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.classes import NEVER
from ebbmq.core.displaced import BUFFER_ROWS, Displaced
from ebbmq.core.ring import CHUNK_ROWS, Ring
from ebbmq.core.row import HIGH, LOW48, READY

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.classes import Classes
    from ebbmq.core.index import Index

    Seqs = npt.NDArray[np.uint64]
    Flags = npt.NDArray[np.bool_]

RUN_ROWS_MAX: Final = 16_384
_RUN_ROWS: Final = 1_024
_RUN_ROWS_PER_LINE: Final = 16
_WINDOW: Final = 4_096
#: Lines are merged in a run when they have this many rows on average.
_MERGE_DEPTH: Final = 3
_SPARE_LINES_MAX: Final = 64
#: Ghosts are looked for each time a line has grown by this many rows; twice as many are looked at.
SIFT_ROWS: Final = 8_192
_SIFT_CHUNKS: Final = 2 * SIFT_ROWS // CHUNK_ROWS
#: So many ghosts are dropped one by one before it pays to look at many rows at once.
_FEW_GHOSTS: Final = 4
_SAMPLE_ROWS: Final = 16
_LOW48: Final = np.uint64(LOW48)
_HIGH: Final = np.uint64(HIGH)


class Line:
    """Rows of one class in one band, oldest first."""

    __slots__ = ("cross_at", "kind", "leaves", "ring", "sift_at")

    def __init__(self) -> None:
        self.ring = Ring()
        self.kind = -1
        #: The age at which rows of the class leave this band.
        self.leaves = NEVER
        self.cross_at = NEVER
        #: The number of rows at which ghosts are looked for.
        self.sift_at = SIFT_ROWS

    def __lt__(self, other: Line) -> bool:
        return self.kind < other.kind


class Run:
    """Rows of several lines, merged; never empty."""

    __slots__ = ("at", "cross_at", "crosses", "seqs")

    def __init__(self, seqs: Seqs, cross_at: int) -> None:
        self.seqs = array("Q", seqs.tobytes())
        self.at = 0
        self.cross_at = cross_at
        #: The instant at which each row leaves the band; read when the first of them may have.
        self.crosses: npt.NDArray[np.int64] | None = None

    def take_below(self, limit: int, count: int) -> list[int]:
        """Take up to `count` rows below a limit, but never the last one there is."""
        end = min(self.at + count, len(self.seqs) - 1)
        taken = self.seqs[self.at : end].tolist()
        if taken and taken[-1] >= limit:
            del taken[bisect_left(taken, limit) :]
        self.at += len(taken)
        return taken

    def give_back(self, count: int) -> None:
        """Undo the taking of rows; nothing else was taken since."""
        self.at -= count

    def rest(self) -> Seqs:
        """The rows that were not taken yet."""
        return np.frombuffer(self.seqs, dtype=np.uint64)[self.at :].copy()


def may_be_ready(index: Index, seqs: Seqs) -> Flags:
    """Which rows are in the order; all of them where a sample has few that are not."""
    sample = seqs[:: len(seqs) // _SAMPLE_ROWS + 1].tolist()
    ghosts = sum(index.state_of(seq) != READY for seq in sample)
    if ghosts * 4 < len(sample):
        return np.ones(len(seqs), dtype=np.bool_)
    ready: Flags = index.column(seqs, "state") == READY
    return ready


class Band:
    """Lines, run and displaced rows of one band."""

    __slots__ = (
        "_classes", "_emptied", "_index", "_leaves", "_patience", "_pushed", "_spare", "_window",
        "displaced", "heads", "lines", "number", "run", "run_watched_at",
    )  # fmt: skip

    def __init__(self, number: int, index: Index, classes: Classes, spare: list[Line]) -> None:
        self.number = number
        self.lines: dict[int, Line] = {}
        self.heads: list[tuple[int, Line]] = []
        self.run: Run | None = None
        #: The earliest instant at which somebody looks whether rows of the run have to leave.
        self.run_watched_at = NEVER
        #: Rows that lost their ring's order; None if there are none.
        self.displaced: Displaced | None = None
        self._index = index
        self._classes = classes
        self._spare = spare
        self._leaves = np.empty(0, dtype=np.int64)
        self._window = _WINDOW
        self._patience = 0
        self._emptied = 0
        self._pushed = 0

    def open_line(self, kind: int, seq: int) -> Line:
        """Make a line for a class that has none; `seq` is the first row it will get."""
        line = self._spare.pop() if self._spare else Line()
        line.kind = kind
        line.sift_at = SIFT_ROWS
        line.leaves = self._classes.all[kind].leaves[self.number]
        self.lines[kind] = line
        heappush(self.heads, (seq, line))
        return line

    def sift(self, line: Line) -> None:
        """Let go of ghosts inside a line that grew: what is not served would keep them for ever."""
        for _ in range(_SIFT_CHUNKS):
            line.ring.sift(self._may_be_ready)
        line.sift_at = len(line.ring) + SIFT_ROWS

    def settle(self) -> Line | None:
        """Make the top of the heap true and return its line; None if all lines are empty."""
        heads = self.heads
        while heads:
            seq, line = heads[0]
            head = line.ring.head()
            if head == seq:
                return line
            if head < 0:
                heappop(heads)
                self._retire(line)
            else:
                heapreplace(heads, (head, line))
        return None

    def note_emptied(self) -> None:
        """Forget lines that ran empty, when there are many: they need not surface by themselves."""
        self._emptied += 1
        if self._emptied * 2 > len(self.heads) + 16:
            self._show_heads()

    def _show_heads(self) -> None:
        self._emptied = 0
        for line in [line for line in self.lines.values() if not line.ring]:
            self._retire(line)
        self.heads = [(line.ring.head(), line) for line in self.lines.values()]
        heapify(self.heads)

    def _retire(self, line: Line) -> None:
        del self.lines[line.kind]
        if len(self._spare) < _SPARE_LINES_MAX:
            self._spare.append(line)

    def first_row(self) -> int:
        """The smallest row number of lines and run, -1 if there is none."""
        line = self.settle()
        first = -1 if line is None else self.heads[0][0]
        if self.run is not None:
            head = self.run.seqs[self.run.at]
            first = head if first < 0 else min(first, head)
        return first

    def second_row(self) -> int:
        """The smallest row number outside the line on top, or one below it; NEVER if none."""
        heads = self.heads
        # In a heap the second smallest is a child of the smallest.
        second = min(heads[1:3])[0] if len(heads) > 1 else NEVER
        if self.run is not None:
            second = min(second, self.run.seqs[self.run.at])
        return second

    def drop_first_row(self) -> None:
        """Let go of the row that `first_row` told."""
        run = self.run
        if run is not None and not (self.heads and self.heads[0][0] < run.seqs[run.at]):
            self.advance(1)
        else:
            self.heads[0][1].ring.drop(1)

    def advance(self, count: int) -> None:
        """Let go of the first rows of the run."""
        run = self.run
        assert run is not None
        run.at += count
        if run.at == len(run.seqs):
            self.run = None

    def push_displaced(self, place: int, seq: int) -> None:
        """Add a displaced row; now and then look for ghosts among the others."""
        if self.displaced is None:
            self.displaced = Displaced()
        self.displaced.push(place, seq)
        self._pushed += 1
        if self._pushed == BUFFER_ROWS:
            self._pushed = 0
            for _ in range(2):
                self.displaced.sift(self._may_be_ready)

    def pop_displaced(self) -> None:
        """Let go of the first displaced row."""
        assert self.displaced is not None
        self.displaced.pop()
        if not self.displaced:
            self.displaced = None

    def wants_run(self) -> bool:
        """Whether merging the lines pays; asked now and then, since counting costs."""
        self._patience -= 1
        if self._patience >= 0:
            return False
        rows = sum(len(line.ring) for _, line in self.heads)
        if rows >= _MERGE_DEPTH * len(self.heads) + 32:
            return True
        self._patience = len(self.heads)
        return False

    def merge(self) -> None:
        """Take the rows of a window out of all lines and make them the run, without ghosts."""
        first = self.heads[0][0]
        while True:
            copied: dict[int, array[int]] = {}
            chosen = [line for seq, line in self.heads if seq < first + self._window]
            counts = self._copy(chosen, first + self._window, copied)
            if len(counts) == len(chosen):
                break
            self._window //= 8
        cross_at = NEVER
        for line, count in zip(chosen, counts, strict=True):
            cross_at = min(cross_at, line.cross_at)
            line.ring.drop(count)
        self._show_heads()
        self._adapt_window(sum(counts), len(chosen), first)
        seqs = np.concatenate(
            [
                np.frombuffer(part, dtype=np.uint32).astype(np.uint64) + np.uint64(base)
                for base, part in copied.items()
            ]
        )
        seqs.sort()
        seqs = seqs[self.are_ready(seqs)]
        self.run = Run(seqs, cross_at) if len(seqs) else None

    @staticmethod
    def _copy(chosen: list[Line], limit: int, into: dict[int, array[int]]) -> list[int]:
        """Copy the rows below a limit; fewer counts than lines if they are too many."""
        counts: list[int] = []
        room = RUN_ROWS_MAX
        for line in chosen:
            count = line.ring.copy_below(limit, room + 1, into)
            room -= count
            if room < 0:
                break
            counts.append(count)
        return counts

    def _adapt_window(self, rows: int, lines: int, first: int) -> None:
        wanted = min(max(_RUN_ROWS, _RUN_ROWS_PER_LINE * lines), RUN_ROWS_MAX // 4)
        if rows < wanted:
            span = max(_WINDOW, self._index.next_seq - first)
            self._window = min(self._window * 2, span)
        elif rows > 3 * wanted:
            self._window //= 2

    def are_ready(self, seqs: Seqs) -> Flags:
        """Which rows are alive and in the order."""
        ready: Flags = self._index.column(seqs, "state") == READY
        return ready

    def _may_be_ready(self, seqs: Seqs) -> Flags:
        return may_be_ready(self._index, seqs)

    def crosses(self, seqs: Seqs) -> npt.NDArray[np.int64]:
        """When each row leaves this band by age; rows that are gone at once."""
        if len(self._leaves) < len(self._classes.all):
            self._leaves = np.array(
                [
                    known.leaves[self.number] if self.number <= known.top else NEVER
                    for known in self._classes.all
                ],
                dtype=np.int64,
            )
        kinds = (self._index.column(seqs, "dead") >> _HIGH).astype(np.int64)
        enqueued = (self._index.column(seqs, "enqueued") & _LOW48).astype(np.int64)
        return enqueued + self._leaves[kinds]

    def drop_ghosts(self) -> None:
        """Let go of the ghosts at the head of the line on top and of all ghosts of the run."""
        if self.run is not None:
            seqs = self.run.rest()
            alive = self.are_ready(seqs)
            if not alive.all():
                self.keep(alive)
        if self.heads:
            self.drop_line_ghosts(self.heads[0][1].ring)

    def drop_line_ghosts(self, ring: Ring) -> None:
        """Let go of the ghosts at the head of a ring."""
        few = _FEW_GHOSTS
        while ring and self._index.state_of(ring.head()) != READY:
            ring.drop(1)
            few -= 1
            if not few:
                break
        size = 64
        while ring and not few:
            alive = np.flatnonzero(self.are_ready(ring.peek_array(size)))
            if len(alive):
                ring.drop(int(alive[0]))
                return
            ring.drop(len(ring.peek_array(size)))
            size = 4_096

    def keep(self, chosen: Flags) -> None:
        """Let go of the other rows of the run."""
        run = self.run
        assert run is not None
        crosses = None if run.crosses is None else run.crosses[run.at :][chosen]
        seqs = run.rest()[chosen]
        self.run = None
        if len(seqs):
            self.run = Run(seqs, run.cross_at)
            self.run.crosses = crosses

    def end_below(self, seqs: array[int], limit: int, start: int, end: int) -> int:
        """Where a slice of sorted row numbers ends that stays below a limit."""
        return end if seqs[end - 1] < limit else bisect_left(seqs, limit, start, end)
