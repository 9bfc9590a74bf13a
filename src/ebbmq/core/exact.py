"""Order by exact importance: highest current value first, the freshest first among equals.

Theory of operation. Inside a class the newest row is worth most, so the ring of a class is taken
from its tail; displaced rows of a class are kept freshest first, ties to the fewest failures. Each
ring and each displaced set is a source with one current entry in a heap, its key (-value,
-published at, failures, -row number) as of some earlier instant. Values only fall and taking a row
only makes a source's head worse, so such a key is never after the true one: the source on top is
looked at again, and if its key stands, no other row comes before it.

Invariants:
1. Every source with rows has an entry in `_heap` that is its `key`, or is in `_changed`.
2. That key is not after the key of the source's first row.
3. Rows of a ring never failed, and the instants at which they were published rise.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.band import SIFT_ROWS, may_be_ready
from ebbmq.core.classes import NEVER
from ebbmq.core.displaced import BUFFER_ROWS, Displaced
from ebbmq.core.ring import CHUNK_ROWS, Ring
from ebbmq.core.row import HIGH, LOW48, READY

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.classes import Classes, OrderClass
    from ebbmq.core.index import Index

    Key = tuple[float, int, int, int]

_FAILURES_BITS: Final = 16
_SEQ_END: Final = (1 << 64) - 1
_STALE_ENTRIES: Final = 64
_SIFT_CHUNKS: Final = 2 * SIFT_ROWS // CHUNK_ROWS


class _Line:
    """Rows of one class that were never displaced, freshest at the tail."""

    __slots__ = ("_index", "changed", "key", "known", "rows", "sift_at")

    def __init__(self, index: Index, known: OrderClass) -> None:
        self._index = index
        self.known = known
        self.rows = Ring()
        self.sift_at = SIFT_ROWS
        self.key: Key | None = None
        self.changed = False

    def __lt__(self, other: Source) -> bool:
        return False

    def sift(self) -> None:
        """Let go of ghosts inside a ring that grew: old ones surface when all others are taken."""
        for _ in range(_SIFT_CHUNKS):
            self.rows.sift(lambda seqs: may_be_ready(self._index, seqs))
        self.sift_at = len(self.rows) + SIFT_ROWS

    def _are_ready(self, seqs: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        ready: npt.NDArray[np.bool_] = self._index.column(seqs, "state") == READY
        return ready

    def first_key(self, now_ms: int) -> Key | None:
        """The key of the row delivered first; ghosts before it are dropped."""
        size = 1
        while (seq := self.rows.newest()) >= 0:
            key = self._key(seq, now_ms)
            if key is not None:
                return key
            ghosts = ~self._are_ready(np.array(self.rows.peek_newest(size), dtype=np.uint64))
            self.rows.take_newest(len(ghosts) if ghosts.all() else int(ghosts.argmin()))
            size = min(4 * size, CHUNK_ROWS)
        return None

    def last_key(self, now_ms: int) -> Key | None:
        """The key of the row delivered last; ghosts after it are dropped."""
        while (seq := self.rows.head()) >= 0:
            key = self._key(seq, now_ms)
            if key is not None:
                return key
            self.rows.pop()
        return None

    def _key(self, seq: int, now_ms: int) -> Key | None:
        row = self._index.read(seq)
        if row is None or row[0] != READY:
            return None
        at_ms = row[5] & LOW48
        return (-self.known.value_at(now_ms - at_ms), -at_ms, 0, -seq)

    def pop_before(self, following: Key | None, wanted: int, now_ms: int) -> list[int]:
        """Take all rows that are wanted if they come before a key, else the first, which does."""
        if wanted > 1:
            last = self.rows.peek_newest(wanted)[-1]
            key = None if following is None else self._key(last, now_ms)
            if following is None or (key is not None and key <= following):
                return self.rows.take_newest(wanted)
        return [self.rows.pop_newest()]

    def pop_last(self) -> int:
        """Take the row delivered last."""
        return self.rows.pop()

    def peek(self, count: int, now_ms: int) -> list[Key]:
        """The keys of the rows delivered first."""
        wanted = count
        while True:
            seqs = self.rows.peek_newest(wanted)
            keys = [key for seq in seqs if (key := self._key(seq, now_ms)) is not None]
            if len(keys) >= count or len(seqs) < wanted:
                return keys[:count]
            wanted *= 4


class _DisplacedLine:
    """Rows of one class that lost their ring's order, freshest first."""

    __slots__ = ("_index", "_pushed", "changed", "key", "known", "rows")

    def __init__(self, index: Index, known: OrderClass) -> None:
        self._index = index
        self._pushed = 0
        self.known = known
        self.rows = Displaced()
        self.key: Key | None = None
        self.changed = False

    def __lt__(self, other: Source) -> bool:
        return False

    def push(self, seq: int, at_ms: int, failures: int) -> None:
        """Add a row; what is fresher, failed less, or came later is smaller in the set."""
        self.rows.push((LOW48 - at_ms) << _FAILURES_BITS | failures, _SEQ_END - seq)
        self._pushed += 1
        if self._pushed == BUFFER_ROWS:
            self._pushed = 0
            for _ in range(2):
                self.rows.sift(self._are_ready)

    def _are_ready(self, turned: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        seqs = np.uint64(_SEQ_END) - turned
        ready: npt.NDArray[np.bool_] = self._index.column(seqs, "state") == READY
        return ready

    def first_key(self, now_ms: int) -> Key | None:
        """The key of the row delivered first; ghosts before it are dropped."""
        while (pair := self.rows.head()) is not None:
            key = self._key(pair, now_ms)
            if key is not None:
                return key
            self.rows.pop()
        return None

    def last_key(self, now_ms: int) -> Key | None:
        """The key of the row delivered last; ghosts after it are dropped."""
        while (pair := self.rows.last()) is not None:
            key = self._key(pair, now_ms)
            if key is not None:
                return key
            self.rows.pop_last()
        return None

    def _key(self, pair: tuple[int, int], now_ms: int) -> Key | None:
        seq = _SEQ_END - pair[1]
        if self._index.state_of(seq) != READY:
            return None
        at_ms = LOW48 - (pair[0] >> _FAILURES_BITS)
        failures = pair[0] & (1 << _FAILURES_BITS) - 1
        return (-self.known.value_at(now_ms - at_ms), -at_ms, failures, -seq)

    def pop_before(self, following: Key | None, wanted: int, now_ms: int) -> list[int]:
        """Take the first row, which is known to come before the key."""
        return [_SEQ_END - self.rows.pop()[1]]

    def pop_last(self) -> int:
        """Take the row delivered last."""
        return _SEQ_END - self.rows.pop_last()[1]

    def peek(self, count: int, now_ms: int) -> list[Key]:
        """The keys of the rows delivered first."""
        wanted = count
        while True:
            pairs = self.rows.peek(wanted)
            keys = [key for pair in pairs if (key := self._key(pair, now_ms)) is not None]
            if len(keys) >= count or len(pairs) < wanted:
                return keys[:count]
            wanted *= 4


Source = _Line | _DisplacedLine


class ExactOrder:
    """Highest current importance first (band_width = 0); see the module's theory of operation."""

    def __init__(self, index: Index, classes: Classes) -> None:
        self._index = index
        self._classes = classes
        self._lines: dict[int, _Line] = {}
        self._displaced: dict[int, _DisplacedLine] = {}
        self._heap: list[tuple[Key, Source]] = []
        #: Sources that got rows since the last look, whose keys may be too late.
        self._changed: list[Source] = []
        #: There are none.
        self.popped_band = -1

    def extend(self, known: OrderClass, first: int, count: int, place: int, at_ms: int) -> None:
        """Append `count` consecutive rows published at `at_ms` with places from `place`."""
        line = self._line(known)
        line.rows.extend_range(first, count)
        if len(line.rows) > line.sift_at:
            line.sift()

    def _line(self, known: OrderClass) -> _Line:
        line = self._lines.get(known.number)
        if line is None:
            line = self._lines[known.number] = _Line(self._index, known)
        self._note_change(line)
        return line

    def _note_change(self, source: Source) -> None:
        if not source.changed:
            source.changed = True
            self._changed.append(source)

    def enter(self, seq: int, place: int, now_ms: int) -> None:
        """Let in one row that lost its ring's order."""
        row = self._index.read(seq)
        assert row is not None
        kind = row[6] >> HIGH
        source = self._displaced.get(kind)
        if source is None:
            known = self._classes.all[kind]
            source = self._displaced[kind] = _DisplacedLine(self._index, known)
        source.push(seq, row[5] & LOW48, row[5] >> HIGH)
        self._note_change(source)

    def _show_changed(self, now_ms: int) -> None:
        """Enter the heads of sources that got rows; drop entries that are no longer used."""
        for source in self._changed:
            source.changed = False
            key = source.first_key(now_ms)
            if key is None:
                self._forget(source)
            elif source.key is None or key < source.key:
                source.key = key
                heappush(self._heap, (key, source))
        self._changed.clear()
        if len(self._heap) > 2 * (len(self._lines) + len(self._displaced)) + _STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1].key is entry[0]]
            heapify(self._heap)

    def _forget(self, source: Source) -> None:
        """Let go of a source that has no rows."""
        source.key = None
        sources: dict[int, _Line] | dict[int, _DisplacedLine]
        sources = self._lines if isinstance(source, _Line) else self._displaced
        sources.pop(source.known.number, None)

    def pop(self, count: int, now_ms: int) -> list[int]:
        """Take up to `count` rows in delivery order; ghosts may be among them."""
        self._show_changed(now_ms)
        out: list[int] = []
        heap = self._heap
        while heap and len(out) < count:
            key, source = heap[0]
            if source.key is not key:
                heappop(heap)
                continue
            now_key = source.first_key(now_ms)
            # In a heap the second smallest is a child of the smallest.
            following = min(heap[1:3])[0] if len(heap) > 1 else None
            wanted = 1
            while now_key is not None and (following is None or now_key <= following):
                out += source.pop_before(following, wanted, now_ms)
                now_key = source.first_key(now_ms)
                if len(out) == count:
                    break
                wanted = min(2 * wanted, count - len(out))
            if now_key is None:
                heappop(heap)
                self._forget(source)
            else:
                source.key = now_key
                heapreplace(heap, (now_key, source))
        return out

    def _sources(self) -> list[Source]:
        return [*self._lines.values(), *self._displaced.values()]

    def _pop_worst(self, worst: Source | None) -> int:
        # What is left of the source is no better than before: its key still holds.
        return -1 if worst is None else worst.pop_last()

    def pop_one(self, now_ms: int) -> int:
        """Take the row delivered next, which may be a ghost; -1 if there is none."""
        found = self.pop(1, now_ms)
        return found[0] if found else -1

    def pop_oldest(self, now_ms: int) -> int:
        """Take the row that was published first, -1 if there is none."""
        best, chosen = NEVER, None
        for source in self._sources():
            key = source.last_key(now_ms)
            if key is not None and -key[1] < best:
                best, chosen = -key[1], source
        return self._pop_worst(chosen)

    def pop_least(self, now_ms: int) -> int:
        """Take the row that would be delivered last, -1 if there is none."""
        worst: Key | None = None
        chosen = None
        for source in self._sources():
            key = source.last_key(now_ms)
            if key is not None and (worst is None or key > worst):
                worst, chosen = key, source
        return self._pop_worst(chosen)

    def peek(self, count: int, now_ms: int) -> list[int]:
        """The next rows in delivery order, left where they are."""
        found: list[Key] = []
        for source in self._sources():
            found += source.peek(count, now_ms)
        found.sort()
        return [-key[3] for key in found[:count]]

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
        by_class = np.argsort(classes, kind="stable")
        cuts = np.flatnonzero(np.diff(classes[by_class])) + 1
        for mine in np.split(by_class, cuts):
            if len(mine):
                line = self._line(self._classes.all[int(classes[mine[0]])])
                line.rows.extend_array(seqs[mine])
