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

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.journal import record
from ebbmq.journal.record import ALIGNMENT, HEADER_BYTES, LINK, Header
from ebbmq.journal.segment import OFFSET_MASK, name_of, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.journal.disk import Disk, File

_WINDOW_BYTES: Final = 4 * limits.MIB
_CHUNK_BYTES: Final = limits.MIB
_ZEROS: Final = bytes(_CHUNK_BYTES)


class Found(msgspec.Struct, frozen=True, gc=False):
    """A record that verified; its payload is a view of megabytes read at once, so do not keep it.

    `end`, here and below, is where the log ends if nothing else is found.
    """

    header: Header
    payload: memoryview

    @property
    def position(self) -> int:
        """Where the record starts."""
        return self.header.position

    @property
    def end(self) -> int:
        """Position after the record."""
        return self.header.end


class Damaged(msgspec.Struct, frozen=True, gc=False):
    """Bytes that were on the device once and cannot be believed any more.

    With a header it is exactly one record, whose payload (what is left of it) does not verify;
    without, it is everything up to the next record that can be read.
    """

    position: int
    nbytes: int
    header: Header | None = None
    payload: memoryview | None = None

    @property
    def end(self) -> int:
        """Position after the damage."""
        return self.position + self.nbytes


class Torn(msgspec.Struct, frozen=True, gc=False):
    """The end of the log: from `position` on, `nbytes` were written and never known as synced."""

    position: int
    nbytes: int
    headers: tuple[Header, ...] = ()

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.position


def scan(
    disk: Disk,
    uuid: bytes,
    from_position: int = 0,
    *,
    known_synced: int = 0,
    required_from: int | None = None,
) -> Iterator[Found | Damaged | Torn]:
    """Read the young segments from a record boundary on, in order.

    Args:
        disk: where the segments are; nothing is changed on it.
        uuid: the store's; records of another store do not verify.
        from_position: where to start; 0 is the oldest record there is.
        known_synced: a position the caller knows to have been on the device.
        required_from: segments that start before this may have been deleted (default:
            `from_position`); a later one that is missing is damage.

    Raises:
        StorageFailed: a later version of EbbMQ wrote the log.
        OSError: the disk cannot be read.
    """
    required = from_position if required_from is None else required_from
    present = [n for n in numbers(disk, old=False) if n >= from_position >> 32]
    segments = _Segments(disk, record.seed(uuid), present, known_synced)
    end = from_position
    expected = required >> 32
    for number in present:
        for missing in range(expected or number, number):
            linked = linked_end(disk, segments.store, missing + 1)
            yield Damaged(missing << 32, linked & OFFSET_MASK)
        start = from_position & OFFSET_MASK if number == from_position >> 32 else 0
        for item in segments.walk(number, start):
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


def scan_old(disk: Disk, uuid: bytes, from_position: int = 0) -> Iterator[Found | Damaged | Torn]:
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
        for offset in range(start, file.size(), _CHUNK_BYTES):
            data = file.read(offset, _CHUNK_BYTES)
            used = _data_end(data)
            if used:
                file.write(offset, [bytes(used)])
                erased += used
        if erased > before:
            file.sync()
        file.close()
    return erased


def linked_end(disk: Disk, store: int, number: int) -> int:
    """Where the segment before this one ended, as this one's LINK says; 0 if it cannot say."""
    try:
        file = disk.open(name_of(number))
    except FileNotFoundError:
        return 0
    data = file.read(0, HEADER_BYTES)
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

    def walk(self, number: int, offset: int) -> Iterator[Found | Damaged]:
        """Every record of a segment from `offset`, and what does not verify between them."""
        linked = linked_end(self._disk, self.store, number + 1) & OFFSET_MASK
        file = self._disk.open(name_of(number))
        try:
            for found in self._windows(file, number << 32, offset, linked):
                offset = found.end & OFFSET_MASK
                yield found
            if not linked or offset < linked:
                data = file.read(0, file.size())
                limit = linked or self._limit(number, data)
                yield from _walk(data, number << 32, self.store, offset, limit)
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

    def _windows(self, file: File, base: int, offset: int, limit: int) -> Iterator[Found]:
        """Records up to the first that does not verify or does not fit into a window.

        Small reads use the same memory again and again; a whole segment would be new memory, which
        costs more than reading and verifying it.
        """
        while offset < limit:
            data = file.read(offset, min(_WINDOW_BYTES, limit - offset))
            end = 0
            for item in _walk(data, base + offset, self.store, 0, len(data)):
                if type(item) is not Found:
                    break
                end = item.end - base
                yield item
            if not end:
                return
            offset = end

    def _limit(self, number: int, data: bytes) -> int:
        """Where the data of the last segment ends: what follows is preallocated space."""
        known = self._known_synced & OFFSET_MASK if self._known_synced >> 32 == number else 0
        return max(_data_end(data), known)

    def _highest_synced(self) -> int:
        # `synced` never falls along the log, so the last segment that has a header decides.
        for number in reversed(self._present):
            headers = [item.header for item in self.walk(number, 0) if item.header is not None]
            if headers:
                return max(header.synced for header in headers)
        return 0


def _is_own(item: Found | Damaged) -> bool:
    return type(item) is Found and item.header.kind == LINK


def _walk(data: bytes, base: int, store: int, offset: int, limit: int) -> Iterator[Found | Damaged]:
    view = memoryview(data)
    size = len(data)
    parse = record.parse
    while offset < limit:
        header = parse(store, base + offset, data, offset)
        if header is None:
            end = _next_header(data, base, store, offset + ALIGNMENT, limit)
            yield Damaged(base + offset, end - offset)
            offset = end
            continue
        start = offset + HEADER_BYTES
        stop = start + header.payload_bytes
        payload = view[start:stop]
        offset = (stop + ALIGNMENT - 1) & -ALIGNMENT
        if stop <= size and crc32c(payload) == header.payload_crc:
            yield Found(header, payload)
        else:
            yield Damaged(header.position, header.end - header.position, header, payload)


def _next_header(data: bytes, base: int, store: int, offset: int, limit: int) -> int:
    """Where the next header that verifies starts, or the end of the data."""
    while True:
        offset = data.find(record.MAGIC_BYTES, offset, limit)
        if offset < 0:
            return -(-limit // ALIGNMENT) * ALIGNMENT
        if offset % ALIGNMENT == 0 and record.parse(store, base + offset, data, offset):
            return offset
        offset += 1


def _data_end(data: bytes) -> int:
    """Length without the zeros at the end, up to a multiple of 8."""
    end = len(data)
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        chunk = data[start:end]
        if chunk != _ZEROS[: end - start]:
            return -(-(start + len(chunk.rstrip(b"\0"))) // ALIGNMENT) * ALIGNMENT
        end = start
    return 0
