"""The old generation: what outlived its segment, moved together so that the segment can go.

Records are written at once and used only after `sync`, so a torn end is never referred to.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.journal import faults, record, scan
from ebbmq.journal.contract import SegmentInfo
from ebbmq.journal.record import HEADER_BYTES, LINK, PADDING, record_bytes
from ebbmq.journal.segment import OFFSET_MASK, OLD, Segment, name_of, numbers

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk
    from ebbmq.journal.record import About

#: Preallocated ahead of the data, so that a little old data does not take a whole segment.
_STEP_BYTES: Final = 256 * limits.KIB


class OldGeneration:
    """Appends to one old segment at a time; every method may raise OSError."""

    def __init__(
        self,
        disk: Disk,
        uuid: bytes,
        segment_bytes: int,
        end_position: int | None = None,
        first_number: int = OLD | 1,
    ) -> None:
        self._disk = disk
        self._store = record.seed(uuid)
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._sealed: dict[int, int] = {}
        self._active: Segment | None = None
        self._first_number = first_number
        self.flushes = 0
        self._open_existing(uuid, end_position)

    def append(self, about: About, payload: bytes) -> tuple[int, int]:
        """Write a record; return its segment and the offset of its payload."""
        nbytes = record_bytes(len(payload))
        with self._lock:
            segment = self._segment_for(nbytes)
            offset = segment.used
            header = record.pack(self._store, segment.base | offset, about, payload)
            self._write(segment, [header, payload, PADDING[len(payload) & 7]])
            return segment.number, offset + HEADER_BYTES

    @property
    def position(self) -> int:
        """The position after the last record; 0 before the first."""
        with self._lock:
            return 0 if self._active is None else self._active.base | self._active.used

    def sync(self) -> None:
        """Return once every record is on the device."""
        with self._lock:
            if self._active is not None:
                self._sync(self._active)

    def segments(self) -> list[SegmentInfo]:
        """All old segments in order."""
        with self._lock:
            found = [SegmentInfo(n, used, True, True) for n, used in sorted(self._sealed.items())]
            if self._active is not None:
                found.append(SegmentInfo(self._active.number, self._active.used, False, True))
            return found

    def delete(self, number: int) -> None:
        """Remove a sealed segment."""
        with self._lock:
            assert number in self._sealed, f"{name_of(number)} is not sealed"
            del self._sealed[number]
            self._disk.delete(name_of(number))

    def close(self) -> None:
        """Sync and give back what was preallocated."""
        with self._lock:
            if self._active is not None:
                self._sync(self._active)
                self._active.file.truncate(self._active.used)
        self.let_go()

    def let_go(self) -> None:
        """Close the file as it is."""
        with self._lock:
            if self._active is not None:
                self._active.file.close()
                self._active = None

    def _segment_for(self, nbytes: int) -> Segment:
        segment = self._active
        if segment is None or segment.used + nbytes > max(self._segment_bytes, segment.capacity):
            segment = self._roll()
        end = segment.used + nbytes
        if end > segment.capacity:
            try:
                self._allocate(segment, max(end, min(end + _STEP_BYTES, self._segment_bytes)))
            except OSError as error:
                if not faults.is_full(error):
                    raise
                # Relocating is how a full disk gets space back: do with as little as possible.
                self._allocate(segment, end)
        return segment

    def _allocate(self, segment: Segment, capacity: int) -> None:
        segment.file.allocate(capacity)
        segment.capacity = capacity

    def _roll(self) -> Segment:
        full, number, before = self._active, self._first_number, 0
        if full is not None:
            self._sync(full)
            number, before = full.number + 1, full.base | full.used
        segment = Segment(number, self._disk.create(name_of(number), 0), 0)
        if full is not None:
            full.file.truncate(full.used)
            full.file.close()
            self._sealed[full.number] = full.used
        self._active = segment
        link = record.pack(self._store, segment.base, (LINK, 0, 0, before, 0), b"")
        self._write(segment, [link])
        return segment

    def _write(self, segment: Segment, chunks: list[bytes]) -> None:
        segment.used += segment.file.write(segment.used, chunks)
        segment.written = segment.used

    def _sync(self, segment: Segment) -> None:
        if segment.synced < segment.written:
            written = segment.written
            self.flushes += 1
            segment.file.sync()
            segment.synced = written

    def _open_existing(self, uuid: bytes, end_position: int | None) -> None:
        present = numbers(self._disk, old=True)
        if not present:
            return
        for number in present[:-1]:
            file = self._disk.open(name_of(number))
            self._sealed[number] = file.size()
            file.close()
        last = present[-1]
        file = self._disk.open(name_of(last))
        try:
            if end_position is None or end_position >> 32 != last:
                end_position = scan.end_of_old(self._disk, uuid, last)
            end = min(end_position & OFFSET_MASK, file.size())
            file.truncate(end)
            file.sync()
        except OSError:
            file.close()
            raise
        if self._first_number > last:
            self._sealed[last] = end
            file.close()
        else:
            self._active = Segment(last, file, end, end)
