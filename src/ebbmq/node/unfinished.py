"""Tells a relocation that a kill cut short from one that was finished and damaged later.

Only the last record of the old generation can be either. One that was cut short is never needed:
its messages still are where they were. It is given up, so that no later start takes it for damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import OFFSET_MASK, name_of, numbers
from ebbmq.journal.unreadable import read_around

if TYPE_CHECKING:
    from collections.abc import Collection

    from ebbmq.core.partition import Partition
    from ebbmq.journal.disk import Disk
    from ebbmq.journal.record import Header

#: A body that ends in fewer zeros than this proves nothing.
_BLANK: Final = bytes(16)


class Unread:
    """The last relocation, whose payload does not verify."""

    def __init__(self, disk: Disk, header: Header) -> None:
        self.header = header
        self._disk = disk
        file = disk.open(name_of(header.position >> 32))
        self._start = (header.position & OFFSET_MASK) + HEADER_BYTES
        self._payload = read_around(file, self._start, header.payload_bytes)
        file.close()
        #: Its messages; None if not even these can be read.
        self.seqs = self._read_seqs()

    def _read_seqs(self) -> list[int] | None:
        start, count = fact.RELOCATE_HEAD.size, self.header.count
        packed = self._payload[start : start + 8 * count]
        crc = fact.RELOCATE_HEAD.unpack_from(self._payload.ljust(start))[2]
        if len(packed) != 8 * count or crc32c(packed) != crc:
            return None
        seqs: list[int] = np.frombuffer(packed, dtype="<u8").tolist()
        return seqs

    def was_cut_short(self, partition: Partition | None, left: Collection[int]) -> bool:
        """Whether nothing depends on it.

        Args:
            partition: with the rows as everything else tells them; None if it was deleted.
            left: those of its messages that are not known to have left since.
        """
        if partition is None:
            return True
        if self._is_referred_to(partition):
            return False
        if self.seqs is None:
            return self._payload.endswith(_BLANK)  # never written: segments are blank before
        present = {*numbers(self._disk, old=False), *numbers(self._disk, old=True)}
        rows = [partition.index.read(seq) for seq in self.seqs if seq in left]
        return all(row is not None and row[9] in present for row in rows)

    def _is_referred_to(self, partition: Partition) -> bool:
        segment = self.header.position >> 32
        end = self._start + self.header.payload_bytes
        for page, slots in partition.index.live_seqs():
            offsets = page.view["offset"][slots]
            mine = (page.view["segment"][slots] == segment) & (offsets >= self._start)
            if (mine & (offsets < end)).any():
                return True
        return False
