"""What the facts of a segment tell of messages, to be said again before the segment goes.

A segment tells of ten thousands of messages. What is done with all of them in one call stops every
thread until it is over, so numbers are kept by page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import held, pins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Seqs:
    """Numbers of messages, by page."""

    def __init__(self) -> None:
        self._pages: dict[int, set[int]] = {}

    def add(self, seqs: Sequence[int]) -> None:
        """Have these among them."""
        if seqs and min(seqs) // limits.PAGE_ROWS == max(seqs) // limits.PAGE_ROWS:
            self._pages.setdefault(seqs[0] // limits.PAGE_ROWS, set()).update(seqs)
            return
        for seq in seqs:
            self._pages.setdefault(seq // limits.PAGE_ROWS, set()).add(seq)

    def __len__(self) -> int:
        return sum(map(len, self._pages.values()))

    def __contains__(self, seq: int) -> bool:
        return seq in self.of(seq // limits.PAGE_ROWS)

    def pages(self) -> list[int]:
        """The pages that have some."""
        return list(self._pages)

    def of(self, page: int) -> set[int]:
        """Those of a page."""
        return self._pages.get(page, set())

    def keep(self, page: int, seqs: Sequence[int]) -> None:
        """Of a page have only these."""
        if seqs:
            self._pages[page] = set(seqs)
        else:
            del self._pages[page]


class Told:
    """Runs that left, and messages whose state changed."""

    def __init__(self) -> None:
        self.gone: list[tuple[int, int]] = []
        self.changed = Seqs()
        #: Messages whose copies were told of.
        self.held = Seqs()
        #: Messages of which was told what a plan holds them to.
        self.pinned = Seqs()
        #: Messages of which was told in which old segment they are.
        self.moved = Seqs()
        #: What became of advice was told.
        self.advised = False

    def copied(self, count: int) -> Iterator[list[int]]:
        """Messages of which was told where they are, or are to be, so many at a time."""
        for page in sorted({*self.held.pages(), *self.pinned.pages()}):
            seqs = sorted(self.held.of(page) | self.pinned.of(page))
            yield from (seqs[at : at + count] for at in range(0, len(seqs), count))

    def join_gone(self) -> None:
        """Have each message among those that left once, and neighbours in one run."""
        spans = _joined((first, first + count - 1) for first, count in self.gone)
        self.gone = [(first, last - first + 1) for first, last in spans]

    def gone_within(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Of joined runs the parts inside of these inclusive spans, each message once.

        Spans of segments overlap: stragglers of all of them may be in one old segment.
        """
        out: list[tuple[int, int]] = []
        runs = iter(self.gone)
        run = next(runs, None)
        for low, high in _joined(spans):
            while run is not None and run[0] <= high:
                first, stop = max(run[0], low), min(run[0] + run[1], high + 1)
                if first < stop:
                    out.append((first, stop - first))
                if run[0] + run[1] > high + 1:
                    break
                run = next(runs, None)
        return out

    def note(self, kind: int, count: int, first: int, payload: memoryview) -> None:
        """Take in one fact."""
        if kind == fact.ACK:
            self.gone += fact.acked(payload)
        elif kind == fact.REMOVE:
            records = np.frombuffer(payload, dtype=fact.REMOVAL_DTYPE)
            self.gone += fact.runs_of(records["seq"].tolist())
        elif kind == fact.STATE:
            self.changed.add([seq for seq, _, _ in fact.states(payload, count)])
        elif kind == fact.GRANT:
            for start, rows, _ in fact.granted(payload).runs:
                self.changed.add(range(start, start + rows))
        elif kind in (fact.HELD, fact.GONE):
            self.held.add(list(held.seqs_of(kind, payload)))
        elif kind == fact.PINNED:
            self.pinned.add(list(pins.seqs_of(payload)))
        elif kind == fact.MOVED:
            self.moved.add(fact.moved_to(payload, first)[2])
        elif kind == fact.ADVISED:
            self.advised = True


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Inclusive spans in order, those that overlap or follow one another as one."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out
