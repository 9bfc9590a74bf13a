"""Reads the records of one segment, one after the other, no more of it than is needed.

As long as records verify, a segment is read through a window. It starts small, grows while all of
it is used, and starts again where payloads are passed over: so a log of large bodies costs its
headers, and one of small facts few calls. Windows use the same memory again and again; a whole
segment would be new memory, which costs more than reading and verifying it. At the first record
that does not verify `windows` ends, and `every` looks for what can be read after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.journal import record
from ebbmq.journal.found import Begun, Damaged, Found
from ebbmq.journal.record import ALIGNMENT, HEADER_BYTES, Header
from ebbmq.journal.unreadable import read_around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ebbmq.journal.disk import File

    #: How many bytes at the beginning of a record's payload are enough.
    Enough = Callable[[Header], int]

WINDOW_BYTES_MIN: Final = 16 * limits.KIB
WINDOW_BYTES_MAX: Final = 4 * limits.MIB
_CHUNK_BYTES: Final = limits.MIB
_ZEROS: Final = bytes(_CHUNK_BYTES)


class Place:
    """A segment that is read: the store's seed, its file, and the position of its first byte."""

    __slots__ = ("base", "file", "store")

    def __init__(self, store: int, file: File, base: int) -> None:
        self.store = store
        self.file = file
        self.base = base


class _Window:
    """Some bytes of a file, and more of it when they are asked for, always further on."""

    __slots__ = ("_end", "_file", "_size", "_start", "data", "view")

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = self._end = 0
        self._size = WINDOW_BYTES_MIN
        self.data = b""
        self.view = memoryview(b"")

    def reach(self, offset: int, nbytes: int) -> int:
        """Have these bytes of the file in `data`, and say where; -1 if the file ends before."""
        if offset + nbytes > self._end:
            # All of the last one was used: more at once. Something was passed over: little.
            is_next = self._start <= offset <= self._end
            self._size = min(2 * self._size, WINDOW_BYTES_MAX) if is_next else WINDOW_BYTES_MIN
            self.data = read_around(self._file, offset, max(self._size, nbytes))
            self.view = memoryview(self.data)
            self._start, self._end = offset, offset + len(self.data)
        return offset - self._start if offset + nbytes <= self._end else -1


def windows(
    place: Place, offset: int, limit: int, enough: Enough | None = None
) -> Iterator[Found | Begun]:
    """Records from `offset` up to the first that does not verify."""
    store, base, parse = place.store, place.base, record.parse
    window = _Window(place.file)
    while offset < limit:
        at = window.reach(offset, HEADER_BYTES)
        header = None if at < 0 else parse(store, base + offset, window.data, at)
        if header is None:
            return
        size = header.payload_bytes
        wanted = size if enough is None else min(size, enough(header))
        at = window.reach(offset, HEADER_BYTES + wanted)
        if at < 0:
            return
        payload = window.view[at + HEADER_BYTES : at + HEADER_BYTES + wanted]
        if wanted < size:
            yield Begun(header, payload)
        elif crc32c(payload) == header.payload_crc:
            yield Found(header, payload)
        else:
            return
        offset = header.end - base


def every(place: Place, offset: int, limit: int) -> Iterator[Found | Damaged]:
    """Every record from `offset` to `limit`, and what does not verify between them."""
    store, base = place.store, place.base
    data = read_around(place.file, 0, place.file.size())
    view = memoryview(data)
    size = len(data)
    while offset < limit:
        header = record.parse(store, base + offset, data, offset)
        if header is None:
            end = _next_header(store, base, data, offset + ALIGNMENT, limit)
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


def _next_header(store: int, base: int, data: bytes, offset: int, limit: int) -> int:
    """Where the next header that verifies starts, or the end of the data."""
    while True:
        offset = data.find(record.MAGIC_BYTES, offset, limit)
        if offset < 0:
            return -(-limit // ALIGNMENT) * ALIGNMENT
        if offset % ALIGNMENT == 0 and record.parse(store, base + offset, data, offset):
            return offset
        offset += 1


def blank_from(file: File, offset: int) -> int:
    """From where on a file has nothing but zeros, up to a multiple of 8; at least `offset`."""
    end = offset
    for at, data in chunks(file, offset):
        used = _used(data)
        if used:
            end = at + used
    return -(-end // ALIGNMENT) * ALIGNMENT


def chunks(file: File, offset: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a file from `offset` on, without what the file system knows as zeros."""
    size = file.size()
    while (offset := file.data_from(offset)) < size:
        data = read_around(file, offset, _CHUNK_BYTES)
        if not data:
            return
        yield offset, data
        offset += len(data)


def _used(data: bytes) -> int:
    """Length without the zeros at the end."""
    return 0 if data == _ZEROS[: len(data)] else len(data.rstrip(b"\0"))


def used_of(data: bytes) -> int:
    """Length without the zeros at the end, up to a multiple of 8."""
    return -(-_used(data) // ALIGNMENT) * ALIGNMENT
