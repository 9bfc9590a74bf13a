"""Finds out, when a log is opened, which segment goes on, which are sealed and which are spare."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ebbmq.journal import scan
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import OFFSET_MASK, Segment, Spares, name_of, numbers

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk


class Layout(NamedTuple):
    """The young segments of a log that is about to go on."""

    active: Segment
    sealed: dict[int, int]
    spares: Spares
    #: Where the segment before the active one ended, if that is new and it is not missed.
    before: int = 0

    def close(self) -> None:
        """Let go of the files."""
        self.spares.close()
        self.active.file.close()


def lay_out(
    disk: Disk, store: int, end_position: int, segment_bytes: int, known_synced: int = 0
) -> Layout:
    """Erase what is behind the end, make what is before it durable, adopt blank segments.

    Args:
        disk: where the segments are.
        store: what the checksums of its headers start from.
        end_position: where the log goes on.
        segment_bytes: the size of a new segment.
        known_synced: everything before it is on the device already.

    Raises:
        OSError: the disk is full, or cannot be read or written.
    """
    scan.truncate_tail(disk, end_position)
    number, offset = end_position >> 32, end_position & OFFSET_MASK
    present = numbers(disk, old=False)
    is_short = number in present and scan.is_short(disk, store, number)
    file = disk.open(name_of(number)) if number in present and not is_short else None
    try:
        if file is not None:
            # After a kill its bytes may be in the kernel only; the log is about to call them
            # synced.
            file.sync()
        # The last one first: its LINK is on the device before the end that it tells is given back.
        sealed = {
            n: _sealed_bytes(disk, store, n, is_synced=n < known_synced >> 32)
            for n in reversed(present)
            if n < number + is_short
        }
        # A segment that is gone leaves its number unused: its positions must not mean new bytes.
        spares = Spares(disk, segment_bytes, number if offset or file is not None else number - 1)
    except OSError:
        if file is not None:
            file.close()
        raise
    if file is not None:
        return Layout(Segment(number, file, file.size(), offset), sealed, spares)
    try:
        before = end_position if is_short else 0
        return Layout(spares.take(HEADER_BYTES), sealed, spares, before)
    except OSError:
        spares.close()
        raise


def _sealed_bytes(disk: Disk, store: int, number: int, *, is_synced: bool) -> int:
    """Finish the sealing of a segment, which a kill may have interrupted."""
    file = disk.open(name_of(number))
    if not is_synced:
        file.sync()
    size = file.size()
    used = min(size, scan.linked_end(disk, store, number + 1) & OFFSET_MASK or size)
    if used < size:
        file.truncate(used)
    file.close()
    return used
