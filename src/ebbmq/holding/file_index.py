"""Which copies a file device has and where: in RAM, rebuilt from the log when the device opens.

Copies come, are read and go in long runs of one partition, so places are kept in pages of 1,024
numbers, 16 bytes a place, and looked up many at once. A page with few copies keeps only these.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.core.values import distinct_values
from ebbmq.holding.contract import Key
from ebbmq.holding.file_format import by_owner, unique
from ebbmq.holding.listing import Listed, Listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.holding.file_format import Numbers, Owner, Put, Where

    #: One row a copy: segment, offset, payload bytes, crc; a segment of 0 stands for no copy.
    Places = npt.NDArray[np.uint32]

_BITS: Final = 10
_ROWS: Final = 1 << _BITS
_SLOT: Final = _ROWS - 1
#: Above so many copies a page takes less as a whole.
_FEW_MAX: Final = 64
_FEW_AGAIN: Final = 32
_SEGMENT: Final = 0
_OFFSET: Final = 1
_LENGTH: Final = 2
_CRC: Final = 3
_ALL: Final = slice(None)


class Place(NamedTuple):
    """Where a payload is in the log, and its checksum."""

    segment: int
    offset: int
    payload_bytes: int
    crc: int


class _Page:
    """The places of up to 1,024 copies, by the low bits of their number."""

    __slots__ = ("few", "live", "rows")

    def __init__(self) -> None:
        self.few: dict[int, bytes] = {}
        self.rows: Places | None = None
        self.live = 0

    def get(self, slots: Numbers) -> Places:
        if self.rows is not None:
            return self.rows[slots]
        return np.frombuffer(
            b"".join([self.few.get(slot, _NOWHERE) for slot in slots.tolist()]), np.uint32
        ).reshape(-1, 4)

    def put(self, slots: Numbers, places: Places) -> Places:
        """Set places of different copies, or none; returns those they had."""
        if not self.live:
            before = _nothing(len(slots))
            self.live = _there(places)
        else:
            before = self.get(slots)
            self.live += _there(places) - _there(before)
        if self.rows is None and self.live > _FEW_MAX:
            self._widen()
        if self.rows is not None:
            self.rows[slots] = places
            if self.live <= _FEW_AGAIN:
                self._narrow()
            return before
        for slot, place in zip(slots.tolist(), places, strict=True):
            if place[_SEGMENT]:
                self.few[slot] = place.tobytes()
            else:
                self.few.pop(slot, None)
        return before

    def put_run(self, slot: int, places: Places) -> bool:
        """Set places of neighbours where none has one; False: `put` can."""
        if self.rows is None:
            if self.live + len(places) <= _FEW_MAX:
                return False
            self._widen()
        assert self.rows is not None
        rows = self.rows[slot : slot + len(places)]
        if rows[:, _SEGMENT].any():
            return False
        rows[:] = places
        self.live += len(places)
        return True

    def _widen(self) -> None:
        rows = np.zeros((_ROWS, 4), dtype=np.uint32)
        for slot, place in self.few.items():
            rows[slot] = np.frombuffer(place, np.uint32)
        self.rows, self.few = rows, {}

    def _narrow(self) -> None:
        assert self.rows is not None
        slots = np.flatnonzero(self.rows[:, _SEGMENT]).tolist()
        self.few, self.rows = {slot: self.rows[slot].tobytes() for slot in slots}, None

    def items(self) -> tuple[list[int], Places]:
        """Slots and places of the copies that are there."""
        if self.rows is None:
            slots = sorted(self.few)
            return slots, self.get(np.array(slots, dtype=np.int64))
        there = np.flatnonzero(self.rows[:, _SEGMENT])
        return there.tolist(), self.rows[there]


_NOWHERE: Final = bytes(16)


def _nothing(count: int) -> Places:
    return np.zeros((count, 4), dtype=np.uint32)


def _there(places: Places) -> int:
    return int(np.count_nonzero(places[:, _SEGMENT]))


class FileIndex:
    """Key -> place; counts what is live in each segment."""

    def __init__(self, overhead_bytes: int) -> None:
        """Start empty; each copy counts `overhead_bytes` beside its payload."""
        self._overhead_bytes = overhead_bytes
        self._pages: dict[Owner, dict[int, _Page]] = {}
        self.live: dict[int, int] = {}
        self.live_bytes = 0
        self.count = 0

    def __contains__(self, key: Key) -> bool:
        return bool(self.find([key])[0, _SEGMENT])

    def find(self, keys: Sequence[Key]) -> Places:
        """Where copies are, in the order of the keys."""
        out = _nothing(len(keys))
        for owner, where, seqs in by_owner(keys):
            pages = self._pages.get(owner, {})
            found = _nothing(len(seqs))
            for number, some in _by_page(seqs):
                page = pages.get(number)
                if page is not None:
                    found[some] = page.get(seqs[some] & _SLOT)
            out[where] = found
        return out

    def add(self, owner: Owner, seqs: Numbers, places: Places) -> None:
        """Different copies of one store and partition are here, and no more where they were."""
        pages = self._pages.setdefault(owner, {})
        for number, some in _by_page(seqs):
            page = pages.get(number)
            if page is None:
                page = pages[number] = _Page()
            self._count(page.put(seqs[some] & _SLOT, places[some]), -1)
        self._count(places, 1)

    def _add_run(self, owner: Owner, seqs: Numbers, places: Places) -> None:
        """`add` for consecutive numbers, page by page."""
        pages = self._pages.setdefault(owner, {})
        seq, at, count = int(seqs[0]), 0, len(seqs)
        while at < count:
            number, slot = seq >> _BITS, seq & _SLOT
            page = pages.get(number)
            if page is None:
                page = pages[number] = _Page()
            some = places[at : at + _ROWS - slot]
            if page.put_run(slot, some):
                self._count_in(int(some[0, _SEGMENT]), len(some))
                self.live_bytes += int(some[:, _LENGTH].sum(dtype=np.int64))
            else:
                self.add(owner, seqs[at : at + len(some)], some)
            seq, at = seq + len(some), at + len(some)

    def put(self, put: Put, segment: int, offset: int) -> None:
        """The copies of a record are in a segment, the first of them at an offset."""
        places = places_of(segment, offset + put.starts(), put.lengths, put.crcs)
        first = int(put.pids[0])
        if put.is_run:
            self._add_run((put.store, first), put.seqs, places)
            return
        if (put.pids == first).all():
            self.add((put.store, first), put.seqs, places)
            return
        for pid in distinct_values(put.pids).tolist():
            mine = put.pids == pid
            self.add((put.store, pid), put.seqs[mine], places[mine])

    def present(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Those of which there is a copy."""
        there = self.find(keys)[:, _SEGMENT] != 0
        if there.all():
            return keys
        return [key for key, is_there in zip(keys, there.tolist(), strict=True) if is_there]

    def remove(self, keys: Sequence[Key]) -> None:
        """Copies are gone; absent ones are fine."""
        for owner, _, seqs in by_owner(keys):
            self.remove_numbers(owner, unique(seqs))

    def remove_numbers(self, owner: Owner, seqs: Numbers) -> None:
        """Different copies of one store and partition are gone; absent ones are fine."""
        pages = self._pages.get(owner, {})
        for number, some in _by_page(seqs):
            page = pages.get(number)
            if page is None:
                continue
            slots = seqs[some] & _SLOT
            self._count(page.put(slots, _nothing(len(slots))), -1)
            if not page.live:
                del pages[number]
        if owner in self._pages and not pages:
            del self._pages[owner]

    def _count(self, places: Places, sign: int) -> None:
        segments = places[:, _SEGMENT]
        if not segments.any():
            return
        first = int(segments[0])
        is_one = bool((segments == first).all())
        counts = {first: len(segments)} if is_one else Counter(segments.tolist())
        counts.pop(0, None)
        for segment, count in counts.items():
            self._count_in(segment, sign * count)
        if counts:
            # Where no copy is, its length is 0 too.
            self.live_bytes += sign * int(places[:, _LENGTH].sum(dtype=np.int64))

    def _count_in(self, segment: int, count: int) -> None:
        left = self.live.get(segment, 0) + count
        self.live[segment] = left
        if not left:
            del self.live[segment]
        self.count += count
        self.live_bytes += count * self._overhead_bytes

    def of_store(self, store: bytes) -> Listing:
        """Every copy of a store."""
        owned = [(pid, pages) for (owner, pid), pages in self._pages.items() if owner == store]
        return Listing(
            store,
            [_listed(pid, number, page) for pid, pages in owned for number, page in pages.items()],
        )

    def in_segment(self, segment: int) -> list[tuple[Key, Place]]:
        """Every copy in a segment; looks at all copies there are."""
        return list(self._items(segment))

    def _items(self, segment: int) -> Iterator[tuple[Key, Place]]:
        for (store, pid), pages in self._pages.items():
            for number, page in pages.items():
                slots, places = page.items()
                mine = np.flatnonzero(places[:, _SEGMENT] == segment)
                slots, places = [slots[at] for at in mine.tolist()], places[mine]
                base = number << _BITS
                for slot, place in zip(slots, places.tolist(), strict=True):
                    yield Key(store, pid, base | slot), Place(*place)


def _listed(pid: int, number: int, page: _Page) -> Listed:
    slots, places = page.items()
    seqs = np.array(slots, np.int64) | number << _BITS
    return Listed(pid, seqs, places[:, _LENGTH], places[:, _CRC])


def places_of(segment: int, offsets: Numbers, lengths: Numbers, crcs: Numbers) -> Places:
    """Places in one segment."""
    out = np.empty((len(offsets), 4), dtype=np.uint32)
    out[:, _SEGMENT], out[:, _LENGTH] = segment, lengths
    out[:, _OFFSET], out[:, _CRC] = offsets, crcs
    return out


def _by_page(seqs: Numbers) -> Iterator[tuple[int, Where]]:
    """Numbers by their page: its number, and where they stand."""
    numbers = seqs >> _BITS
    if len(seqs) and (numbers == numbers[0]).all():
        yield int(numbers[0]), _ALL
        return
    for number in distinct_values(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)
