"""Reads stored bytes by place, through a bounded number of open files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from operator import add
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq.journal import faults
from ebbmq.journal.segment import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from ebbmq.journal.contract import Places
    from ebbmq.journal.disk import Disk, File

    Column = npt.NDArray[np.int64]
    Place = tuple[int, int, int]

    #: Reads one place, or raises.
    Read = Callable[[int, int, int], bytes]

OPEN_FILES_MAX: Final = 64
#: Reading over a gap of this size costs less than a second call.
_GAP_BYTES_MAX: Final = 4 * limits.KIB
#: The last place read by a call begins within so many bytes of the first.
_READ_BYTES_MAX: Final = 4 * limits.MIB


class _NotCachedError(Exception):
    """Reading would wait for a device."""


class Reader:
    """Reads (segment, offset, length); safe to call from any thread.

    A file that leaves the cache is closed by its last reader, not under it.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Read `length` bytes.

        Raises:
            DamagedRecord: the segment is gone, ends before, or cannot be read.
        """
        try:
            data = self._file(segment).read(offset, length)
        except OSError as error:
            raise _unreadable(segment, offset, length, faults.reason(error)) from error
        if len(data) != length:
            raise _unreadable(segment, offset, length, f"only {len(data)} bytes are there")
        return data

    def read_many(self, places: Places) -> list[bytes]:
        """Read many places in the order given, neighbours with one call."""
        return self._collect(places, self.read)

    def read_cached(self, places: Places) -> list[bytes] | None:
        """`read_many`, or None if it would wait for a device.

        Raises:
            DamagedRecord: a segment is gone or cannot be read.
        """
        try:
            return self._collect(places, self._read_at_once)
        except _NotCachedError:
            return None

    def _read_at_once(self, segment: int, offset: int, length: int) -> bytes:
        try:
            data = self._file(segment).read_cached(offset, length)
        except OSError as error:
            raise _unreadable(segment, offset, length, faults.reason(error)) from error
        if data is None:
            raise _NotCachedError
        return data

    def _collect(self, places: Places, read: Read) -> list[bytes]:
        if not len(places):
            return []
        table = np.asarray(places, dtype=np.int64).T
        span = _span_of(*table.tolist())
        if span is not None:
            return _cut(read(*span), span[1], *table[1:].tolist())
        segments, offsets, lengths = table
        order = None
        if not _is_sorted(segments, offsets):
            order = np.lexsort((offsets, segments))
            segments, offsets, lengths = segments[order], offsets[order], lengths[order]
        ends = offsets + lengths
        stretches = _stretches(segments, offsets, ends)
        numbers, begins, stops = segments.tolist(), offsets.tolist(), ends.tolist()
        found: list[bytes] = []
        for first, last in stretches:
            start = begins[first]
            if last - first == 1:
                found.append(read(numbers[first], start, stops[first] - start))
                continue
            data = read(numbers[first], start, max(stops[first:last]) - start)
            there = zip(begins[first:last], stops[first:last], strict=True)
            found += [data[at - start : stop - start] for at, stop in there]
        if order is None:
            return found
        return [found[at] for at in np.argsort(order).tolist()]

    def forget(self, segment: int) -> None:
        """Let go of the file of a segment that is about to be deleted."""
        with self._lock:
            self._files.pop(segment, None)

    def close(self) -> None:
        """Let go of every file."""
        with self._lock:
            self._files.clear()

    def _file(self, segment: int) -> File:
        with self._lock:
            file = self._files.get(segment)
            if file is not None:
                self._files.move_to_end(segment)
                return file
        file = self._disk.open(name_of(segment))
        with self._lock:
            self._files[segment] = file
            if len(self._files) > OPEN_FILES_MAX:
                self._files.popitem(last=False)
        return file


def _span_of(segments: list[int], offsets: list[int], lengths: list[int]) -> Place | None:
    """What one call reads to have all of these, if they follow one another closely.

    Rows stand between the bodies of one record and of the next: to read them, too, costs less than
    to wait for the interpreter once more, which each call does, and arithmetic on many as well.
    """
    start, wanted = offsets[0], sum(lengths)
    nbytes = offsets[-1] + lengths[-1] - start
    if (
        not wanted <= nbytes <= min(2 * wanted + _GAP_BYTES_MAX, _READ_BYTES_MAX)
        or segments.count(segments[0]) < len(segments)
        or offsets != sorted(offsets)
        or max(map(add, offsets, lengths)) > start + nbytes
    ):
        return None
    return segments[0], start, nbytes


def _cut(data: bytes, start: int, offsets: list[int], lengths: list[int]) -> list[bytes]:
    places = zip(offsets, lengths, strict=True)
    return [data[offset - start : offset - start + length] for offset, length in places]


def _is_sorted(segments: Column, offsets: Column) -> bool:
    is_next = (segments[1:] == segments[:-1]) & (offsets[1:] >= offsets[:-1])
    return bool((is_next | (segments[1:] > segments[:-1])).all())


def _stretches(segments: Column, offsets: Column, ends: Column) -> Iterator[tuple[int, int]]:
    """Which of sorted places one call reads: from one of them to before another."""
    is_far = (segments[1:] != segments[:-1]) | (offsets[1:] - ends[:-1] > _GAP_BYTES_MAX)
    first = 0
    for last in [*(np.flatnonzero(is_far) + 1).tolist(), len(offsets)]:
        while offsets[last - 1] - offsets[first] > _READ_BYTES_MAX:
            limit = offsets[first] + _READ_BYTES_MAX
            part = first + int(offsets[first:last].searchsorted(limit, "right"))
            yield first, part
            first = part
        yield first, last
        first = last


def _unreadable(segment: int, offset: int, length: int, why: str) -> DamagedRecord:
    return DamagedRecord(
        f"{length} bytes at {offset} of {name_of(segment)} cannot be read: {why}",
        "run `ebbmq doctor` on the data directory; the messages it names are lost on this disk",
    )
