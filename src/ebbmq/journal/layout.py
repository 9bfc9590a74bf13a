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
    sealed = {
        n: _sealed_bytes(disk, store, n, is_synced=n < known_synced >> 32)
        for n in present
        if n < number
    }
    if number in present:
        file = disk.open(name_of(number))
        try:
            # After a kill its bytes may be in the kernel only; the log is about to call them
            # synced.
            file.sync()
            spares = Spares(disk, segment_bytes, number)
        except OSError:
            file.close()
            raise
        return Layout(Segment(number, file, file.size(), offset), sealed, spares)
    # A segment that is gone leaves its number unused: its positions must not mean new bytes.
    spares = Spares(disk, segment_bytes, number if offset else number - 1)
    try:
        return Layout(spares.take(HEADER_BYTES), sealed, spares)
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
