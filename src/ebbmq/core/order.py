"""Who is delivered next: highest band first, inside a band first in, first out by place.

Theory of operation. One ring of row numbers per (class, band). All messages of a class fade in
step, so the head of a ring is the first of it to leave the band, and leaving means: from the head of
band b to the tail of band b - 1, which keeps every ring sorted by place. A band merges the heads of
its rings by smallest place with a heap of (place, class, instant at which that head leaves the
band). Rows that lost their ring's order (retried, delayed, released) wait in the band's `Displaced`
set, one more entry of the heap.

Crossings are lazy and exact: a row may stand in a higher band than it belongs to, never in a lower
one, and the head of the highest band is checked against the clock before it is taken. `cross` does
the same work ahead of time, in slices, so that a lease after a quiet hour is not the one that pays.

Invariants:
1. Only rows that are READY and open to lease are in here; a row that died meanwhile is a ghost
   which the partition skips.
2. Every non-empty ring and every non-empty displaced set has an entry in its band's heap with its
   true head; entries that are not true any more are dropped when they surface.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ebbmq.core.classes import NEVER, Classes, OrderClass
from ebbmq.core.displaced import Displaced
from ebbmq.core.ring import Ring
from ebbmq.core.row import HIGH, LOW48, READY

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.index import Index

DISPLACED: Final = -1
_SLICE: Final = 4_096


class Order(Protocol):
    """What the partition asks of an order; banded and exact are the two there are."""

    def extend(self, known: OrderClass, first: int, count: int, place: int, at_ms: int) -> None:
        """Append `count` consecutive rows published at `at_ms` with places from `place`."""

    def enter(self, seq: int, place: int, now_ms: int) -> None:
        """Let in one row that lost its ring's order."""

    def pop(self, count: int, now_ms: int) -> list[int]:
        """Take up to `count` rows in delivery order; ghosts may be among them."""

    def pop_oldest(self, now_ms: int) -> int:
        """Take the row with the smallest place of any band, -1 if there is none."""

    def pop_least(self, now_ms: int) -> int:
        """Take the row delivered last among the oldest of the lowest band, -1 if there is none."""

    def peek(self, count: int, now_ms: int) -> list[int]:
        """The next rows in delivery order, left where they are; an estimate past a crossing."""

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


class _Band:
    __slots__ = ("displaced", "heads", "rings")

    def __init__(self) -> None:
        self.rings: dict[int, Ring] = {}
        self.displaced = Displaced()
        self.heads: list[tuple[int, int, int]] = []


class BandedOrder:
    """Bands of decayed importance; see the module's theory of operation."""

    def __init__(self, index: Index, classes: Classes, failure_penalty: int) -> None:
        self._index = index
        self._classes = classes
        self._penalty = failure_penalty
        self._bands: list[_Band] = []
        self._mask = 0
        #: (instant, band, class) of rings that will have to be crossed; early, never late.
        self._crossings: list[tuple[int, int, int]] = []
        self._watched: set[tuple[int, int]] = set()

    def _band(self, number: int) -> _Band:
        while len(self._bands) <= number:
            self._bands.append(_Band())
        return self._bands[number]

    def extend(self, known: OrderClass, first: int, count: int, place: int, at_ms: int) -> None:
        """Append `count` consecutive rows published at `at_ms` with places from `place`."""
        band = self._band(known.top)
        ring = band.rings.get(known.number)
        if ring is None:
            ring = band.rings[known.number] = Ring()
        if not ring:
            self._show_head(known.top, known, place, at_ms)
        ring.extend_range(first, count)

    def _show_head(self, number: int, known: OrderClass, place: int, at_ms: int) -> None:
        """Enter the head of a ring that was empty into its band's heap."""
        leaves = known.leaves[number]
        cross_at = NEVER if leaves == NEVER else at_ms + leaves
        heappush(self._bands[number].heads, (place, known.number, cross_at))
        self._mask |= 1 << number
        if cross_at != NEVER and (number, known.number) not in self._watched:
            self._watched.add((number, known.number))
            heappush(self._crossings, (cross_at, number, known.number))

    def enter(self, seq: int, place: int, now_ms: int) -> None:
        """Let in one row that lost its ring's order."""
        row = self._index.read(seq)
        assert row is not None
        number = self._effective_band(row, now_ms)
        band = self._band(number)
        head = band.displaced.head()
        band.displaced.push(place, seq)
        if head is None or place < head[0]:
            heappush(band.heads, (place, DISPLACED, NEVER))
        self._mask |= 1 << number

    def _effective_band(self, row: tuple[int, ...], now_ms: int) -> int:
        known = self._classes.all[row[6] >> HIGH]
        band = known.band_at(now_ms - (row[5] & LOW48))
        if self._penalty:
            band = max(min(1, band), band - (row[5] >> HIGH) * self._penalty)
        return band

    def pop(self, count: int, now_ms: int) -> list[int]:
        """Take up to `count` rows in delivery order; ghosts may be among them."""
        out: list[int] = []
        while len(out) < count:
            number = self._settle_top(now_ms)
            if number < 0:
                break
            self._take(number, count - len(out), out)
        return out

    def _settle_top(self, now_ms: int) -> int:
        """Make the head of the highest band true; returns the band, -1 if all are empty."""
        while self._mask:
            number = self._mask.bit_length() - 1
            if self._settle(number, now_ms):
                return number
        return -1

    def _settle(self, number: int, now_ms: int) -> bool:
        """Make the head of a band true; False if the band turned out to be empty."""
        band = self._bands[number]
        heads = band.heads
        while heads:
            place, kind, cross_at = heads[0]
            if kind != DISPLACED:
                if cross_at > now_ms:
                    return True
                self._cross_ring(number, kind, now_ms, NEVER)
                continue
            if self._settle_displaced(number, place, now_ms):
                return True
        self._mask &= ~(1 << number)
        return False

    def _settle_displaced(self, number: int, place: int, now_ms: int) -> bool:
        """Check the displaced head of a band; False if it was no longer true and was moved."""
        band = self._bands[number]
        head = band.displaced.head()
        if head is None or head[0] != place:
            heappop(band.heads)
            return False
        row = self._index.read(head[1])
        belongs = number if row is None else self._effective_band(row, now_ms)
        if row is not None and belongs >= number:
            return True
        self._drop_displaced_head(band)
        if row is not None:
            self.enter(head[1], head[0], now_ms)
        return False

    def _drop_displaced_head(self, band: _Band) -> int:
        seq = band.displaced.pop()[1]
        following = band.displaced.head()
        if following is None:
            heappop(band.heads)
        else:
            heapreplace(band.heads, (following[0], DISPLACED, NEVER))
        return seq

    def _take(self, number: int, count: int, out: list[int]) -> None:
        """Take from the true head of a band: all at once where one ring is alone in it."""
        band = self._bands[number]
        heads = band.heads
        kind = heads[0][1]
        if kind == DISPLACED:
            out.append(self._drop_displaced_head(band))
            return
        ring = band.rings[kind]
        if len(heads) == 1:
            out.extend(ring.pop_many(count))
            self._renew_head(number, kind, ring)
            return
        out.append(ring.pop())
        self._renew_head(number, kind, ring)

    def _renew_head(self, number: int, kind: int, ring: Ring) -> None:
        """Replace the top of the heap, whose ring lost its head, by the ring's new head."""
        band = self._bands[number]
        read = self._index.read
        while ring:
            row = read(ring.head())
            if row is not None and row[0] == READY:
                leaves = self._classes.all[kind].leaves[number]
                cross_at = NEVER if leaves == NEVER else (row[5] & LOW48) + leaves
                heapreplace(band.heads, (row[8] & LOW48, kind, cross_at))
                return
            ring.pop()
        heappop(band.heads)

    def _cross_ring(self, number: int, kind: int, now_ms: int, budget: int) -> int:
        """Move the rows at the head of a ring that left its band; the ring tops the band's heap.

        Moves whole slices: rows of a ring are ordered by age, so those that crossed are a prefix.
        """
        ring = self._bands[number].rings[kind]
        known = self._classes.all[kind]
        moved = 0
        while ring and moved < budget:
            seqs = np.array(ring.peek(_SLICE), dtype=np.uint64)
            enqueued = (self._index.column(seqs, "enqueued") & np.uint64(LOW48)).astype(np.int64)
            ages = now_ms - enqueued
            staying = np.flatnonzero((ages < known.leaves[number]) & (enqueued > 0))
            crossed = int(staying[0]) if len(staying) else len(seqs)
            if crossed:
                ring.pop_many(crossed)
                alive = enqueued[:crossed] > 0
                self._descend(known, number, seqs[:crossed][alive], ages[:crossed][alive], now_ms)
                moved += crossed
            if crossed < len(seqs):
                break
        self._renew_top(number, kind, ring)
        return moved

    def _descend(
        self,
        known: OrderClass,
        number: int,
        seqs: npt.NDArray[np.uint64],
        ages: npt.NDArray[np.int64],
        now_ms: int,
    ) -> None:
        """Append rows, oldest first, to the rings of the bands they fell to."""
        start = 0
        for below in range(number):
            end = (
                len(seqs)
                if below == number - 1
                else int(np.count_nonzero(ages >= known.leaves[below + 1]))
            )
            if end > start:
                self._append(known, below, seqs[start:end], now_ms - int(ages[start]))
                start = end

    def _append(
        self, known: OrderClass, number: int, seqs: npt.NDArray[np.uint64], at_ms: int
    ) -> None:
        band = self._band(number)
        ring = band.rings.get(known.number)
        if ring is None:
            ring = band.rings[known.number] = Ring()
        if not ring:
            row = self._index.read(int(seqs[0]))
            self._show_head(number, known, int(seqs[0]) if row is None else row[8] & LOW48, at_ms)
        ring.extend(seqs.tolist())

    def _renew_top(self, number: int, kind: int, ring: Ring) -> None:
        """Correct the heap entry of a ring that lost rows while it may not top its band's heap."""
        band = self._bands[number]
        if band.heads and band.heads[0][1] == kind:
            self._renew_head(number, kind, ring)
            return
        band.heads = [entry for entry in band.heads if entry[1] != kind]
        heapify(band.heads)
        if ring:
            heappush(band.heads, (-1, kind, NEVER))
            self._renew_head(number, kind, ring)

    def cross(self, now_ms: int, budget: int) -> int:
        """Do crossings that are due, at most about `budget` rows; returns how many were moved."""
        moved = 0
        while self._crossings and self._crossings[0][0] <= now_ms and moved < budget:
            _, number, kind = heappop(self._crossings)
            ring = self._bands[number].rings[kind]
            if ring and self._leaves_at(number, kind, ring) <= now_ms:
                moved += self._cross_ring(number, kind, now_ms, budget - moved)
            if ring:
                heappush(self._crossings, (self._leaves_at(number, kind, ring), number, kind))
            else:
                self._watched.discard((number, kind))
        return moved

    def _leaves_at(self, number: int, kind: int, ring: Ring) -> int:
        enqueued = self._index.enqueued_at(ring.head())
        leaves = self._classes.all[kind].leaves[number]
        return NEVER if leaves == NEVER else enqueued + leaves

    def next_crossing_ms(self) -> int:
        """The earliest instant at which `cross` may have work."""
        return self._crossings[0][0] if self._crossings else NEVER

    def pop_oldest(self, now_ms: int) -> int:
        """Take the row with the smallest place of any band, -1 if there is none."""
        best, chosen = NEVER, -1
        for number in range(len(self._bands)):
            if self._mask >> number & 1 and self._settle(number, now_ms):
                place = self._bands[number].heads[0][0]
                if place < best:
                    best, chosen = place, number
        return self._take_one(chosen)

    def pop_least(self, now_ms: int) -> int:
        """Take the row delivered last among the oldest of the lowest band, -1 if there is none."""
        for number in range(len(self._bands)):
            if self._mask >> number & 1 and self._settle(number, now_ms):
                return self._take_one(number)
        return -1

    def _take_one(self, number: int) -> int:
        if number < 0:
            return -1
        out: list[int] = []
        self._take(number, 1, out)
        return out[0]

    def peek(self, count: int, now_ms: int) -> list[int]:
        """The next rows in delivery order, left where they are; an estimate past a crossing."""
        out: list[int] = []
        for number in range(len(self._bands) - 1, -1, -1):
            if len(out) >= count:
                break
            if self._mask >> number & 1 and self._settle(number, now_ms):
                out.extend(self._peek_band(self._bands[number], count - len(out)))
        return out

    def _peek_band(self, band: _Band, count: int) -> list[int]:
        if len(band.heads) == 1 and band.heads[0][1] != DISPLACED:
            return band.rings[band.heads[0][1]].peek(count)
        found = [(place, seq) for place, seq in band.displaced.peek(count)]
        rings = [ring for ring in band.rings.values() if ring]
        for ring in rings:
            seqs = ring.peek(count if len(rings) == 1 else max(64, 4 * count // len(rings)))
            places = self._index.column(np.array(seqs, dtype=np.uint64), "place")
            found.extend(zip((places & np.uint64(LOW48)).tolist(), seqs, strict=True))
        found.sort()
        return [seq for _, seq in found[:count]]

    def load(
        self,
        classes: npt.NDArray[np.int64],
        seqs: npt.NDArray[np.uint64],
        enqueued: npt.NDArray[np.uint64],
        now_ms: int,
    ) -> None:
        """Fill an empty order with rows sorted by seq whose place was never displaced."""
        for kind in np.unique(classes).tolist():
            known = self._classes.all[kind]
            mine = classes == kind
            own = seqs[mine]
            ages = now_ms - enqueued[mine].astype(np.int64)
            fallen = int(np.count_nonzero(ages >= known.leaves[known.top]))
            if fallen:
                self._descend(known, known.top, own[:fallen], ages[:fallen], now_ms)
            if fallen < len(own):
                self._append(known, known.top, own[fallen:], now_ms - int(ages[fallen]))


class ExactOrder:
    """Highest current importance first, the freshest of a class first (band_width = 0).

    Inside a class the newest row is worth most, so a ring is used from its tail; heads of classes
    are compared by their value now. Displaced rows are kept by class, freshest first, ties to the
    shortest history.
    """

    def __init__(self, index: Index, classes: Classes) -> None:
        self._index = index
        self._classes = classes
        self._rings: dict[int, Ring] = {}
        self._displaced: dict[int, Displaced] = {}

    def extend(self, known: OrderClass, first: int, count: int, place: int, at_ms: int) -> None:
        """Append `count` consecutive rows published at `at_ms` with places from `place`."""
        self._rings.setdefault(known.number, Ring()).extend_range(first, count)

    def enter(self, seq: int, place: int, now_ms: int) -> None:
        """Let in one row that lost its ring's order."""
        row = self._index.read(seq)
        assert row is not None
        freshness = (LOW48 - (row[5] & LOW48)) << 8 | min(255, row[5] >> HIGH)
        self._displaced.setdefault(row[6] >> HIGH, Displaced()).push(freshness, seq)

    def _candidates(self, now_ms: int) -> list[tuple[float, int, int, int]]:
        """(-value, displaced, -enqueued, class) of every class's best row."""
        out: list[tuple[float, int, int, int]] = []
        for kind, ring in self._rings.items():
            while ring and self._index.state_of(ring.newest()) != READY:
                ring.pop_newest()
            if ring:
                at_ms = self._index.enqueued_at(ring.newest())
                out.append((-self._classes.all[kind].value_at(now_ms - at_ms), 0, -at_ms, kind))
        for kind, displaced in self._displaced.items():
            while (head := displaced.head()) and self._index.state_of(head[1]) != READY:
                displaced.pop()
            if head:
                at_ms = self._index.enqueued_at(head[1])
                value = self._classes.all[kind].value_at(now_ms - at_ms)
                out.append((-value, 1 + (head[0] & 255), -at_ms, kind))
        return out

    def pop(self, count: int, now_ms: int) -> list[int]:
        """Take up to `count` rows in delivery order; ghosts may be among them."""
        heads = self._candidates(now_ms)
        heapify(heads)
        out: list[int] = []
        while heads and len(out) < count:
            _, displaced, _, kind = heads[0]
            if displaced:
                out.append(self._displaced[kind].pop()[1])
                head = self._displaced[kind].head()
                following = -1 if head is None else head[1]
            else:
                ring = self._rings[kind]
                if len(heads) == 1:
                    out.extend(ring.pop_newest() for _ in range(min(count - len(out), len(ring))))
                else:
                    out.append(ring.pop_newest())
                following = ring.newest() if ring else -1
            if following < 0:
                heappop(heads)
                continue
            at_ms = self._index.enqueued_at(following)
            value = self._classes.all[kind].value_at(now_ms - at_ms)
            heapreplace(heads, (-value, displaced, -at_ms, kind))
        return out

    def pop_oldest(self, now_ms: int) -> int:
        """Take the row with the smallest place of any band, -1 if there is none."""
        best, chosen = NEVER, -1
        for kind, ring in self._rings.items():
            if ring and (at_ms := self._index.enqueued_at(ring.head())) < best:
                best, chosen = at_ms, kind
        return -1 if chosen < 0 else self._rings[chosen].pop()

    def pop_least(self, now_ms: int) -> int:
        """Take the row of the least current importance, -1 if there is none."""
        worst, chosen = float(NEVER), -1
        for kind, ring in self._rings.items():
            if ring:
                age_ms = now_ms - self._index.enqueued_at(ring.head())
                value = self._classes.all[kind].value_at(age_ms)
                if value < worst:
                    worst, chosen = value, kind
        return -1 if chosen < 0 else self._rings[chosen].pop()

    def peek(self, count: int, now_ms: int) -> list[int]:
        """The next rows in delivery order, left where they are."""
        found: list[tuple[float, int, int]] = []
        for kind, ring in self._rings.items():
            seqs = ring.peek(count, max(0, len(ring) - count))
            found.extend(self._valued(kind, seqs, 0, now_ms))
        for kind, displaced in self._displaced.items():
            found.extend(self._valued(kind, [seq for _, seq in displaced.peek(count)], 1, now_ms))
        found.sort()
        return [-seq for _, _, seq in found[:count]]

    def _valued(
        self, kind: int, seqs: list[int], displaced: int, now_ms: int
    ) -> list[tuple[float, int, int]]:
        known = self._classes.all[kind]
        return [
            (-known.value_at(now_ms - self._index.enqueued_at(seq)), displaced, -seq)
            for seq in seqs
            if self._index.state_of(seq) == READY
        ]

    def cross(self, now_ms: int, budget: int) -> int:
        """Nothing crosses: values are compared when asked."""
        return 0

    def next_crossing_ms(self) -> int:
        """Never."""
        return NEVER

    def load(
        self,
        classes: npt.NDArray[np.int64],
        seqs: npt.NDArray[np.uint64],
        enqueued: npt.NDArray[np.uint64],
        now_ms: int,
    ) -> None:
        """Fill an empty order with rows sorted by seq whose place was never displaced."""
        for kind in np.unique(classes).tolist():
            self._rings.setdefault(kind, Ring()).extend(seqs[classes == kind].tolist())
