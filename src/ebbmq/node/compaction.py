"""Giving disk space back: whole segments when they are dead, stragglers moved out of thin ones.

A segment may go when no live body is in it. Facts in it that still matter, because they tell of
messages whose record is in another segment that stays, are written again at the head of the journal
first (obituaries for the gone, states for the living), so the order in which segments go is free
and no acked message ever comes back, with or without a checkpoint.

A thin segment's live messages are copied, with all that is known of them, into old-generation
segments, which hold no facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.core import held
from ebbmq.core.block import Block
from ebbmq.core.copies import Changed, name_of
from ebbmq.core.row import ELSEWHERE, FREE
from ebbmq.journal import scan
from ebbmq.journal.found import Found
from ebbmq.journal.segment import OLD
from ebbmq.node import noting, rule_changes
from ebbmq.node.advising import pinning
from ebbmq.node.log import log
from ebbmq.node.obituaries import Told
from ebbmq.node.relocating import moved_facts, relocate
from ebbmq.node.removals import flush_in_parts

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.copies import Devices, Holding, Name
    from ebbmq.core.index import Page
    from ebbmq.journal.contract import SegmentInfo
    from ebbmq.journal.disk import Disk
    from ebbmq.journal.record import Header
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

#: What takes well under a millisecond.
_ROWS_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = limits.MIB // 4
#: About what it takes to say of a message in which old segment it is.
_MOVED_BYTES: Final = 8


class Compactor:
    """Deletes and thins segments; called by one thread, the lock taken in short slices."""

    def __init__(self, engine: Engine, disk: Disk) -> None:
        self._engine = engine
        self._disk = disk

    def run(self) -> None:
        """Delete what is dead, then relocate while the disk holds more than twice what lives."""
        with self._engine.compacting:
            dead, thin = self._survey()
            for number in dead:
                self._delete(number)
            for number in thin:
                self._relocate(number)
                self._delete(number)

    def _rest(self) -> None:
        """Let others compute; what is to be moved is not kept waiting for what gives space back."""
        self._engine.in_turn.rest()
        if self._engine.devices is not None:
            self._engine.keeping.reviewer.run_meanwhile()

    def waits_for_checkpoint(self) -> bool:
        """Whether a dead segment stays only because producers' ids in it are nowhere else."""
        engine = self._engine
        with engine.in_turn:
            covered = self._covered()
            live = self.live_bytes()
            return any(
                segment.sealed
                and not segment.number & OLD
                and covered >> 32 <= segment.number < engine.journal.synced_position >> 32
                and not live.get(segment.number, 0)
                for segment in engine.journal.segments()
            )

    def _covered(self) -> int:
        """Producers' ids before this position outlive their segments (the lock is held).

        On a full disk there may be no room for a checkpoint, and space comes first.
        """
        engine = self._engine
        if engine.disk_full or not any(
            len(shard.partition.dedup) for shard in engine.catalog.shards.values()
        ):
            return engine.journal.position
        return engine.checkpoint_position

    def live_bytes(self) -> dict[int, int]:
        """Bytes of live messages by segment (the lock is held)."""
        total = dict(self._engine.shared_bytes)
        for shard in self._engine.catalog.shards.values():
            for segment, size in shard.partition.ledger.items():
                total[segment] = total.get(segment, 0) + size
        return total

    def _survey(self) -> tuple[list[int], list[int]]:
        """Segments to delete, and segments to relocate, thinnest first."""
        engine = self._engine
        with engine.in_turn:
            live = self.live_bytes()
            synced = engine.journal.synced_position
            covered = self._covered()
            segments = [s for s in engine.journal.segments() if s.sealed and s.used_bytes]
            segments = [s for s in segments if s.number not in engine.doubted]
            for shard in engine.catalog.shards.values():
                ledger = shard.partition.ledger
                for number in [n for n, size in ledger.items() if size == 0]:
                    del ledger[number]
        usable = [s for s in segments if s.number & OLD or s.number < min(synced, covered) >> 32]
        dead = [s.number for s in usable if not live.get(s.number, 0)]
        return dead, self._thin(usable, live)

    def _thin(self, segments: list[SegmentInfo], live: dict[int, int]) -> list[int]:
        held = sum(live.values())
        used = sum(s.used_bytes for s in segments if live.get(s.number, 0))
        allowed = 2 * held + self._engine.config.segment_bytes // 2
        chosen: list[int] = []
        for segment in sorted(segments, key=lambda s: live.get(s.number, 0) / s.used_bytes):
            mine = live.get(segment.number, 0)
            if used <= allowed:
                break
            if mine and mine * 2 <= segment.used_bytes:
                chosen.append(segment.number)
                used -= segment.used_bytes - mine
        return chosen

    # Relocation

    def _relocate(self, number: int) -> None:
        """Copy the live messages of a segment into the old generation; their rows point there."""
        with self._engine.in_turn:
            # No message is published into a segment that is sealed.
            shards, ranges = self._engine.catalog.shards, self._engine.ranges.get(number, {})
            there = [(shards[pid], *ranges[pid]) for pid in ranges if pid in shards]
        for shard, first, last in there:
            for page_number in range(first >> 12, (last >> 12) + 1):
                self._relocate_page(shard, page_number, number)
        self._engine.journal.sync_old()

    def _relocate_page(self, shard: Shard, page_number: int, segment: int) -> None:
        while True:
            with self._engine.in_turn:
                page = shard.partition.index.pages.get(page_number)
                seqs = [] if page is None else _rows_in(page, segment, _ROWS_AT_ONCE)
                if not seqs or self._engine.closed is not None:
                    return
                self._move(shard, seqs)
            self._rest()

    def _move(self, shard: Shard, seqs: list[int]) -> None:
        """Relocate messages, as many as may be under one hold of the lock (which is held)."""
        words = shard.partition.index.words_of(np.array(seqs, dtype=np.uint64))
        rows = Block(words).as_rows()
        # A body that is elsewhere stays there: of such a message only the row is here.
        sizes = np.where(rows["flags"] & ELSEWHERE, 0, rows["length"]).astype(np.int64)
        count = max(1, int(sizes.cumsum().searchsorted(_BYTES_AT_ONCE, "right")))
        bodies = self._bodies(shard, seqs[:count], rows[:count], sizes[:count])
        relocate(self._engine, shard, seqs[:count], bodies, home=False)

    def _bodies(
        self,
        shard: Shard,
        seqs: list[int],
        rows: npt.NDArray[np.void],
        sizes: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """The bodies of rows, damaged ones as they are."""
        if not sizes.any():
            return [b""] * len(seqs)
        places = np.column_stack((rows["segment"], rows["offset"], sizes))
        bodies = self._engine.journal.read_many(places.astype(np.int64, copy=False))
        told = (seqs, bodies, rows["crc"].tolist(), sizes.tolist())
        for seq, body, crc, length in zip(*told, strict=True):
            if length and crc32c(body) != crc:
                log.error("damaged_body", message=f"{shard.partition.pid:x}-{seq:x}")
        return bodies

    # Deletion

    def _delete(self, number: int) -> None:
        """Give a segment back, after what it told and that it goes was made durable."""
        engine = self._engine
        try:
            is_told = self._tell_that_old_goes(number) if number & OLD else self._tell_all(number)
            if not is_told:
                return
            engine.journal.delete_segment(number)
        finally:
            engine.leaving.discard(number)
        with engine.in_turn:
            engine.ranges.pop(number, None)
            engine.shared_bytes.pop(number, None)
            engine.unlisted.discard(number)

    def _tell_all(self, number: int) -> bool:
        """Say again what matters of a young segment; False: it cannot go."""
        engine = self._engine
        obituaries = self._facts_that_matter(number)
        for told in obituaries.values():
            told.join_gone()
        self._leave_out_gone(obituaries)
        self._tell_of_copies(obituaries)
        self._tell_of_moved(obituaries)
        with engine.in_turn:
            if self.live_bytes().get(number, 0) or engine.closed is not None:
                return False
            engine.append(self._still_true(obituaries, number))
            engine.leaving.add(number)
            noting.note_catalog(engine)
            if any(told.advised for told in obituaries.values()):
                engine.append([engine.adviser.runs.fact()])
            if engine.rules.segments is None or number in engine.rules.segments:
                rule_changes.note_rules(engine)
            position = engine.journal.position
        engine.journal.wait("synced", position)
        flush_in_parts(engine)
        with engine.in_turn:
            flush = engine.removals.begin_sync(engine.journal.synced_position)
        flush()
        return True

    def _tell_that_old_goes(self, number: int) -> bool:
        """Take an old segment off the list of those there should be; False: it cannot go."""
        engine = self._engine
        with engine.in_turn:
            if self.live_bytes().get(number, 0) or engine.closed is not None:
                return False
            engine.leaving.add(number)
            position = noting.note_catalog(engine)
        engine.journal.wait("synced", position)
        return True

    def _facts_that_matter(self, number: int) -> dict[int, Told]:
        """Per partition, what the facts in a segment tell."""
        out: dict[int, Told] = {}
        for item in scan.scan(
            self._disk,
            self._engine.directory.identity.uuid,
            number << 32,
            known_synced=self._engine.journal.synced_position,
            enough=_all_but_published,
        ):
            if item.position >> 32 != number:
                break
            if type(item) is not Found:
                continue
            header = item.header
            parts = [(header.kind, header.pid, header.count, header.first, item.payload)]
            if header.kind == fact.GROUP:
                parts = [(k, p, c, f, part) for k, p, c, f, _, part in fact.grouped(item.payload)]
            for kind, pid, count, first, payload in parts:
                out.setdefault(pid, Told()).note(kind, count, first, payload)
            self._rest()
        return out

    def _leave_out_gone(self, found: dict[int, Told]) -> None:
        """Of messages whose state changed leave out those that are gone, as they stay gone."""
        for pid, told in found.items():
            for page in told.changed.pages():
                with self._engine.in_turn:
                    shard = self._engine.catalog.shards.get(pid)
                    if shard is None:
                        break
                    told.changed.keep(page, _living(shard, told.changed.of(page)))
                self._rest()

    def _still_true(self, found: dict[int, Told], number: int) -> list[fact.Fact]:
        """What must be said again before a segment goes (the lock is held)."""
        engine = self._engine
        out: list[fact.Fact] = []
        for pid, told in found.items():
            shard = engine.catalog.shards.get(pid)
            if shard is None:
                continue
            spans = [
                known[pid]
                for segment, known in engine.ranges.items()
                if segment != number and pid in known
            ]
            runs = told.gone_within(spans)
            for at in range(0, len(runs), limits.RECORD_ROWS_MAX):
                part = runs[at : at + limits.RECORD_ROWS_MAX]
                packed = b"".join([fact.ACK_RUN.pack(first, count, 0) for first, count in part])
                out.append(fact.Fact(fact.ACK, pid, 0, part[0][0], [packed]))
            living = [
                seq
                for page in sorted(told.changed.pages())
                for seq in _living(shard, told.changed.of(page))
            ]
            for at in range(0, len(living), limits.RECORD_ROWS_MAX):
                entries = [
                    shard.partition.state_entry(seq)
                    for seq in living[at : at + limits.RECORD_ROWS_MAX]
                ]
                out.append(fact.state(pid, entries))
        return out

    def _tell_of_copies(self, found: dict[int, Told]) -> None:
        """Say again where bodies are, some at a time: what changes meanwhile is told after it."""
        engine = self._engine
        for pid, told in found.items():
            for some in told.copied(_ROWS_AT_ONCE):
                with engine.in_turn:
                    shard = engine.catalog.shards.get(pid)
                    if shard is None or engine.closed is not None:
                        break
                    pinned = [seq for seq in some if seq in told.pinned]
                    engine.append(self._copies(shard, some))
                    engine.append(pinning.said_again(engine, shard, pinned))
                self._rest()

    def _tell_of_moved(self, found: dict[int, Told]) -> None:
        """Say again in which old segments messages are, unless that would take much."""
        engine = self._engine
        count = sum(len(told.moved) for told in found.values())
        if count > engine.config.segment_bytes // _MOVED_BYTES // 8:
            with engine.in_turn:
                old = (segment.number for segment in engine.journal.segments())
                engine.unlisted.update(number for number in old if number & OLD)
            return
        for pid, told in found.items():
            for page in sorted(told.moved.pages()):
                with engine.in_turn:
                    shard = engine.catalog.shards.get(pid)
                    if shard is None or engine.closed is not None:
                        break
                    seqs = _living(shard, told.moved.of(page))
                    words = shard.partition.index.words_of(np.array(seqs, dtype=np.uint64))
                    engine.append(moved_facts(pid, Block(words).as_rows(), seqs))
                self._rest()

    def _copies(self, shard: Shard, seqs: list[int]) -> list[fact.Fact]:
        """What is true now of the copies of messages that are there, or not yet forgotten."""
        holdings, base = self._engine.holdings, name_of(shard.partition.pid, 0)
        names = [base | seq for seq in seqs]
        states = shard.partition.index.column(np.array(seqs, dtype=np.uint64), "state").tolist()
        there: dict[Holding, list[Name]] = {}
        gone: dict[Devices, list[Name]] = {}
        for name, state, holding in zip(names, states, holdings.of_many(names), strict=True):
            if state != FREE:
                there.setdefault(holding, []).append(name)
            elif (tombstone := holdings.tombstone(name)) is not None:
                gone.setdefault(tombstone.waiting, []).append(name)
        return held.pack_changed(Changed(there, gone))


def _all_but_published(header: Header) -> int:
    return 0 if header.kind == fact.PUBLISH else header.payload_bytes


def _living(shard: Shard, seqs: set[int]) -> list[int]:
    """Those messages that are there, of many that mostly are not."""
    numbers = np.sort(np.fromiter(seqs, np.uint64, len(seqs)))
    there = shard.partition.index.column(numbers, "state") != FREE
    living: list[int] = numbers[there].tolist()
    return living


def _rows_in(page: Page, segment: int, count: int) -> list[int]:
    """The first live messages of a page whose body is in a segment."""
    base = page.number * limits.PAGE_ROWS
    if page.thin is None:
        mine = (page.view["state"] != FREE) & (page.view["segment"] == segment)
        found: list[int] = (np.flatnonzero(mine)[:count] + base).tolist()
        return found
    return sorted(
        base + (slot >> 6)
        for slot, at in page.thin.items()
        if page.buffer[at] != FREE and int(page.view["segment"][at >> 6]) == segment
    )[:count]
