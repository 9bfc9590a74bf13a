"""The bytes of a file in memory, and what a power cut would leave of them."""

from __future__ import annotations

import errno
import os
from typing import Final, Protocol

SECTOR_BYTES: Final = 512
#: Of the sectors that were not synced, how many a crash loses on average.
_LOST_SHARE: Final = 0.5


def sectors_of(start: int, end: int) -> range:
    """The sectors that a range of bytes is in."""
    return range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))


class Chance(Protocol):
    """The part of random.Random that a crash needs."""

    def random(self) -> float:
        """A number in [0, 1)."""


class Content:
    """Bytes of one file, and for every sector changed since the last sync what it held then."""

    __slots__ = ("before", "data", "lost", "synced_size", "unreadable")

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(nbytes)
        self.synced_size = nbytes
        self.before: dict[int, bytes] = {}
        #: As `before`, for sectors a failed sync gave up on: no later sync saves them unless they
        #: are written again.
        self.lost: dict[int, bytes] = {}
        #: Sectors that fail to be read.
        self.unreadable: set[int] = set()

    def check_readable(self, start: int, end: int) -> None:
        """Raise what a disk raises that cannot read a range."""
        if self.unreadable and not self.unreadable.isdisjoint(sectors_of(start, end)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def make_readable(self, start: int, end: int) -> None:
        """Sectors that are written are fine again."""
        if self.unreadable:
            self.unreadable.difference_update(sectors_of(start, end))

    def remember(self, start: int, end: int) -> None:
        """Keep what the sectors of a range hold, before they change."""
        for sector in sectors_of(start, end):
            if sector in self.lost:
                self.before[sector] = self.lost.pop(sector)
            elif sector not in self.before:
                at = sector * SECTOR_BYTES
                held = bytes(self.data[at : at + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
                self.before[sector] = held

    def crash(self, chance: Chance) -> None:
        """Keep what was synced and any subset of the sectors changed since."""
        cut = size = len(self.data)
        if size != self.synced_size and chance.random() < _LOST_SHARE:
            size = self.synced_size
            self.data.extend(bytes(max(0, size - cut)))
        for sector, held in sorted({**self.before, **self.lost}.items()):
            at = sector * SECTOR_BYTES
            # A cut that was not synced is undone as a whole.
            if size > cut < at + SECTOR_BYTES or chance.random() < _LOST_SHARE:
                self.data[at : at + SECTOR_BYTES] = held
        del self.data[size:]
        self.before.clear()
        self.lost.clear()
        self.synced_size = size
