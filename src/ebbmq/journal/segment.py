"""Segments of the log as files: their names, the ones being filled, the ones waiting to be."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.journal import faults
from ebbmq.journal.record import HEADER_BYTES

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk, File

#: Set in the numbers of old-generation segments, which hold relocated records only.
OLD: Final = 0x8000_0000
FIRST_POSITION: Final = 1 << 32
OFFSET_MASK: Final = (1 << 32) - 1

_YOUNG_PREFIX: Final = "young-"
_OLD_PREFIX: Final = "old-"
_SUFFIX: Final = ".seg"


def name_of(number: int) -> str:
    """The file name of a segment."""
    if number & OLD:
        return f"{_OLD_PREFIX}{number ^ OLD:010d}{_SUFFIX}"
    return f"{_YOUNG_PREFIX}{number:010d}{_SUFFIX}"


def numbers(disk: Disk, *, old: bool) -> list[int]:
    """Numbers of the segments that a disk has, in order, preallocated ones included."""
    prefix = _OLD_PREFIX if old else _YOUNG_PREFIX
    found = (
        int(digits)
        for name in disk.names()
        if name.startswith(prefix) and name.endswith(_SUFFIX)
        if (digits := name[len(prefix) : -len(_SUFFIX)]).isdecimal()
    )
    return sorted(number | OLD if old else number for number in found)


class Segment:
    """A segment that is being filled or not yet sealed: what is pending, written and synced.

    The appending thread adds to the end of `pending` and then raises `used`; whoever holds the
    log's write lock takes from the front. Both are single steps of the interpreter, so appending
    needs no lock. While nothing is pending, `written` is `used`, and the appending thread alone
    may raise both, by a record it writes itself. Once `closed`, nothing more is added.
    """

    __slots__ = (
        "base", "capacity", "closed", "file", "number", "pending", "start", "synced", "used",
        "written",
    )  # fmt: skip

    def __init__(self, number: int, file: File, capacity: int, used: int = 0) -> None:
        self.number = number
        self.base = number << 32
        self.file = file
        self.capacity = capacity
        #: Where what was added since the log was opened starts.
        self.start = used
        self.used = self.written = self.synced = used
        self.pending: list[bytes] = []
        self.closed = False

    def write_pending(self) -> None:
        """Write what is pending with as few calls as possible."""
        chunks = self.pending[:]
        if chunks:
            del self.pending[: len(chunks)]
            self.written += self.file.write(self.written, chunks)

    @property
    def is_sealable(self) -> bool:
        """Whether everything that will ever be in it is on the device."""
        return self.closed and self.synced == self.used


class Spares:
    """Segments preallocated under the numbers after `last_number`: space for later facts.

    `take` belongs to the appending thread and does not wait while another thread preallocates,
    unless there is no spare at all.
    """

    def __init__(self, disk: Disk, segment_bytes: int, last_number: int) -> None:
        self.files: deque[tuple[int, File]] = deque()
        #: A record that does not fit leaves the end of its segment unused: at most this much.
        self.slack_bytes = min(limits.RECORD_BYTES_MAX, segment_bytes // 16)
        self.usable_bytes = segment_bytes - HEADER_BYTES - self.slack_bytes
        #: Kept free in addition, so that nobody waits for an allocation.
        self.ahead_bytes = segment_bytes // 8
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._last_number = last_number
        self._making = threading.Lock()
        try:
            self._adopt()
        except OSError:
            self.close()
            raise

    def needed(self, rest_bytes: int, record_bytes: int, reserve_bytes: int) -> int:
        """Spares to have so that the reserve is still there after the record."""
        rest, spares = rest_bytes - record_bytes, 0
        if rest < 0:
            rest, spares = max(0, self._segment_bytes - HEADER_BYTES - record_bytes), 1
        missing = reserve_bytes + self.slack_bytes - rest
        return spares + max(0, -(-missing // self.usable_bytes))

    def ensure(self, count: int) -> None:
        """Preallocate until there are `count`; raises OSError when the disk is full."""
        with self._making:
            while len(self.files) < count:
                self.files.append(self._make())

    def give_back(self, count: int) -> None:
        """Delete the spares above `count`."""
        with self._making:
            while len(self.files) > count:
                try:
                    number, file = self.files.pop()
                except IndexError:
                    return  # taken meanwhile
                file.close()
                self._disk.delete(name_of(number))
                self._last_number = number - 1

    def take(self, nbytes: int) -> Segment:
        """Hand out the next segment, with room for `nbytes` even if that is more than usual."""
        if not self.files:
            self.ensure(1)
        number, file = self.files.popleft()
        capacity = self._segment_bytes
        if nbytes > capacity:
            try:
                file.allocate(nbytes)
            except OSError:
                self.files.appendleft((number, file))
                raise
            capacity = nbytes
        return Segment(number, file, capacity)

    def close(self) -> None:
        """Close the files and leave them on the disk: the next open adopts them."""
        with self._making:
            while self.files:
                self.files.pop()[1].close()

    def _adopt(self) -> None:
        """Take over the blank segments an earlier process left; remove those of another size."""
        for number in numbers(self._disk, old=False):
            if number <= self._last_number:
                continue
            file = self._disk.open(name_of(number))
            if number == self._last_number + 1 and file.size() == self._segment_bytes:
                self.files.append((number, file))
                self._last_number = number
            else:
                file.close()
                self._disk.delete(name_of(number))

    def _make(self) -> tuple[int, File]:
        # Asking costs microseconds, failing to allocate milliseconds: a full disk is met often.
        if self._disk.free_bytes() < self._segment_bytes:
            raise faults.full()
        number = self._last_number + 1
        file = self._disk.create(name_of(number), self._segment_bytes)
        self._last_number = number
        return number, file
