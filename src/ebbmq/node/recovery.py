"""Opening a data directory: newest good checkpoint, every fact after it, what follows from them.

Damage is never guessed around: a record that cannot be read is set aside and named, message by
message where its header can be read, and a partition whose checkpointed page and records are both
unreadable is faulty. A torn tail, which nobody was told about, is cut off.
"""

from __future__ import annotations

import gc
from contextlib import closing
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.core import envelope, held, reviewed
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.core.block import DUE, ENQUEUED, as_words
from ebbmq.core.names import unpack as unpack_names
from ebbmq.core.restore import Restorer
from ebbmq.core.row import HIGH, LOW48, ROW
from ebbmq.errors import DamagedRecord
from ebbmq.journal import belonging, checkpoint, record, scan
from ebbmq.journal.found import Begun, Damaged, Found, Torn
from ebbmq.journal.log import Log
from ebbmq.journal.mend import mended
from ebbmq.journal.segment import FIRST_POSITION, OFFSET_MASK, OLD, name_of, numbers
from ebbmq.journal.unreadable import parts
from ebbmq.node import catalog as declared
from ebbmq.node import declaring
from ebbmq.node.deriving import derive, let_go_of_unread
from ebbmq.node.dropping import CUT_SHORT, MISSING, size_of, sort_out_rows
from ebbmq.node.keeping.reviewing import is_reviewed
from ebbmq.node.log import log
from ebbmq.node.losses import Losses
from ebbmq.node.numbering import Numbering
from ebbmq.node.outflow import message_id
from ebbmq.node.relocated import Relocated
from ebbmq.node.relocating import relocate
from ebbmq.node.salvage import Salvage
from ebbmq.node.undeclared import Undeclared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt

    from ebbmq.journal.disk import Disk
    from ebbmq.journal.found import Item
    from ebbmq.node.engine import Engine

#: Kinds of blobs in a checkpoint.
PAGE: Final = 1
DEDUP: Final = 2
HISTORIES: Final = 4
COPIES: Final = 5
NAMES: Final = 6
REVIEWED: Final = 7
_PAGE: Final = 4_096
_ABOUT_NODE: Final = frozenset({fact.META, fact.CLOCK, fact.RULES, fact.ADVISED})


class Recovery:
    """One opening of a data directory."""

    def __init__(self, engine: Engine, journal_disk: Disk, checkpoint_disk: Disk) -> None:
        self._engine = engine
        self.disks = journal_disk, checkpoint_disk
        self._journal_disk = journal_disk
        self._checkpoint_disk = checkpoint_disk
        self._losses = Losses(engine)
        self._old = Relocated(engine, journal_disk, self._losses)
        self._undeclared = Undeclared(engine, self._losses)
        self._salvage = Salvage(engine, self._losses, self._has, self._restorer)
        self._restorers: dict[int, Restorer] = {}
        self._uuid = engine.directory.identity.uuid
        self.queue_ms = self.clock_ms = 0
        self.generation = 0
        self._start = self._old_start = 0
        self._item_end = 0
        #: The catalog is known as it was last; older ones are not taken.
        self._is_declared = False
        #: What a checkpoint declares, and as of which position, until that is read.
        self._told_later: tuple[int, declared.Declared] | None = None
        #: Rows of old-generation segments by partition, until that is declared.
        self._relocations: dict[int, list[tuple[list[int], memoryview, int]]] = {}
        #: By partition: messages about which facts after the checkpoint tell.
        self._touched: dict[int, set[int]] = {}
        #: The highest position that a record proves to have been on the device.
        self._proven = 0
        #: The last checkpoint was written by a close, and nothing after it.
        self.was_closed = False
        #: Segments in doubt have what no checkpoint knows: the last one must stay the last.
        self.keeps_checkpoint = False
        self.wall_ms = 0

    def run(self, *, threaded: bool = True) -> Log:
        """Put everything back and return the journal, ready to go on."""
        end = self.read()
        self._engine.checkpoint_position = self._start
        if end >> 32 in self._engine.doubted:
            end = (end >> 32) + 1 << 32  # it may be put back as it was
        self._write_tail_again(end)
        return Log.open(
            self._journal_disk,
            self._uuid,
            end,
            segment_bytes=self._engine.config.segment_bytes,
            threaded=threaded,
            old_end=self._old.end(),
            old_number=self._old.first_number(),
            known_synced=self._proven,
            counted=fact.WITH_MESSAGES,
        )

    def _write_tail_again(self, end: int) -> None:
        """Write what no record proves to be on the device once more, so that a sync means it.

        After a sync that failed, the kernel shows bytes that the device never got, and does not try
        again by itself.
        """
        present = numbers(self._journal_disk, old=False)
        for number in range(max(self._proven >> 32, 1), (end >> 32) + 1):
            start = self._proven & OFFSET_MASK if number == self._proven >> 32 else 0
            if number not in present:
                continue
            with closing(self._journal_disk.open(name_of(number))) as file:
                stop = end & OFFSET_MASK if number == end >> 32 else file.size()
                # Whole pages: a part of one is not sure to bring the rest of it along.
                start, stop = start // _PAGE * _PAGE, min(-(-stop // _PAGE) * _PAGE, file.size())
                for part in parts(file, start, stop - start, _PAGE):
                    if part.data is not None:
                        file.write(part.offset, [part.data])

    def since_ms(self, wall_ms: int) -> int:
        """By how much the calendar has gone on since the last entry; 0 where none tells of it."""
        return wall_ms - self.wall_ms if self.wall_ms else 0

    def read(self) -> int:
        """Put the rows back and return where the journal ends; nothing on disk is changed.

        Raises:
            StorageFailed: the journal is gone, another store's, or a later version's.
        """
        has_log = self._engine.directory.identity.has_log
        belonging.check(self._journal_disk, self._uuid, has_log=has_log)
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._replay(self._load_checkpoint())
        finally:
            if collecting:
                gc.enable()

    def _load_checkpoint(self) -> int:
        """Put pages and catalog back; returns a position known to be durable."""
        loaded = checkpoint.Checkpoints(self._checkpoint_disk).load()
        if loaded is None:
            return 0
        self.generation = loaded.generation
        self._start = loaded.start_position
        status = declared.read_status(loaded.meta)
        self._old_start = status.old_position
        self.queue_ms = self.clock_ms = status.queue_ms
        self.wall_ms = status.wall_ms
        self.was_closed = status.closed
        self._engine.keeping.reviewer.resumed = status.reviewed
        self._declare(status.declared)
        self._old.declared(status.declared)
        self._losses.numbering.know(status.ranges)
        if status.first_seqs is None:
            self._losses.numbering.declared(status.declared)
        else:
            self._losses.numbering.begin(status.first_seqs, status.declared.epoch)
            self._told_later = (status.synced, status.declared)
        if status.rules:
            self._engine.rules.restore(status.rules)
        if status.advised:
            self._engine.adviser.runs.restore(status.advised)
        self._engine.ranges = {segment: dict(known) for segment, known in status.ranges.items()}
        for pid, totals in status.totals.items():
            if pid in self._engine.catalog.shards:
                self._engine.catalog.shards[pid].partition.totals.update(totals)
        with closing(loaded):
            unread = sum(not self._load_blob(loaded, blob) for blob in loaded.blobs)
        if unread:
            # Without one of its pages a checkpoint proves nothing about what is gone: read all.
            self._forget()
            self._start = self._old_start = 0
        return status.synced

    def _load_blob(self, loaded: checkpoint.Loaded, blob: checkpoint.Blob) -> bool:
        shard = self._engine.catalog.shards.get(blob.pid)
        if shard is None:
            return True
        try:
            payload = loaded.read(blob)
        except DamagedRecord as error:
            self._losses.report(f"checkpoint: {error.detail}")
            self._losses.without_page.add(blob.pid)
            return False
        if blob.kind == PAGE:
            self._restorer(blob.pid).page(blob.number, payload, blob.position)
        elif blob.kind == DEDUP:
            shard.partition.dedup.restore(payload)
        elif blob.kind == HISTORIES:
            shard.partition.histories.restore(payload)
        elif blob.kind == NAMES:
            self._restorer(blob.pid).named(unpack_names(payload), blob.position)
        elif blob.kind == REVIEWED:
            self._engine.keeping.reviewer.resume(shard, reviewed.unpack(payload))
        elif blob.kind == COPIES:
            self._copies(payload[0], blob.pid, payload[1:])
        return True

    def _forget(self) -> None:
        engine = self._engine
        for name in list(engine.catalog.queues):
            for shard in engine.catalog.queues.pop(name).shards:
                engine.residency.close(shard.partition.pid)
                del engine.catalog.shards[shard.partition.pid]
        self._restorers.clear()
        self._losses.numbering = Numbering()
        self._told_later = None
        engine.ranges.clear()

    def _declare(self, told: declared.Declared) -> None:
        """Make the catalog what a META fact says."""
        catalog = self._engine.catalog
        catalog.next_pid = max(catalog.next_pid, told.next_pid)
        self._undeclared.first_pid = catalog.next_pid
        catalog.epoch = max(catalog.epoch, told.epoch)
        catalog.factors, catalog.decided = dict(told.factors), dict(told.decided)
        catalog.deleted.clear()
        catalog.deleted.extend(told.deleted)
        catalog.damage.clear()
        catalog.damage.extend(told.damage)
        self._losses.segments = [number for number in told.segments if not number & OLD]
        names = {entry.spec.name: entry for entry in told.queues}
        for name in list(catalog.queues):
            if name not in names or names[name].pids != [
                shard.partition.pid for shard in catalog.queues[name].shards
            ]:
                for shard in catalog.queues.pop(name).shards:
                    self._engine.residency.close(shard.partition.pid)
                    catalog.shards.pop(shard.partition.pid, None)
                    self._restorers.pop(shard.partition.pid, None)
        for entry in told.queues:
            queue = catalog.queues.get(entry.spec.name)
            if queue is None:
                queue = declaring.add_queue(self._engine, entry.spec, entry.pids)
            elif queue.spec != entry.spec:
                queue.spec = entry.spec
                for shard in queue.shards:
                    shard.partition.adopt(entry.spec)
            queue.paused, queue.version = entry.paused, entry.version
            queue.consumer = entry.consumer
            for controller, state in zip(queue.controllers(), entry.adapted, strict=False):
                controller.restore(state)
            for shard, next_seq in zip(queue.shards, entry.next_seqs, strict=True):
                shard.partition.paused = entry.paused
                index = shard.partition.index
                index.next_seq = max(index.next_seq, next_seq)
        catalog.topics = {entry.spec.name: entry for entry in told.topics}
        catalog.follow_topics()
        self._apply_relocations()

    def _restorer(self, pid: int) -> Restorer:
        found = self._restorers.get(pid)
        if found is None:
            found = Restorer(self._engine.catalog.shards[pid].partition)
            self._restorers[pid] = found
        return found

    # Facts

    def _replay(self, known_synced: int) -> int:
        """Read the journal; returns where it ends."""
        self._proven = known_synced
        for pid, seqs, block, as_of in self._old.read(self._old_start):
            self._relocations.setdefault(pid, []).append((seqs, block, as_of))
        if not self._start:
            self._declare_ahead(0)
            self._note_beginning()
        self._apply_relocations()
        end = self._start or FIRST_POSITION
        for item in scan.scan(
            self._journal_disk,
            self._uuid,
            self._start,
            known_synced=known_synced,
            # Bodies are checked when they are delivered; without a checkpoint all of it counts.
            enough=_enough if self._start else None,
        ):
            end = self._item_end = item.end
            self.was_closed = False
            self._tell_later(item.position)
            self._take(item)
        self._tell_later(max(end, known_synced))
        for pid in sorted(self._relocations):
            self._has(pid, end)
        for restorer in self._restorers.values():
            restorer.settle()
        self._old.settle()
        self._find_missing()
        self._losses.name_missing()
        sort_out_rows(self._engine, self._losses, self._journal_disk)
        self._undeclared.settle()
        self._old.name_lost(has_checkpoint=self._start > 0)
        # Where nothing at all could be read the end is before the first segment, which is 1.
        return max(end, known_synced, FIRST_POSITION)

    def _tell_later(self, position: int) -> None:
        """Tell how far numbers had come when a checkpoint was finished, once that is reached."""
        if self._told_later is not None and position >= self._told_later[0]:
            self._losses.numbering.declared(self._told_later[1])
            self._told_later = None

    def _note_beginning(self) -> None:
        """The segments before the first one that is there were given back, or are missing."""
        first = min(numbers(self._journal_disk, old=False), default=1)
        missing = [number for number in self._losses.segments if number < first]
        for number in missing or range(1, first)[-1:]:
            self._losses.numbering.absent(number)

    def _find_missing(self) -> None:
        """Find the segments that there should be; what no checkpoint knows may be read later."""
        losses, doubted = self._losses, self._engine.doubted
        present = {n for old in (False, True) for n in numbers(self._journal_disk, old=old)}
        losses.missing = sorted(set(losses.segments) - present)
        doubted.update(dict.fromkeys(losses.missing, MISSING))
        starts = self._start >> 32, self._old_start >> 32
        self.keeps_checkpoint = any(n >= starts[n & OLD > 0] for n in doubted)

    def _apply_relocations(self) -> None:
        """Put back relocated rows of the partitions that are declared by now."""
        for pid in self._relocations.keys() & self._engine.catalog.shards.keys():
            for seqs, block, as_of in self._relocations.pop(pid):
                self._restorer(pid).relocated(seqs, block, as_of, self._start)

    def _take(self, item: Item) -> None:
        if type(item) is Found:
            head = item.header
            self._proven = max(self._proven, head.synced)
            # What was read now is read again next time, unless a checkpoint comes before.
            self._engine.facts_since_checkpoint += head.count
            self._fact(head.kind, head.pid, head.count, head.first, item.payload, item.position)
        elif type(item) is Begun:
            self._begun(item)
        elif type(item) is Torn:
            self._torn(item)
        elif type(item) is Damaged:
            number = item.position >> 32
            if number in numbers(self._journal_disk, old=False):
                self._damaged(item)
            else:
                # The last to tell which there are did not know of one that was made after it.
                if number > max(self._losses.segments, default=0):
                    self._losses.segments.append(number)
                self._losses.numbering.absent(number)

    def _begun(self, item: Begun) -> None:
        """Take in rows without their bodies; the whole record if they cannot tell all."""
        payload = item.payload
        size = fact.ROWS_HEAD.size
        block = payload[size:]
        is_good = crc32c(block) == fact.ROWS_HEAD.unpack_from(payload)[0]
        if not is_good or as_words(block)[:, DUE].max() > LOW48:
            self._take(scan.whole(self._journal_disk, item.header))
            return
        self._take(Found(item.header, payload))

    def _has(self, pid: int, position: int) -> bool:
        """Whether there is a partition; one whose declaration is lost is given a queue."""
        shards, undeclared = self._engine.catalog.shards, self._undeclared
        if pid in shards:
            return True
        if pid >= undeclared.first_pid and not self._is_declared:
            self._declare_ahead(position)
        if pid not in shards and pid >= undeclared.first_pid:
            undeclared.make(pid)
            self._apply_relocations()
        return pid in shards

    def _declare_ahead(self, position: int) -> None:
        """Take the catalog as it was last: without a checkpoint, facts may precede it.

        What was declared and deleted before does not matter any more. With a checkpoint it is done
        if facts precede it all the same, since what came before them cannot be read.
        """
        self._is_declared = True
        last: bytes | None = None
        for item in scan.scan(
            self._journal_disk,
            self._uuid,
            position,
            known_synced=self._proven,
            enough=_only_catalogs,
        ):
            found = self._mended(item) or item
            if type(found) is Found and found.header.kind == fact.META:
                last = bytes(found.payload)
        if last is not None:
            self._declare(declared.read_declared(last))

    def _fact(
        self, kind: int, pid: int, count: int, first: int, payload: memoryview, position: int
    ) -> None:
        """Make one fact true."""
        if kind == fact.GROUP:
            for part_kind, part_pid, part_count, part_first, _, part in fact.grouped(payload):
                self._fact(part_kind, part_pid, part_count, part_first, part, position)
        elif kind in _ABOUT_NODE:
            self._about_node(kind, payload)
        elif kind == fact.MOVED:
            self._old.moved(pid, first, payload)
        elif kind in (fact.HELD, fact.GONE, fact.PINNED):
            self._copies(kind, pid, payload)
            self._touch(pid, held.seqs_of(kind, payload) if kind == fact.HELD else ())
        else:
            if kind == fact.REMOVE:
                self._engine.removals.note(bytes(payload), self._item_end)
            if self._has(pid, position):
                self._about_messages(kind, pid, count, first, payload, position)

    def _about_node(self, kind: int, payload: memoryview) -> None:
        if kind == fact.META:
            told = declared.read_declared(payload)
            self._losses.numbering.declared(told)
            self._old.declared(told)
            if not self._is_declared:
                self._declare(told)
        elif kind == fact.CLOCK:
            self.clock_ms, self.wall_ms = fact.CLOCK_FACT.unpack_from(payload)
            self.queue_ms = max(self.queue_ms, self.clock_ms)
        else:
            node = self._engine.rules if kind == fact.RULES else self._engine.adviser.runs
            node.restore(payload)

    def _copies(self, kind: int, pid: int, payload: bytes | memoryview) -> None:
        if kind == fact.PINNED:
            self._engine.pins.restore(pid, payload)
            return
        for told in held.unpack(kind, pid, payload):
            self._engine.holdings.restore(told)

    def _about_messages(
        self, kind: int, pid: int, count: int, first: int, payload: memoryview, position: int
    ) -> None:
        restorer = self._restorer(pid)
        if kind == fact.PUBLISH:
            self._published(pid, first, count, payload, position)
        elif kind == fact.ACK:
            runs = fact.acked(payload)
            restorer.acked(runs, position)
            for start, length in runs:
                self._losses.left(pid, range(start, start + length))
        elif kind == fact.GRANT:
            grant = fact.granted(payload)
            self.queue_ms = max(self.queue_ms, grant.at_ms)
            restorer.granted(grant, position)
            for start, length, _ in grant.runs:
                self._touch(pid, range(start, start + length))
        elif kind == fact.STATE:
            for seq, row, history in fact.states(payload, count):
                restorer.changed(seq, row, history, position)
                self._touch(pid, (seq,))
        elif kind == fact.REMOVE:
            records = np.frombuffer(payload, dtype=fact.REMOVAL_DTYPE)
            self.queue_ms = max(self.queue_ms, int(records["at_ms"].max()))
            restorer.removed(records, position)
            self._losses.left(pid, records["seq"].tolist())

    def _touch(self, pid: int, seqs: Iterable[int]) -> None:
        """Have messages looked at of which a checkpoint may have told too early when to."""
        shard = self._engine.catalog.shards.get(pid)
        if shard is not None and self._engine.devices is not None and is_reviewed(shard.queue):
            self._touched.setdefault(pid, set()).update(seqs)

    def _published(
        self, pid: int, first: int, count: int, payload: memoryview, position: int
    ) -> None:
        self._engine.note_range(position >> 32, pid, first, count)
        self._losses.numbering.published(pid, first, count)
        block = payload[8 : 8 + 64 * count]
        words = as_words(block)
        self.queue_ms = max(self.queue_ms, int(words[0, ENQUEUED]) & LOW48)
        self._restorer(pid).published(first, block, position)
        if words[:, DUE].max() > LOW48:
            view = np.frombuffer(block, dtype=rows.DTYPE)
            self._remember_ids(pid, first, view, payload[8 + 64 * count :])

    def _remember_ids(
        self,
        pid: int,
        first: int,
        view: npt.NDArray[np.void],
        bodies: memoryview,
    ) -> None:
        dedup = self._engine.catalog.shards[pid].partition.dedup
        at = 0
        for number, row in enumerate(view):
            size = int(row["due"]) >> HIGH
            if size and at + size <= len(bodies):
                name = envelope.unpack(bytes(bodies[at : at + size])).id
                if name is not None:
                    dedup.add(name, first + number, int(row["enqueued"]) & LOW48)
            at += int(row["length"])

    # Damage

    def _torn(self, item: Torn) -> None:
        for header in item.headers:
            if header.kind == fact.PUBLISH:
                ids = f"{message_id(header.pid, header.first)} and {header.count - 1} after it"
                log.warning("torn_tail", messages=ids)
        if item.nbytes:
            log.warning("torn_tail", position=hex(item.position), discarded_bytes=item.nbytes)
            self._engine.torn_bytes = item.nbytes
            lost = scan.unreadable_bytes(self._journal_disk, item.position)
            if lost:
                # A kill leaves none of that: it may have been confirmed.
                self._losses.report(
                    f"{lost} bytes at the end of the journal, from {item.position:#x} on, "
                    "cannot be read; what was last published may be lost"
                )

    def _damaged(self, item: Damaged) -> None:
        """Take a record whose header could be mended; of others what can be proven."""
        found = self._mended(item)
        if found is not None:
            log.warning("mended_header", position=hex(item.position))
            self._take(found)
            return
        number = item.position >> 32
        if item.end & OFFSET_MASK > size_of(self._journal_disk, number):
            self._engine.doubted[number] = CUT_SHORT
        self._salvage.keep(item)

    def _mended(self, item: Item) -> Found | Damaged | None:
        """A record of which one bit of the header was wrong; None where that is not so."""
        if type(item) is not Damaged or item.header is not None:
            return None
        if item.position >> 32 not in numbers(self._journal_disk, old=False):
            return None
        return mended(self._journal_disk, self._uuid, item)

    def finish(self, now_ms: int, *, accept_damage: bool) -> None:
        """Derive order, wheels, counts and shares; the engine's time is known."""
        if accept_damage:
            self._losses.accept()
            self._engine.doubted.clear()
            self.keeps_checkpoint = False
        self._losses.remember()
        self._engine.keeping.is_whole = not self._engine.damage
        derive(
            self._engine,
            self._losses,
            now_ms,
            was_closed=self.was_closed,
            accept_damage=accept_damage,
        )
        for pid, shard in self._engine.catalog.shards.items():
            touched = sorted(self._touched.get(pid, ()))
            self._engine.keeping.reviewer.resume_with(shard, touched, now_ms)

    def let_go_of_unread(self) -> None:
        """Have messages that cannot be read leave on the record, now that the journal is open."""
        let_go_of_unread(self._engine, self._losses)

    def give_homes(self) -> None:
        """Write rows of messages that only devices have now into a segment that is there."""
        for pid, seqs in self._losses.homeless.items():
            shard = self._engine.catalog.shards[pid]
            for at in range(0, len(seqs), limits.RECORD_ROWS_MAX):
                some = seqs[at : at + limits.RECORD_ROWS_MAX]
                relocate(self._engine, shard, some, [b""] * len(some), home=False)
        self._engine.journal.sync_old()

    def given_up(self, pid: int) -> Collection[int]:
        """Messages of a partition whose rows are there, and which are told to be lost."""
        return self._losses.unread.get(pid, ())

    def faulty(self) -> set[int]:
        """Partitions of which neither checkpoint nor journal tells all."""
        return self._losses.faulty()


def _enough(header: record.Header) -> int:
    """Of published messages only the rows."""
    if header.kind == fact.PUBLISH:
        return fact.ROWS_HEAD.size + header.count * ROW.size
    return header.payload_bytes


def _only_catalogs(header: record.Header) -> int:
    return header.payload_bytes if header.kind == fact.META else 0
