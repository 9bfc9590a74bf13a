"""Reads a log back, telling what is damaged from what was never finished.

A record that does not verify is one of two things. If anything proves that it was on the device
once (a later header whose `synced` lies behind it, or the caller's `known_synced`), the medium lost
it: it is *damaged*, reported, and the records after it are read. Otherwise the power went before it
was synced: it is the *torn tail*, and it ends the log together with everything after it, because
what follows a gap must not come back.

1. What is found is a prefix of what was appended, less what is reported as damaged.
2. Everything that was synced is found or reported.
3. Zeros are where preallocated space was not written yet. They end a segment's data, unless the
   next segment's LINK says that the segment went on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.checksum import crc32c
from ebbmq.journal import record, walk
from ebbmq.journal.found import Begun, Damaged, Found, Torn
from ebbmq.journal.record import HEADER_BYTES, LINK, Header
from ebbmq.journal.segment import OFFSET_MASK, OLD, name_of, numbers
from ebbmq.journal.unreadable import parts, read_around

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.journal.disk import Disk, File
    from ebbmq.journal.found import Item
    from ebbmq.journal.walk import Enough


def scan(
    disk: Disk,
    uuid: bytes,
    from_position: int = 0,
    *,
    known_synced: int = 0,
    required_from: int | None = None,
    enough: Enough | None = None,
) -> Iterator[Item]:
    """Read the young segments from a record boundary on, in order.

    Args:
        disk: where the segments are; nothing is changed on it.
        uuid: the store's; records of another store do not verify.
        from_position: where to start; 0 is the oldest record there is.
        known_synced: a position the caller knows to have been on the device.
        required_from: segments that start before this may have been deleted (default:
            `from_position`); a later one that is missing is damage.
        enough: how much of a payload is needed where the record was on the device once; what has
            more is told as Begun, and is as good as the caller finds its beginning to be.

    Raises:
        StorageFailed: a later version of EbbMQ wrote the log.
        OSError: the disk cannot be read.
    """
    required = from_position if required_from is None else required_from
    present = [n for n in numbers(disk, old=False) if n >= from_position >> 32]
    segments = _Segments(disk, record.seed(uuid), present, known_synced)
    if enough is not None:
        enough = segments.only_synced(enough)
    end = from_position
    expected = required >> 32
    for number in present:
        for missing in range(expected or number, number):
            linked = linked_end(disk, segments.store, missing + 1)
            yield Damaged(missing << 32, linked & OFFSET_MASK)
        start = from_position & OFFSET_MASK if number == from_position >> 32 else 0
        for item in segments.walk(number, start, enough):
            if type(item) is Damaged and not segments.was_synced(item.position):
                yield segments.torn(end, item.position)
                return
            end = item.end
            if not _is_own(item):
                yield item
        expected = max(expected, number + 1)
    gone = max(known_synced, required) - (expected << 32)
    if gone > 0:
        yield Damaged(expected << 32, gone)


def whole(disk: Disk, header: Header) -> Found | Damaged:
    """All of a record of which the beginning was read."""
    file = disk.open(name_of(header.position >> 32))
    start = (header.position & OFFSET_MASK) + HEADER_BYTES
    data = read_around(file, start, header.payload_bytes)
    file.close()
    if len(data) == header.payload_bytes and crc32c(data) == header.payload_crc:
        return Found(header, memoryview(data))
    return Damaged(header.position, header.end - header.position, header, memoryview(data))


def scan_old(disk: Disk, uuid: bytes, from_position: int = 0) -> Iterator[Item]:
    """Read every old-generation record from a record boundary on; 0 is the oldest there is.

    Relocated records are used only once they were synced, and nothing here says which were: bytes
    that cannot be read before another record are Damaged, after the last one of a disk Torn.
    """
    present = [n for n in numbers(disk, old=True) if n >= from_position >> 32]
    segments = _Segments(disk, record.seed(uuid), present, 0)
    for number in present:
        start = from_position & OFFSET_MASK if number == from_position >> 32 else 0
        items = [item for item in segments.walk(number, start) if not _is_own(item)]
        last = items[-1] if number == present[-1] and items else None
        if type(last) is Damaged:
            del items[-1]
        yield from items
        if type(last) is Damaged:
            yield Torn(last.position, last.nbytes, () if last.header is None else (last.header,))


def end_of_old(disk: Disk, uuid: bytes, number: int) -> int:
    """The position after the last record of an old segment whose header can be read."""
    segments = _Segments(disk, record.seed(uuid), [number], 0)
    ends = (item.end for item in segments.walk(number, 0) if item.header is not None)
    return max(ends, default=number << 32)


def truncate_tail(disk: Disk, position: int) -> int:
    """Erase for good everything from `position` on, and return how many bytes that were.

    Bytes are overwritten with zeros and keep their space: later segments become blank spares, so
    that what was reserved for later facts is still reserved.
    """
    erased = 0
    for number in numbers(disk, old=False):
        if number < position >> 32:
            continue
        file = disk.open(name_of(number))
        start = position & OFFSET_MASK if number == position >> 32 else 0
        before = erased
        for offset, data in walk.chunks(file, start):
            used = walk.used_of(data)
            if used:
                file.write(offset, [bytes(used)])
                erased += used
        if erased > before:
            file.sync()
        file.close()
    return erased


def unreadable_bytes(disk: Disk, position: int) -> int:
    """How much of the generation that `position` is in the disk cannot read from there on."""
    lost = 0
    for number in numbers(disk, old=bool(position >> 32 & OLD)):
        if number < position >> 32:
            continue
        file = disk.open(name_of(number))
        start = file.data_from(position & OFFSET_MASK if number == position >> 32 else 0)
        found = parts(file, start, walk.blank_from(file, start) - start)
        lost += sum(part.nbytes for part in found if part.data is None)
        file.close()
    return lost


def linked_end(disk: Disk, store: int, number: int) -> int:
    """Where the segment before this one ended, as this one's LINK says; 0 if it cannot say."""
    try:
        file = disk.open(name_of(number))
    except FileNotFoundError:
        return 0
    data = read_around(file, 0, HEADER_BYTES)
    file.close()
    header = record.parse(store, number << 32, data, 0)
    if header is None or header.kind != LINK or header.first >> 32 != number - 1:
        return 0
    return header.first


class _Segments:
    """The segments of one scan, and the proof of what had been synced."""

    def __init__(self, disk: Disk, store: int, present: Sequence[int], known_synced: int) -> None:
        self._disk = disk
        self.store = store
        self._present = present
        self._known_synced = known_synced
        self._proven: int | None = None
        self._told: int | None = None

    def walk(
        self, number: int, offset: int, enough: Enough | None = None
    ) -> Iterator[Found | Begun | Damaged]:
        """Every record of a segment from `offset`, and what does not verify between them."""
        linked = linked_end(self._disk, self.store, number + 1) & OFFSET_MASK
        file = self._disk.open(name_of(number))
        place = walk.Place(self.store, file, number << 32)
        try:
            for found in walk.windows(place, offset, linked or file.size(), enough):
                offset = found.header.end & OFFSET_MASK
                yield found
            limit = linked or self._limit(number, file, offset)
            if offset < limit:
                yield from walk.every(place, offset, limit)
        finally:
            file.close()

    def was_synced(self, position: int) -> bool:
        """Whether anything proves that the device had the byte at `position`."""
        if self._proven is None:
            self._proven = max(self._known_synced, self._highest_synced())
        return self._proven > position

    def torn(self, end: int, position: int) -> Torn:
        """Everything that is given up from `position` on, when the log ends at `end`."""
        headers: list[Header] = []
        nbytes = 0
        for number in self._present:
            if number < position >> 32:
                continue
            start = position & OFFSET_MASK if number == position >> 32 else 0
            for item in self.walk(number, start):
                nbytes += item.end - item.position
                if item.header is not None and item.header.kind != LINK:
                    headers.append(item.header)
        return Torn(end, nbytes, tuple(headers))

    def only_synced(self, enough: Enough) -> Enough:
        """All of what may be torn, and enough of what cannot."""

        def of_synced(header: Header) -> int:
            if header.end > self._known_synced and header.end > self._told_synced():
                return header.payload_bytes
            return enough(header)

        return of_synced

    def _told_synced(self) -> int:
        """What the headers of the last segment that has some prove, up to the first damage."""
        if self._told is None:
            self._told = next(filter(None, map(self._synced_in, reversed(self._present))), 0)
        return self._told

    def _synced_in(self, number: int) -> int:
        file = self._disk.open(name_of(number))
        place = walk.Place(self.store, file, number << 32)
        found = walk.windows(place, 0, file.size(), lambda _: 0)
        told = max((item.header.synced for item in found), default=0)
        file.close()
        return told

    def _limit(self, number: int, file: File, offset: int) -> int:
        """Where the data of the last segment ends: what follows is preallocated space."""
        known = self._known_synced & OFFSET_MASK if self._known_synced >> 32 == number else 0
        return max(walk.blank_from(file, offset), known)

    def _highest_synced(self) -> int:
        # `synced` never falls along the log, so the last segment that has a header decides.
        for number in reversed(self._present):
            headers = [item.header for item in self.walk(number, 0) if item.header is not None]
            if headers:
                return max(header.synced for header in headers)
        return 0


def _is_own(item: Found | Begun | Damaged) -> bool:
    return type(item) is Found and item.header.kind == LINK
