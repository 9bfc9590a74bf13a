"""Reading the old generation at a start: rows of relocated messages, with where they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.journal import scan
from ebbmq.journal.found import Damaged, Found, Torn
from ebbmq.journal.mend import mended
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import OFFSET_MASK, OLD, name_of, numbers
from ebbmq.node.dropping import CUT_SHORT, size_of
from ebbmq.node.log import log
from ebbmq.node.unfinished import Unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.journal.disk import Disk
    from ebbmq.journal.found import Item
    from ebbmq.journal.record import Header
    from ebbmq.node.catalog import Declared
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses
    from ebbmq.node.numbering import Spans

    #: Partition, messages, their rows, and the position up to which facts are in them.
    Moved = tuple[int, list[int], memoryview, int]


class Relocated:
    """The old generation of a data directory that is being opened."""

    def __init__(self, engine: Engine, disk: Disk, losses: Losses) -> None:
        self._engine = engine
        self._disk = disk
        self._losses = losses
        self._uuid = engine.directory.identity.uuid
        self._present = numbers(disk, old=True)
        #: The last relocation, if it cannot be read.
        self._unread: Unread | None = None
        #: The end of the last record whose header can be read or mended, or a checkpoint knows.
        self._known_end = 0
        #: What is read was written after the checkpoint.
        self._is_since_checkpoint = False
        #: By segment that was read, how far it can be.
        self._ends: dict[int, int] = {}
        #: Segments in which something cannot be read, and those of them where it was finished.
        self._damaged: set[int] = set()
        self._reported: set[int] = set()
        #: The segments there should be, and those whose messages are all named by MOVED facts.
        self._expected: set[int] = set()
        self._listed: set[int] = set()
        self._spans: Spans = {}

    def read(self, start: int) -> Iterator[Moved]:
        """Rows of every record from a position on."""
        if start >> 32 not in self._present:
            start = 0  # it is gone, or the numbers began again
        self._is_since_checkpoint = start > 0
        self._known_end = start
        self._ends = {number: 0 for number in self._present if number > start >> 32}
        for item in scan.scan_old(self._disk, self._uuid, start):
            found = self._mended(item)
            self._note_end(found)
            if type(found) is Found:
                self._ends[item.position >> 32] = found.end & OFFSET_MASK
                if found.header.kind == fact.RELOCATE:
                    yield self._relocated(found.header, found.payload)
            elif type(found) is Damaged:
                salvaged = self._salvage(found)
                if salvaged is not None:
                    yield salvaged
            elif type(found) is Torn:
                self._doubt(found)

    def _mended(self, item: Item) -> Item:
        """The record, if one bit of its header was wrong; otherwise what was found."""
        if type(item) is Torn and not item.headers and item.nbytes:
            found = mended(self._disk, self._uuid, Damaged(item.position, item.nbytes))
        elif type(item) is Damaged and item.header is None:
            found = mended(self._disk, self._uuid, item)
        else:
            return item
        if found is None:
            return item
        log.warning("mended_header", position=hex(item.position))
        return found

    def _note_end(self, item: Item) -> None:
        headers = item.headers if isinstance(item, Torn) else (item.header,)
        ends = [header.end for header in headers if header is not None]
        self._known_end = max([self._known_end, *ends])

    def declared(self, told: Declared) -> None:
        """Which segments there were at this place of the log."""
        self._expected, self._listed = set(told.old_segments), set(told.listed)
        self._spans = told.spans

    def moved(self, pid: int, first: int, payload: memoryview) -> None:
        """A record of an old segment has these messages: remembered where it may be lost."""
        segment, end, seqs = fact.moved_to(payload, first)
        if segment not in self._expected:
            self._expected.add(segment)
            self._listed.add(segment)
        moved = self._losses.moved
        is_there = segment in self._present and segment not in self._damaged
        if segment in self._present and end > size_of(self._disk, segment):
            self._engine.doubted[segment] = CUT_SHORT
        if not is_there or end > self._ends.get(segment, end):
            moved.setdefault(pid, {}).update(dict.fromkeys(seqs, segment))
        elif pid in moved:
            for seq in seqs:
                moved[pid].pop(seq, None)

    def _doubt(self, item: Torn) -> None:
        """The last relocation cannot be read: it was never finished, or it is damaged.

        If it was finished, its messages are nowhere else, and are missed when all is read.
        """
        self._damaged.add(item.position >> 32)
        lost = scan.unreadable_bytes(self._disk, item.position) if item.nbytes else 0
        if lost:
            self._losses.report(f"{lost} bytes of the old segments' end cannot be read")
        for header in item.headers:
            self._unread = Unread(self._disk, header)
            self._miss(header, self._unread.seqs or [])

    def _miss(self, header: Header, seqs: list[int]) -> None:
        """A record with these messages cannot be read."""
        self._losses.doubtful.setdefault(header.pid, set()).update(seqs)
        if self._is_since_checkpoint:
            lost = dict.fromkeys(seqs, header.position >> 32)
            self._losses.moved.setdefault(header.pid, {}).update(lost)

    def end(self) -> int | None:
        """Where the old generation goes on; None: nothing is known of its last segment."""
        if self._unread is not None:
            header = self._unread.header
            shard = self._engine.catalog.shards.get(header.pid)
            partition = None if shard is None else shard.partition
            if self._unread.was_cut_short(partition, self._losses.doubtful.get(header.pid, ())):
                return header.position
        last = self._present[-1] if self._present else 0
        return self._known_end if last and self._known_end >> 32 == last else None

    def first_number(self) -> int:
        """The least number for segments that are made from here on.

        Positions in one that is missing must not mean new bytes, and one whose messages are not
        all named is not gone on with.
        """
        unlisted = set(self._present) - self._listed
        doubted = {number for number in self._engine.doubted if number & OLD}
        return max((number + 1 for number in unlisted | doubted), default=OLD | 1)

    def settle(self) -> None:
        """Find out which segments are missing, and with them messages; all is read."""
        missing = sorted(self._expected - set(self._present))
        losses = self._losses
        losses.segments = [*losses.segments, *missing]
        self._engine.unlisted = {*missing, *self._present} - self._listed
        lost = {*missing, *self._present}
        for pid, known in losses.moved.items():
            losses.moved[pid] = {seq: number for seq, number in known.items() if number in lost}
            losses.doubtful.setdefault(pid, set()).update(losses.moved[pid])
        for number in sorted({*missing, *self._reported}):
            if number not in self._listed:
                for pid, (first, last) in self._spans.get(number, {}).items():
                    losses.doubt(pid, first, last + 1)
            elif losses.numbering.has_unread:
                which = name_of(number)
                losses.report(f"more messages of {which} may be lost, which the journal named")

    def name_lost(self, *, has_checkpoint: bool) -> None:
        """Name doubtful messages that are neither there nor known to have left.

        Of a record from before a checkpoint nobody knows who had left: its pages tell.
        """
        moved = self._losses.moved
        for pid, seqs in (moved if has_checkpoint else self._losses.doubtful).items():
            shard = self._engine.catalog.shards.get(pid)
            if shard is None:
                continue
            for seq in sorted(seqs):
                if shard.partition.index.locate(seq) is None:
                    segment = moved.get(pid, {}).get(seq, 0)
                    self._losses.ranges.append((pid, seq, seq + 1, "it cannot be read"))
                    self._losses.report(self._losses.of_relocated(pid, seq, segment))

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
            self._note_damage(item)
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
        self._note_damage(item)
        if seqs_known:
            self._miss(header, np.frombuffer(packed, dtype="<u8").tolist())
        else:
            self._losses.report(
                f"{count} relocated messages of partition {header.pid:x} cannot be read"
            )
        return None

    def _note_damage(self, item: Damaged) -> None:
        self._damaged.add(item.position >> 32)
        self._reported.add(item.position >> 32)
