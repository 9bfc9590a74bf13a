"""Which messages a journal should have, by their numbers, and which of them are missing.

Numbers of a partition rise by one from message to message, in the order of the log, and each META
fact says how far they had come. A number that no record brings lies in a gap between two that are
known. There are three reasons for a gap:

1. Something between cannot be read: messages are lost, unless a later fact says that they left.
2. A segment between was given back: its messages had left, or are relocated. Where 1 and 2 meet,
   META facts say which messages the segments beside those that were given back have (`spans`).
3. The store was opened after a kill, and numbers were passed over, LOST_NUMBERS_MAX at a time; the
   META fact that an opening begins with comes right after that.

What cannot be told apart is told as a doubt, and not as a loss.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ebbmq.node.catalog import Declared

    #: By segment and partition, the first and the last message whose record is in it.
    Spans = dict[int, dict[int, tuple[int, int]]]


class Missing(NamedTuple):
    """Numbers `first` .. `end - 1` of a partition; in doubt, some of them were never lost."""

    pid: int
    first: int
    end: int
    #: The segments that they can have been in.
    segments: list[int]
    in_doubt: bool


class _Gap(NamedTuple):
    pid: int
    first: int
    end: int
    #: Where in the list of holes it starts and ends.
    holes: range
    #: A start of the broker lies at its end, and none before.
    ends_at_start: bool


class Numbering:
    """Follows the numbers along a log; told of everything in the order it is read."""

    def __init__(self) -> None:
        #: Segments in which something cannot be read, and those that are not there.
        self._holes: list[int] = []
        self._absent: set[int] = set()
        #: Those of the holes of which nobody knows what was in them, by their place in the list.
        self._unknown: list[int] = []
        #: By partition: the number that comes next, and how many holes were passed by then.
        self._next: dict[int, tuple[int, int]] = {}
        #: By partition, in order.
        self._gaps: dict[int, list[_Gap]] = {}
        #: Runs that left, where they are or may come to be in a gap.
        self._left: dict[int, list[range]] = {}
        self._epoch = 0
        self._spans: Spans = {}
        #: What was declared last is known.
        self.is_declared = False

    @property
    def has_unread(self) -> bool:
        """Whether something cannot be read in segments that are there."""
        return any(segment not in self._absent for segment in self._holes)

    def unread(self, segment: int) -> None:
        """Something here cannot be read, and nobody knows what it was."""
        self._unknown.append(len(self._holes))
        self._holes.append(segment)
        self.is_declared = False

    def absent(self, segment: int) -> None:
        """A segment is not there."""
        self._unknown.append(len(self._holes))
        self._holes.append(segment)
        self._absent.add(segment)

    def know(self, spans: Spans) -> None:
        """Which messages segments have."""
        self._spans.update(spans)

    def begin(self, next_seqs: dict[int, int], epoch: int) -> None:
        """How far the numbers had come where reading begins."""
        self._epoch = epoch
        self._next = {pid: (next_seq, 0) for pid, next_seq in next_seqs.items()}
        self.is_declared = True

    def declared(self, told: Declared) -> None:
        """How far the numbers had come."""
        is_start = told.epoch == self._epoch + 1
        self._epoch = max(self._epoch, told.epoch)
        for queue in told.queues:
            for pid, next_seq in zip(queue.pids, queue.next_seqs, strict=True):
                self._reached(pid, next_seq, next_seq, ends_at_start=is_start)
        self.know(told.spans)
        self.is_declared = True

    def published(self, pid: int, first: int, count: int) -> None:
        """A record brings these messages."""
        self._reached(pid, first, first + count)

    def lost(self, pid: int, first: int, count: int, segment: int) -> None:
        """A record brought these messages, and they cannot be read."""
        self._reached(pid, first, first)
        self._holes.append(segment)
        self._reached(pid, first + count, first + count)

    def _reached(self, pid: int, first: int, end: int, *, ends_at_start: bool = False) -> None:
        expected, passed = self._next.get(pid, (1, 0))
        holes = len(self._holes)
        if expected < first and passed < holes:
            gap = _Gap(pid, expected, first, range(passed, holes), ends_at_start)
            self._gaps.setdefault(pid, []).append(gap)
        self._next[pid] = (max(expected, end), holes)

    def left(self, pid: int, seqs: range) -> None:
        """Messages are known to have left: nobody misses them."""
        if not self._holes:
            return
        gaps = self._gaps.get(pid, ())
        at = bisect_right(gaps, seqs.start, key=_end_of)
        is_in_gap = at < len(gaps) and gaps[at].first < seqs.stop
        if is_in_gap or seqs.stop > self._next.get(pid, (1, 0))[0]:
            self._left.setdefault(pid, []).append(seqs)

    def has_left(self, pid: int, first: int, end: int) -> set[int]:
        """Those of these messages that are known to have left."""
        runs = self._left.get(pid, ())
        return {seq for run in runs for seq in range(max(run.start, first), min(run.stop, end))}

    def open_ended(self, pids: Iterable[int], expected: Collection[int]) -> list[int]:
        """Partitions of which nothing is known after something that cannot be read."""
        lost = [
            at
            for at in self._unknown
            if self._holes[at] not in self._absent or self._holes[at] in expected
        ]
        if not lost:
            return []
        return [pid for pid in pids if self._next.get(pid, (1, 0))[1] <= lost[-1]]

    def missing(self, expected: Collection[int]) -> Iterator[Missing]:
        """What no record brings though it should; `expected` are the segments there should be."""
        for gap in chain.from_iterable(self._gaps.values()):
            holes = list(dict.fromkeys(self._holes[at] for at in gap.holes))
            absent = [s for s in holes if s in self._absent]
            given_back = [s for s in absent if s not in expected or not self.is_declared]
            unread = [s for s in holes if s not in given_back]
            if not unread:
                if any(s in expected for s in absent):
                    yield Missing(gap.pid, gap.first, gap.end, [], in_doubt=True)
            elif not given_back:
                yield _without_jump(gap, gap.first, gap.end, unread)
            elif all(segment in self._spans for segment in unread):
                for segment in unread:
                    first, last = self._spans[segment].get(gap.pid, (0, -1))
                    start, end = max(first, gap.first), min(last + 1, gap.end)
                    if start < end:
                        yield _without_jump(gap, start, end, [segment])
            else:
                yield Missing(gap.pid, gap.first, gap.end, unread, in_doubt=True)


def _end_of(gap: _Gap) -> int:
    return gap.end


def _without_jump(gap: _Gap, first: int, end: int, segments: list[int]) -> Missing:
    """A part of a gap, less the numbers that were passed over when the store was opened."""
    jumps, count = divmod(end - first, limits.LOST_NUMBERS_MAX)
    if jumps and gap.ends_at_start and end == gap.end:
        end = first + count
    in_doubt = count > 0 and end - first > count
    return Missing(gap.pid, first, end if count else first, segments, in_doubt)
