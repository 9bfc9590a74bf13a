"""Reads around sectors that a disk cannot read any more.

One of them fails a read of any length. Here what can be read around it is, and something that is
neither a header nor blank stands in for the rest: checksums tell it from what was there, so it is
found to be damage, or a torn tail, as changed bytes are.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq import limits
from ebbmq.journal.sectors import SECTOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.journal.disk import File

#: Tried as a whole first: a disk takes its time with each sector that it cannot read.
_STRETCH_BYTES: Final = 64 * limits.KIB
_STAND_IN: Final = b"\xff"


class Part(NamedTuple):
    """Bytes of a file; None if they cannot be read."""

    offset: int
    nbytes: int
    data: bytes | None


def read_around(file: File, offset: int, nbytes: int) -> bytes:
    """Read from `offset`, with something else in place of what cannot be read.

    Raises:
        OSError: it is not a matter of some sectors.
    """
    try:
        return file.read(offset, nbytes)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    return b"".join(
        [_STAND_IN * part.nbytes if part.data is None else part.data
         for part in parts(file, offset, nbytes)]
    )  # fmt: skip


def parts(file: File, offset: int, nbytes: int, unit_bytes: int = SECTOR_BYTES) -> Iterator[Part]:
    """What can be read and what cannot, unit by unit where anything fails, up to the end."""
    end = min(offset + nbytes, file.size())
    for stretch in _split(offset, end, _STRETCH_BYTES):
        whole = _part(file, *stretch)
        if whole.data is not None:
            yield whole
            continue
        for unit in _split(*stretch, unit_bytes):
            yield _part(file, *unit)


def _split(start: int, end: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the parts of a range between multiples of `nbytes`."""
    while start < end:
        stop = min((start // nbytes + 1) * nbytes, end)
        yield start, stop
        start = stop


def _part(file: File, start: int, stop: int) -> Part:
    try:
        data = file.read(start, stop - start)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return Part(start, stop - start, None)
    return Part(start, len(data), data)
