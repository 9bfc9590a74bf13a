"""Writing checkpoints: dirty pages, a few at a time, each with the position it stands for."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.core import held, names, reviewed
from ebbmq.core.copies import Changed
from ebbmq.journal.checkpoint import Checkpoints
from ebbmq.node import catalog as declared
from ebbmq.node import noting
from ebbmq.node.advising import pinning
from ebbmq.node.recovery import COPIES, DEDUP, HISTORIES, NAMES, PAGE, REVIEWED
from ebbmq.node.removals import flush_in_parts

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ebbmq.core.copies import Devices, Name
    from ebbmq.core.index import Page
    from ebbmq.journal.disk import Disk
    from ebbmq.node.engine import Engine

#: Copying so much takes well under a millisecond.
_PAGES_AT_ONCE: Final = 2
_BODIES_AT_ONCE: Final = 2_048


class _Start(NamedTuple):
    """Where everything stood when a checkpoint was begun."""

    position: int
    old_position: int
    #: By partition, the number of the next message.
    next_seqs: dict[int, int]


class Checkpointer:
    """Writes one generation after the other; called by one thread."""

    def __init__(self, engine: Engine, disk: Disk, generation: int) -> None:
        self._engine = engine
        self._store = Checkpoints(disk)
        self._generation = generation
        #: The last one must stay the last: there may be more to read behind it.
        self.is_held = False

    def run_if_due(self) -> bool:
        """Write a checkpoint if enough happened since the last one."""
        engine = self._engine
        if engine.facts_since_checkpoint < engine.config.checkpoint_every_facts:
            return False
        self.run()
        return True

    def run(self, *, closing: bool = False) -> None:
        """Write a checkpoint."""
        if self.is_held:
            return
        engine = self._engine
        with engine.in_turn:
            start = _Start(
                engine.journal.position,
                engine.journal.old_position,
                {pid: each.partition.index.next_seq for pid, each in engine.catalog.shards.items()},
            )
            counted = engine.facts_since_checkpoint
            wanted = [
                (pid, page)
                for pid, shard in engine.catalog.shards.items()
                for page in shard.partition.index.pages.values()
            ]
            engine.facts_since_checkpoint = 0
        written: list[Page] = []
        try:
            self._store.begin(self._generation + 1)
            self._put_pages(wanted, written)
            self._put_copies(start.position)
            self._finish(start, closing=closing)
        except BaseException:
            with engine.in_turn:
                for page in written:
                    page.dirty = True
                engine.facts_since_checkpoint += counted
            raise
        self._generation += 1

    def _put_pages(self, wanted: list[tuple[int, Page]], written: list[Page]) -> None:
        for at in range(0, len(wanted), _PAGES_AT_ONCE):
            images: list[tuple[int, int, int, bytes]] = []
            with self._engine.in_turn:
                position = self._engine.journal.position
                for pid, page in wanted[at : at + _PAGES_AT_ONCE]:
                    if not page.live:
                        continue
                    if not page.dirty and self._store.keep(PAGE, pid, page.number):
                        continue
                    images.append((pid, page.number, position, page.image()))
                    page.dirty = False
                    written.append(page)
            for pid, number, position, image in images:
                self._store.put(PAGE, pid, number, position, image)
            self._engine.in_turn.rest()

    def _put_ids(self, ids: list[tuple[int, bytes, Generator[bytes]]], position: int) -> None:
        """Ids of each partition as of a position, some at a time."""
        with contextlib.ExitStack() as begun:
            for _, _, parts in ids:
                begun.enter_context(contextlib.closing(parts))
            for pid, head, parts in ids:
                taken = self._taken(head, parts)
                self._store.put_parts(DEDUP, pid, 0, position, taken)

    def _taken(self, head: bytes, parts: Iterator[bytes]) -> Iterator[bytes]:
        part: bytes | None = head
        while part is not None:
            yield part
            self._engine.in_turn.rest()
            with self._engine.in_turn:
                part = next(parts, None)

    def _put_copies(self, position: int) -> None:
        """Where bodies are, a few at a time: what changes meanwhile is in the journal after it."""
        engine = self._engine
        name: Name | None = 0
        numbers = count(1)
        while name is not None:
            with engine.in_turn:
                told, name = engine.holdings.told_from(name, _BODIES_AT_ONCE)
            self._put_told(told, numbers, position)
            engine.in_turn.rest()
        with engine.in_turn:
            removals = engine.holdings.removals()
        waited_for: dict[Devices, list[Name]] = {}
        for gone, tombstone in removals.items():
            waited_for.setdefault(tombstone.waiting, []).append(gone)
        self._put_told(Changed({}, waited_for), numbers, position)
        for kind, pid, _, _, parts in pinning.for_checkpoint(engine):
            payload = bytes([kind]) + b"".join(parts)
            self._store.put(COPIES, pid, next(numbers), position, payload)

    def _put_told(self, told: Changed, numbers: Iterator[int], position: int) -> None:
        for kind, pid, _, _, parts in held.pack_changed(told):
            payload = bytes([kind]) + b"".join(parts)
            self._store.put(COPIES, pid, next(numbers), position, payload)

    def _finish(self, start: _Start, *, closing: bool) -> None:
        engine = self._engine
        extras: list[tuple[int, int, bytes]] = []
        ids: list[tuple[int, bytes, Generator[bytes]]] = []
        with engine.in_turn:
            position = engine.journal.position
            for pid, shard in engine.catalog.shards.items():
                partition = shard.partition
                if len(partition.dedup):
                    parts = partition.dedup.entries()
                    ids.append((pid, next(parts), parts))
                if partition.histories:
                    extras.append((HISTORIES, pid, partition.histories.pack()))
                named = names.in_use(partition) if partition.names else {}
                if named:
                    extras.append((NAMES, pid, names.pack(named)))
            kept = {
                pid: engine.keeping.reviewer.reviewed(shard)
                for pid, shard in engine.catalog.shards.items()
            }
            told = engine.catalog.declared(noting.stored_segments(engine))
            totals = {
                pid: dict(shard.partition.totals) for pid, shard in engine.catalog.shards.items()
            }
            ranges = {segment: dict(known) for segment, known in engine.ranges.items()}
            queue_ms, wall_ms = engine.now_ms(), engine.calendar_ms()
            cursors = engine.keeping.reviewer.cursors()
            rules = engine.rules.whole() if engine.rules.version else b""
            advised = engine.adviser.runs.whole()
        self._put_ids(ids, position)
        extras += [(REVIEWED, pid, reviewed.pack(each)) for pid, each in kept.items() if each]
        # Pages may hold what the journal has only in memory: it must be durable before they count.
        engine.journal.wait("synced", position)
        engine.journal.sync_old()
        # Removals before the checkpoint are not read from the journal again.
        flush_in_parts(engine)
        with engine.in_turn:
            flush = engine.removals.begin_sync(engine.journal.synced_position)
        flush()
        for kind, pid, payload in extras:
            self._store.put(kind, pid, 0, position, payload)
        status = declared.Status(
            told,
            queue_ms,
            wall_ms,
            position,
            totals,
            ranges,
            closed=closing,
            old_position=start.old_position,
            first_seqs=start.next_seqs,
            reviewed=cursors,
            rules=rules,
            advised=advised,
        )
        self._store.commit(declared.pack_status(status), start.position)
        with engine.in_turn:
            engine.checkpoint_position = start.position
