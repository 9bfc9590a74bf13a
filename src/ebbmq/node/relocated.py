"""Reading the old generation at a start: rows of relocated messages, with where they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.journal import scan
from ebbmq.journal.found import Damaged, Found, Torn
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import OFFSET_MASK, numbers
from ebbmq.node.outflow import message_id
from ebbmq.node.unfinished import Unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.journal.disk import Disk
    from ebbmq.journal.record import Header
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses

    #: Partition, messages, their rows, and the position up to which facts are in them.
    Moved = tuple[int, list[int], memoryview, int]


class Relocated:
    """The old generation of a data directory that is being opened."""

    def __init__(self, engine: Engine, disk: Disk, losses: Losses) -> None:
        self._engine = engine
        self._disk = disk
        self._losses = losses
        #: The last relocation, if it cannot be read.
        self._unread: Unread | None = None

    def read(self, start: int) -> Iterator[Moved]:
        """Rows of every record from a position on."""
        if start >> 32 not in numbers(self._disk, old=True):
            start = 0  # the numbers may have begun again
        for item in scan.scan_old(self._disk, self._engine.directory.identity.uuid, start):
            if type(item) is Found and item.header.kind == fact.RELOCATE:
                yield self._relocated(item.header, item.payload)
            elif type(item) is Damaged:
                found = self._salvage(item)
                if found is not None:
                    yield found
            elif type(item) is Torn:
                self._doubt(item)

    def _doubt(self, item: Torn) -> None:
        """The last relocation cannot be read: it was never finished, or it is damaged.

        If it was finished, its messages are nowhere else, and are missed when all is read.
        """
        lost = scan.unreadable_bytes(self._disk, item.position) if item.nbytes else 0
        if lost:
            self._losses.report(f"{lost} bytes of the old segments' end cannot be read")
        for header in item.headers:
            self._unread = Unread(self._disk, header)
            self._losses.doubtful.setdefault(header.pid, set()).update(self._unread.seqs or ())

    def end(self) -> int | None:
        """Where the old generation goes on, if its last record was cut short."""
        if self._unread is None:
            return None
        header = self._unread.header
        shard = self._engine.catalog.shards.get(header.pid)
        partition = None if shard is None else shard.partition
        if self._unread.was_cut_short(partition, self._losses.doubtful.get(header.pid, ())):
            return header.position
        return None

    def settle_doubts(self) -> None:
        """Name doubtful messages that are neither there nor known to have left."""
        for pid, seqs in self._losses.doubtful.items():
            shard = self._engine.catalog.shards.get(pid)
            if shard is None:
                continue
            for seq in sorted(seqs):
                if shard.partition.index.locate(seq) is None:
                    self._losses.report(f"relocated message {message_id(pid, seq)} cannot be read")

    def _relocated(self, header: Header, payload: memoryview) -> Moved:
        """Rows of an old-generation record, with the place of their bodies."""
        count, at = header.count, fact.RELOCATE_HEAD.size
        as_of = fact.RELOCATE_HEAD.unpack_from(payload)[0]
        seqs = np.frombuffer(payload[at : at + 8 * count], dtype="<u8").tolist()
        block = bytearray(payload[at + 8 * count : at + 72 * count])
        view = np.frombuffer(block, dtype=rows.DTYPE)
        view["segment"] = header.position >> 32
        view["offset"] += (header.position & OFFSET_MASK) + HEADER_BYTES
        first = min(seqs)
        self._engine.note_range(header.position >> 32, header.pid, first, max(seqs) - first + 1)
        return header.pid, seqs, memoryview(block), as_of

    def _salvage(self, item: Damaged) -> Moved | None:
        """What can be proven of a damaged old-generation record; bodies are checked when read."""
        header, payload = item.header, item.payload
        if header is None or payload is None or header.kind != fact.RELOCATE:
            self._losses.without_record |= set(self._engine.catalog.shards)
            self._losses.report(f"old segment record at {item.position:#x} cannot be read")
            return None
        at, count = fact.RELOCATE_HEAD.size, header.count
        packed, block = payload[at : at + 8 * count], payload[at + 8 * count : at + 72 * count]
        _, rows_crc, seqs_crc = fact.RELOCATE_HEAD.unpack_from(bytes(payload[:at]).ljust(at))
        seqs_known = len(packed) == 8 * count and crc32c(bytes(packed)) == seqs_crc
        if seqs_known and len(block) == 64 * count and crc32c(bytes(block)) == rows_crc:
            return self._relocated(header, payload)
        self._losses.without_record.add(header.pid)
        if seqs_known:
            for seq in np.frombuffer(packed, dtype="<u8").tolist():
                self._losses.report(
                    f"relocated message {message_id(header.pid, seq)} cannot be read"
                )
        else:
            self._losses.report(
                f"{count} relocated messages of partition {header.pid:x} cannot be read"
            )
        return None
