"""Reads stored bytes by place, through a bounded number of open files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq.journal import faults
from ebbmq.journal.segment import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.journal.disk import Disk, File

    Place = tuple[int, int, int]

    #: Reads one place, or raises.
    Read = Callable[[int, int, int], bytes]

OPEN_FILES_MAX: Final = 64
#: Reading over a gap of this size costs less than a second call.
_GAP_BYTES_MAX: Final = 4 * limits.KIB
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

    def read_many(self, places: Sequence[Place]) -> list[bytes]:
        """Read many places in the order given, neighbours with one call."""
        return self._collect(places, self.read)

    def read_cached(self, places: Sequence[Place]) -> list[bytes] | None:
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

    def _collect(self, places: Sequence[Place], read: Read) -> list[bytes]:
        span = _span_of(places)
        if span is not None:
            return _cut(read(*span), places, span[1])
        found: list[bytes] = [b""] * len(places)
        order = sorted(range(len(places)), key=places.__getitem__)
        run: list[int] = []
        segment = start = end = -1
        for index in order:
            number, offset, length = places[index]
            stop = offset + length
            if (
                number == segment
                and offset - end <= _GAP_BYTES_MAX
                and stop - start <= _READ_BYTES_MAX
            ):
                run.append(index)
                end = max(end, stop)
                continue
            _read_run(read, places, run, (segment, start, end - start), found)
            run, segment, start, end = [index], number, offset, stop
        _read_run(read, places, run, (segment, start, end - start), found)
        return found

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


def _read_run(
    read: Read, places: Sequence[Place], run: list[int], span: Place, found: list[bytes]
) -> None:
    if len(run) == 1:
        found[run[0]] = read(*places[run[0]])
    elif run:
        segment, start, _ = span
        data = read(*span)
        for index in run:
            _, offset, length = places[index]
            found[index] = data[offset - start : offset - start + length]
        assert segment == places[run[0]][0]


def _span_of(places: Sequence[Place]) -> Place | None:
    """What one call reads to have all of these, if they follow one another closely."""
    if not places:
        return None
    segment, start, _ = places[0]
    last_segment, offset, length = places[-1]
    nbytes = offset + length - start
    if segment != last_segment or not 0 < nbytes <= _READ_BYTES_MAX:
        return None
    # Rows stand between the bodies of one record and of the next.
    wanted = sum([place[2] for place in places])
    if nbytes > 2 * wanted + _GAP_BYTES_MAX or (len(places) > 1 and sorted(places) != places):
        return None
    return segment, start, nbytes


def _cut(data: bytes, places: Sequence[Place], start: int) -> list[bytes]:
    return [data[offset - start : offset - start + length] for _, offset, length in places]


def _unreadable(segment: int, offset: int, length: int, why: str) -> DamagedRecord:
    return DamagedRecord(
        f"{length} bytes at {offset} of {name_of(segment)} cannot be read: {why}",
        "run `ebbmq doctor` on the data directory; the messages it names are lost on this disk",
    )
