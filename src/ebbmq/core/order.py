"""Who is delivered next: highest band first, inside a band first in, first out by place.

Theory of operation. All messages of a class fade in step, so the first row of a line (see `band`)
is the first of it to leave the band, and leaving means: from the head of the class's line in band b
to the tail of its line in band b - 1, which keeps every line sorted. A row that belongs still lower
goes on from there; it never skips a band, since it could overtake older rows of its class. Rows
that lost their line's order (retried, delayed, released) wait in the band's displaced set and are
compared with the others by place.

Crossings are lazy and exact: a row may stand in a higher band than it belongs to, never in a lower
one, and the head of the highest band is checked against the clock before it is taken. `cross` does
the same work ahead of time, in slices, so that a lease after a quiet hour is not the one that pays.
A displaced row crosses only when it surfaces.

Who takes rows one by one gets them from the front: some that are known to come next. They are put
back where they were as soon as anything else is asked, or told that could come before them.

Invariants:
1. Only rows that are READY and open to lease are in here; a row that died meanwhile is a ghost
   which the partition skips.
2. Among rows that were never displaced, places and instants of publishing rise with row numbers.
3. A bit of `_mask` is set for every band that has a line, a run or displaced rows.
4. Every line with rows that can leave, and every such run, has an entry in `_crossings`: early
   perhaps, never late; there is one for a (band, class) at most.
5. Rows at the front come before all others until `_front_until_ms`; their source is not empty.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ebbmq.core.band import Band, Line, Run
from ebbmq.core.classes import NEVER, Classes, OrderClass
from ebbmq.core.exact import ExactOrder
from ebbmq.core.row import HIGH, LOW48, READY
from ebbmq.core.values import distinct_values

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.index import Index
    from ebbmq.core.ring import Ring

    Seqs = npt.NDArray[np.uint64]

__all__ = ["BandedOrder", "ExactOrder", "Order"]

_RUN: Final = -1
#: So many rows cross one by one before it pays to look at many at once.
_FEW_ROWS: Final = 4
_SLICE: Final = 256
_SHORT_SLICE: Final = 32
_CHUNK: Final = 4_096
#: So many rows are taken to the front for those who take one at a time.
_FRONT_ROWS: Final = 64
_LOW48: Final = np.uint64(LOW48)


class Order(Protocol):
    """What the partition asks of an order; banded and exact are the two there are."""

    #: The band of the row that `pop_one` gave last; -1 where the row must be asked.
    popped_band: int

    def extend(self, known: OrderClass, first: int, count: int, place: int, at_ms: int) -> None:
        """Append `count` consecutive rows published at `at_ms` with places from `place`."""

    def enter(self, seq: int, place: int, now_ms: int) -> None:
        """Let in one row that lost its ring's order."""

    def pop(self, count: int, now_ms: int) -> list[int]:
        """Take up to `count` rows in delivery order; ghosts may be among them."""

    def pop_one(self, now_ms: int) -> int:
        """Take the row delivered next, which may be a ghost; -1 if there is none."""

    def pop_oldest(self, now_ms: int) -> int:
        """Take the row with the smallest place of any band, -1 if there is none."""

    def pop_least(self, now_ms: int) -> int:
        """Take the row delivered last among the oldest of the lowest band, -1 if there is none."""

    def peek(self, count: int, now_ms: int) -> list[int]:
        """The next rows in delivery order, left where they are."""

    def cross(self, now_ms: int, budget: int) -> int:
        """Do crossings that are due, at most about `budget` rows; returns how many were moved."""

    def next_crossing_ms(self) -> int:
        """The earliest instant at which `cross` may have work."""

    def load(
        self,
        classes: npt.NDArray[np.int64],
        seqs: npt.NDArray[np.uint64],
        enqueued: npt.NDArray[np.uint64],
        now_ms: int,
    ) -> None:
        """Fill an empty order with rows sorted by seq whose place was never displaced."""


class BandedOrder:
    """Bands of decayed importance; see the module's theory of operation."""

    def __init__(self, index: Index, classes: Classes, failure_penalty: int) -> None:
        self._index = index
        self._classes = classes
        self._penalty = failure_penalty
        self._bands: list[Band] = []
        self._mask = 0
        #: (instant, band, class) of lines and runs that will have to be looked at.
        self._crossings: list[tuple[int, int, int]] = []
        self._watched: set[tuple[int, int]] = set()
        self._spare: list[Line] = []
        #: Rows that are delivered next, one by one, the last of them first.
        self._front: list[int] = []
        self._front_source: Run | Ring | None = None
        self._front_band = 0
        self.popped_band = -1
        self._front_until_ms = 0

    def _band(self, number: int) -> Band:
        while len(self._bands) <= number:
            self._bands.append(Band(len(self._bands), self._index, self._classes, self._spare))
        return self._bands[number]

    def extend(self, known: OrderClass, first: int, count: int, place: int, at_ms: int) -> None:
        """Append `count` consecutive rows published at `at_ms` with places from `place`."""
        top = known.top
        if self._front and top > self._front_band:
            self._put_back()
        if top < len(self._bands):
            band = self._bands[top]
            line = band.lines.get(known.number)
            if line is not None and line.ring:
                line.ring.extend_range(first, count)
                if len(line.ring) > line.sift_at:
                    band.sift(line)
                return
        self._line(top, known.number, first, at_ms).ring.extend_range(first, count)

    def _line(self, number: int, kind: int, seq: int, at_ms: int) -> Line:
        """The line to which row `seq` of a class, published at `at_ms`, is about to be added."""
        band = self._band(number)
        line = band.lines.get(kind)
        if line is None:
            line = band.open_line(kind, seq)
            self._mask |= 1 << number
        elif line.ring:
            return line
        if line.leaves == NEVER:
            line.cross_at = NEVER
        else:
            line.cross_at = at_ms + line.leaves
            if (number, kind) not in self._watched:
                self._watched.add((number, kind))
                heappush(self._crossings, (line.cross_at, number, kind))
        return line

    def enter(self, seq: int, place: int, now_ms: int) -> None:
        """Let in one row that lost its ring's order."""
        row = self._index.read(seq)
        assert row is not None
        number = self._effective_band(row, now_ms)
        if self._front and number >= self._front_band:
            self._put_back()
        self._band(number).push_displaced(place, seq)
        self._mask |= 1 << number

    def _effective_band(self, row: tuple[int, ...], now_ms: int) -> int:
        known = self._classes.all[row[6] >> HIGH]
        band = known.band_at(now_ms - (row[5] & LOW48))
        if self._penalty:
            band = max(min(1, band), band - (row[5] >> HIGH) * self._penalty)
        return band

    def pop(self, count: int, now_ms: int) -> list[int]:
        """Take up to `count` rows in delivery order; ghosts may be among them."""
        if self._front:
            self._put_back()
        out: list[int] = []
        while self._mask and len(out) < count:
            band = self._bands[self._mask.bit_length() - 1]
            if len(band.heads) == 1 and band.run is None and band.displaced is None:
                line = band.heads[0][1]
                if line.cross_at > now_ms and line.ring:
                    self._take_alone(band, line, count, out)
                    continue
            self._serve(band, count, now_ms, out)
        return out

    def pop_one(self, now_ms: int) -> int:
        """Take the row delivered next, which may be a ghost; -1 if there is none."""
        if self._front and now_ms < self._front_until_ms:
            return self._front.pop()
        self._put_back()
        self.popped_band = -1
        if not self._mask:
            return -1
        self._look_ahead(self._bands[self._mask.bit_length() - 1], now_ms)
        if self._front:
            return self._front.pop()
        found = self.pop(1, now_ms)
        return found[0] if found else -1

    def _look_ahead(self, band: Band, now_ms: int) -> None:
        """Take rows to the front that nothing but what is told to this order can come before."""
        if band.displaced is not None:
            return
        run = band.run
        if run is not None:
            first = band.heads[0][0] if band.heads else NEVER
            if run.cross_at > now_ms and run.seqs[run.at] < first:
                self._front = run.take_below(first, _FRONT_ROWS)
                self._front_source, self._front_until_ms = run, run.cross_at
        elif len(band.heads) == 1:
            line = band.heads[0][1]
            if line.cross_at > now_ms:
                self._front = line.ring.take_some(_FRONT_ROWS)
                self._front_source, self._front_until_ms = line.ring, line.cross_at
        if self._front:
            self._front_band = self.popped_band = band.number
            self._front.reverse()

    def _put_back(self) -> None:
        """Leave what is at the front where it was taken from."""
        if self._front:
            assert self._front_source is not None
            self._front_source.give_back(len(self._front))
            self._front = []

    def _take_alone(self, band: Band, line: Line, count: int, out: list[int]) -> None:
        """Take from a line that is alone in its band; its entry in the heap may lag behind."""
        ring = line.ring
        if count == 1:
            out.append(seq := ring.pop())
        else:
            taken = ring.pop_many(count - len(out))
            out += taken
            seq = taken[0]
        if self._index.state_of(seq) != READY:
            band.drop_line_ghosts(ring)

    def _serve(self, band: Band, count: int, now_ms: int, out: list[int]) -> None:
        """Take rows from a band, or bring it one step nearer to the truth."""
        line = band.settle()
        if line is not None and band.run is None and len(band.heads) > 1 and band.wants_run():
            if self.next_crossing_ms() <= now_ms:
                # Whole lines cross for less than the rows of a run.
                self.cross(now_ms, NEVER)
                return
            band.merge()
            self._watch_run(band)
            line = band.settle()
        run = band.run
        before = len(out)
        if run is not None and (line is None or run.seqs[run.at] < band.heads[0][0]):
            self._serve_run(band, count - before, now_ms, out)
        elif line is not None:
            self._serve_line(band, line, count - before, now_ms, out)
        elif band.displaced is not None:
            self._serve_displaced(band, NEVER, count - before, now_ms, out)
        else:
            self._mask &= ~(1 << band.number)
        if len(out) > before and self._index.state_of(out[before]) != READY:
            band.drop_ghosts()

    def _serve_line(self, band: Band, line: Line, room: int, now_ms: int, out: list[int]) -> None:
        """Take from the line on top of the heap."""
        if line.cross_at <= now_ms:
            self._cross_line(band, line, now_ms, NEVER)
            return
        ring = line.ring
        limit = band.second_row()
        if band.displaced is not None:
            seqs = ring.peek(min(room, _SHORT_SLICE))
            if seqs[-1] >= limit:
                del seqs[bisect_left(seqs, limit) :]
            end = self._before_displaced(band, seqs, room, now_ms, out)
            ring.drop(end)
            out += seqs[:end]
        elif limit == NEVER:
            out += ring.pop_many(room)
        else:
            out.append(ring.pop())
            if room > 1 and 0 <= ring.head() < limit:
                out += ring.take_while_below(limit, min(room - 1, _SLICE))

    def _serve_run(self, band: Band, room: int, now_ms: int, out: list[int]) -> None:
        """Take from the run, up to the head of any line."""
        run = band.run
        assert run is not None
        seqs, at = run.seqs, run.at
        end = min(at + room, len(seqs))
        if band.heads:
            end = band.end_below(seqs, band.heads[0][0], at, end)
        if run.cross_at <= now_ms:
            end = self._uncrossed(band, at, end, now_ms)
        if end > at and band.displaced is not None:
            end = at + self._before_displaced(band, seqs[at:end].tolist(), room, now_ms, out)
        if end > at:
            out += seqs[at:end]
            band.advance(end - at)

    def _uncrossed(self, band: Band, at: int, end: int, now_ms: int) -> int:
        """Where a slice of the run ends that has not left the band; lowers it if it is empty."""
        run = band.run
        assert run is not None
        if run.crosses is None:
            run.crosses = band.crosses(np.frombuffer(run.seqs, dtype=np.uint64))
        if end == at + 1 and run.crosses[at] > now_ms:
            return end
        crossed = np.flatnonzero(run.crosses[at:end] <= now_ms)
        if not len(crossed):
            return end
        if crossed[0]:
            return at + int(crossed[0])
        staying = np.flatnonzero(run.crosses[at:] > now_ms)
        count = int(staying[0]) if len(staying) else len(run.seqs) - at
        self._lower(band, run.rest()[:count])
        band.advance(count)
        return at

    def _before_displaced(
        self, band: Band, seqs: list[int], room: int, now_ms: int, out: list[int]
    ) -> int:
        """How many of these rows come before the displaced ones; serves those if none does."""
        assert band.displaced is not None
        head = band.displaced.head()
        assert head is not None
        row = self._index.read(seqs[0])
        if row is not None and row[8] & LOW48 > head[0]:
            self._serve_displaced(band, row[8] & LOW48, room, now_ms, out)
            return 0
        before, step = 0, 1
        while before + 1 < len(seqs):
            # Stride while that stays before the head of the displaced, then in ever smaller steps.
            probe = min(before + step, len(seqs) - 1)
            if self._is_before(seqs, before, probe, head[0]):
                before, step = probe, step * 2
            elif probe == before + 1:
                break
            else:
                seqs = seqs[:probe]
                step = 1
        return before + 1

    def _is_before(self, seqs: list[int], start: int, probe: int, place: int) -> bool:
        """Whether a row, or the last one after `start` that is no ghost, is before a place."""
        for at in range(probe, start, -1):
            row = self._index.read(seqs[at])
            if row is not None:
                return row[8] & LOW48 < place
        return True

    def _serve_displaced(
        self, band: Band, limit_place: int, room: int, now_ms: int, out: list[int]
    ) -> None:
        """Take displaced rows below a place, sorting out those that are gone or belong lower."""
        displaced = band.displaced
        assert displaced is not None
        if room == 1:
            pairs = [displaced.pop()]
        else:
            pairs = displaced.pop_below(limit_place, min(room, _SLICE))
        here = self._standing(band, pairs, now_ms)
        out += here
        if room == 1 and not here:
            # More of the kind may follow; find them many at a time.
            pairs = displaced.pop_many(_SLICE)
            staying = set(self._standing(band, pairs, now_ms))
            kept = [pair for pair in pairs if pair[1] in staying]
            displaced.extend([place for place, _ in kept], [seq for _, seq in kept])
        if not displaced:
            band.displaced = None

    def _standing(self, band: Band, pairs: list[tuple[int, int]], now_ms: int) -> list[int]:
        """The rows that belong to this band; lets the fallen ones in where they belong."""
        if len(pairs) > _FEW_ROWS and not self._penalty:
            seqs = np.array([seq for _, seq in pairs], dtype=np.uint64)
            stays = band.are_ready(seqs) & (band.crosses(seqs) > now_ms)
            if stays.all():
                return [seq for _, seq in pairs]
        here: list[int] = []
        for place, seq in pairs:
            row = self._index.read(seq)
            if row is None or row[0] != READY:
                continue
            if self._effective_band(row, now_ms) >= band.number:
                here.append(seq)
            else:
                self.enter(seq, place, now_ms)
        return here

    def _cross_line(self, band: Band, line: Line, now_ms: int, budget: int) -> int:
        """Move the rows at the head of a line that left its band; corrects `cross_at`.

        A chunk all of which left is handed over as it is; what is left of a chunk is found by its
        ages, since rows of a line are ordered by age.
        """

        def has_left(first: int, last: int) -> bool:
            newest = self._index.enqueued_at(last)
            is_old = bool(newest) and newest + line.leaves <= now_ms
            return is_old and bool(self._index.enqueued_at(first))

        moved = self._cross_few(band, line, now_ms)
        ring = line.ring
        while ring and line.cross_at <= now_ms and moved < budget:
            first, last = ring.first_chunk()
            if has_left(first, last):
                oldest = self._index.enqueued_at(first)
                below = self._line(band.number - 1, line.kind, first, oldest).ring
                moved += ring.give_chunks(below, has_left, budget - moved)
            else:
                found = self._cross_part(band, line, now_ms)
                moved += found or self._drop_gone(band, line, now_ms)
        if not ring:
            band.note_emptied()
        lower = self._bands[band.number - 1]
        reached = lower.lines.get(line.kind)
        if reached is not None and len(reached.ring) > reached.sift_at:
            lower.sift(reached)
        return moved

    def _cross_few(self, band: Band, line: Line, now_ms: int) -> int:
        """Move single rows from the head of a line while there are few."""
        ring = line.ring
        for moved in range(_FEW_ROWS):
            seq = ring.head()
            if seq < 0:
                return moved
            row = self._index.read(seq)
            if row is not None and row[0] == READY:
                at_ms = row[5] & LOW48
                line.cross_at = at_ms + line.leaves
                if line.cross_at > now_ms:
                    return moved
                self._line(band.number - 1, line.kind, seq, at_ms).ring.push(seq)
            ring.pop()
        return _FEW_ROWS

    def _cross_part(self, band: Band, line: Line, now_ms: int) -> int:
        """Move the rows of the first chunk that left; returns how many it found.

        Rows that are gone do not tell their age; taken for such that stay, they can only hide
        rows that left, never make one leave too early.
        """
        seqs = line.ring.peek_array(_CHUNK)
        low, high = 0, len(seqs)
        while low < high:
            middle = (low + high) // 2
            at_ms = self._index.enqueued_at(int(seqs[middle]))
            if at_ms and at_ms + line.leaves <= now_ms:
                low = middle + 1
            else:
                high = middle
        if low:
            line.ring.drop(low)
            first = int(seqs[0])
            at_ms = self._index.enqueued_at(first)
            below = self._line(band.number - 1, line.kind, first, at_ms)
            below.ring.extend_array(seqs[:low])
        return low

    def _drop_gone(self, band: Band, line: Line, now_ms: int) -> int:
        """Let go of ghosts at the head of a line; looks at the rows that follow one by one."""
        before = len(line.ring)
        band.drop_line_ghosts(line.ring)
        return before - len(line.ring) + self._cross_few(band, line, now_ms)

    def _lower(self, band: Band, seqs: Seqs) -> None:
        """Add rows that left the run of a band to the lines of the band below."""
        seqs = seqs[band.are_ready(seqs)]
        kinds = (self._index.column(seqs, "dead") >> np.uint64(HIGH)).astype(np.int64)
        for kind in distinct_values(kinds).tolist():
            own = seqs[kinds == kind]
            first = int(own[0])
            line = self._line(band.number - 1, kind, first, self._index.enqueued_at(first))
            line.ring.extend_array(own)

    def _watch_run(self, band: Band) -> None:
        run = band.run
        if run is not None and run.cross_at < band.run_watched_at:
            band.run_watched_at = run.cross_at
            heappush(self._crossings, (run.cross_at, band.number, _RUN))

    def _cross_run(self, band: Band, now_ms: int) -> int:
        """Move all rows of a run that left its band."""
        run = band.run
        if run is None or run.cross_at > now_ms:
            return 0
        if run.crosses is None:
            run.crosses = band.crosses(np.frombuffer(run.seqs, dtype=np.uint64))
        staying = run.crosses[run.at :] > now_ms
        self._lower(band, run.rest()[~staying])
        band.keep(staying)
        if band.run is not None:
            assert band.run.crosses is not None
            band.run.cross_at = int(band.run.crosses.min())
        return len(staying) - int(np.count_nonzero(staying))

    def cross(self, now_ms: int, budget: int) -> int:
        """Do crossings that are due, at most about `budget` rows; returns how many were moved."""
        self._put_back()
        moved = 0
        while self._crossings and self._crossings[0][0] <= now_ms and moved < budget:
            instant, number, kind = heappop(self._crossings)
            band = self._bands[number]
            # First the run: its rows are older than those of the lines.
            moved += self._cross_run(band, now_ms)
            if kind == _RUN:
                if instant == band.run_watched_at:
                    band.run_watched_at = NEVER
                    self._watch_run(band)
                continue
            line = band.lines.get(kind)
            if line is not None and line.ring and line.cross_at <= now_ms:
                moved += self._cross_line(band, line, now_ms, budget - moved)
            if line is not None and line.ring:
                heappush(self._crossings, (line.cross_at, number, kind))
            else:
                self._watched.discard((number, kind))
        return moved

    def next_crossing_ms(self) -> int:
        """The earliest instant at which `cross` may have work."""
        return self._crossings[0][0] if self._crossings else NEVER

    def pop_oldest(self, now_ms: int) -> int:
        """Take the row with the smallest place of any band, -1 if there is none."""
        self._put_back()
        chosen, seq, place = self._oldest_in_line()
        for band in self._bands:
            head = self._live_displaced(band)
            if head is not None and head[0] < place:
                chosen, (place, seq) = band, head
        if chosen is None:
            return -1
        if chosen.displaced is not None and chosen.displaced.head() == (place, seq):
            chosen.pop_displaced()
        else:
            chosen.drop_first_row()
        return seq

    def _oldest_in_line(self) -> tuple[Band | None, int, int]:
        """The band, number and place of the oldest row that was never displaced."""
        while True:
            found = [(seq, band.number) for band in self._bands if (seq := band.first_row()) >= 0]
            if not found:
                return None, -1, NEVER
            seq, number = min(found)
            row = self._index.read(seq)
            if row is not None and row[0] == READY:
                return self._bands[number], seq, row[8] & LOW48
            self._bands[number].drop_ghosts()

    def _live_displaced(self, band: Band) -> tuple[int, int] | None:
        """The first displaced row of a band that is no ghost."""
        while band.displaced is not None:
            head = band.displaced.head()
            if head is not None and self._index.state_of(head[1]) == READY:
                return head
            band.pop_displaced()
        return None

    def pop_least(self, now_ms: int) -> int:
        """Take the oldest row of the lowest band, -1 if there is none.

        A displaced row counts for the band in which it stands: it may belong lower by now.
        """
        self.cross(now_ms, NEVER)
        while self._mask:
            band = self._bands[(self._mask & -self._mask).bit_length() - 1]
            out: list[int] = []
            self._serve(band, 1, now_ms, out)
            if out and self._index.state_of(out[0]) == READY:
                return out[0]
        return -1

    def peek(self, count: int, now_ms: int) -> list[int]:
        """The next rows in delivery order, left where they are."""
        self.cross(now_ms, NEVER)
        out: list[int] = []
        fallen: dict[int, list[tuple[int, int]]] = {}
        for number in range(len(self._bands) - 1, -1, -1):
            if len(out) >= count:
                break
            if self._mask >> number & 1 or number in fallen:
                out += self._peek_band(self._bands[number], count - len(out), now_ms, fallen)
        return out

    def _peek_band(
        self, band: Band, count: int, now_ms: int, fallen: dict[int, list[tuple[int, int]]]
    ) -> list[int]:
        """The next rows of a band; displaced rows that belong lower are noted in `fallen`."""
        seqs = self._peek_lines(band, count)
        pairs = sorted(
            fallen.pop(band.number, []) + self._peek_displaced(band, count, now_ms, fallen)
        )
        if not pairs:
            return seqs
        places = self._index.column(np.array(seqs, dtype=np.uint64), "place") & _LOW48
        pairs += zip(places.tolist(), seqs, strict=True)
        pairs.sort()
        return [seq for _, seq in pairs[:count]]

    def _peek_displaced(
        self, band: Band, count: int, now_ms: int, fallen: dict[int, list[tuple[int, int]]]
    ) -> list[tuple[int, int]]:
        if band.displaced is None:
            return []
        wanted = count
        while True:
            here: list[tuple[int, int]] = []
            lower: list[tuple[int, tuple[int, int]]] = []
            pairs = band.displaced.peek(wanted)
            for pair in pairs:
                row = self._index.read(pair[1])
                if row is None or row[0] != READY:
                    continue
                number = self._effective_band(row, now_ms)
                if number >= band.number:
                    here.append(pair)
                else:
                    lower.append((number, pair))
            if len(here) >= count or len(pairs) < wanted:
                break
            wanted *= 4
        for number, pair in lower:
            fallen.setdefault(number, []).append(pair)
        return here

    def _peek_lines(self, band: Band, count: int) -> list[int]:
        """The next rows of the lines and the run of a band."""
        rings = [line.ring for line in band.lines.values() if line.ring]
        share = count if len(rings) <= 1 else 3 * count // (2 * len(rings)) + 32
        while True:
            parts = [ring.to_numpy(share) for ring in rings]
            cut = [
                part[-1] for part, ring in zip(parts, rings, strict=True) if len(ring) > len(part)
            ]
            if band.run is not None:
                parts.append(band.run.rest())
            if not parts:
                return []
            seqs = np.concatenate(parts)
            seqs.sort()
            if cut:
                seqs = seqs[: seqs.searchsorted(min(cut), "right")]
            found = seqs[:count]
            if not band.are_ready(found).all():
                found = seqs[band.are_ready(seqs)][:count]
            if len(found) >= count or not cut:
                rows: list[int] = found.tolist()
                return rows
            share *= 4

    def load(
        self,
        classes: npt.NDArray[np.int64],
        seqs: npt.NDArray[np.uint64],
        enqueued: npt.NDArray[np.uint64],
        now_ms: int,
    ) -> None:
        """Fill an empty order with rows sorted by seq whose place was never displaced."""
        if not len(seqs):
            return
        if (classes == classes[0]).all():
            only = self._classes.all[int(classes[0])]
            self._load_class(only, seqs, enqueued.astype(np.int64), now_ms)
            return
        by_class = np.argsort(classes, kind="stable")
        cuts = np.flatnonzero(np.diff(classes[by_class])) + 1
        for mine in np.split(by_class, cuts):
            known = self._classes.all[int(classes[mine[0]])]
            self._load_class(known, seqs[mine], enqueued[mine].astype(np.int64), now_ms)

    def _load_class(
        self, known: OrderClass, seqs: Seqs, enqueued: npt.NDArray[np.int64], now_ms: int
    ) -> None:
        """Add the rows of one class, oldest first, to the lines of the bands they belong to."""
        start = 0
        for number in range(known.top + 1):
            end = len(seqs)
            if number < known.top and start < end:
                # Never too low, should a clock have gone back: the first row that stays higher.
                after = now_ms - known.leaves[number + 1]
                if int(enqueued[start]) > after:
                    continue
                higher = enqueued[start:] > after
                end = start + int(higher.argmax()) if higher.any() else end
            if end > start:
                line = self._line(number, known.number, int(seqs[start]), int(enqueued[start]))
                line.ring.extend_array(seqs[start:end])
                start = end
