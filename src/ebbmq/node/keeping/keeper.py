"""The holdings of a node at work: facts to the journal, effects to the mover, results back.

Theory of operation. Intake appends a message with its body to the node's log, as ever, and says in
the same commit where else it should be (`place`). The mover makes the copies; each result is a step
of the holdings, and its facts are appended before what follows from it is carried out
(`carrying`).

A queue that needs more than one copy (`min_copies`) holds its messages back, and their confirms,
until enough devices have confirmed (`confirming`).

Everything here is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ebbmq.core.block import FLAGS_BIT, KIND, STATE
from ebbmq.core.copies import (
    LOG,
    NO_DEVICES,
    NORMAL,
    Step,
    name_of,
    names_of,
    seqs_of,
)
from ebbmq.core.row import DURABLE, ELSEWHERE, FREE, HIGH, TOPIC
from ebbmq.core.stretches import Stretches
from ebbmq.core.values import as_run
from ebbmq.feed.advice import plan_reason
from ebbmq.node.devices.describing import Counts
from ebbmq.node.ending import end_all
from ebbmq.node.keeping import decisions as reasons
from ebbmq.node.keeping import restarting
from ebbmq.node.keeping.carrying import Carrying
from ebbmq.node.keeping.confirming import Confirming
from ebbmq.node.keeping.decision_log import DecisionLog
from ebbmq.node.keeping.decisions import Decisions
from ebbmq.node.keeping.doubting import Doubts
from ebbmq.node.keeping.known import NOTHING_FETCHED, Known
from ebbmq.node.keeping.placing import Answer, Placing
from ebbmq.node.keeping.prefetching import BodyElsewhere
from ebbmq.node.keeping.progress import Progress
from ebbmq.node.keeping.readers import Readers
from ebbmq.node.keeping.reviewing import Reviewer
from ebbmq.node.keeping.viewing import Viewing
from ebbmq.node.log import log
from ebbmq.policy.decay import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ebbmq.core.arrivals import Batch as Published
    from ebbmq.core.copies import Devices, Holding, Name
    from ebbmq.core.grants import Grants
    from ebbmq.core.partition import Row
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.likeness import Alike
    from ebbmq.node.keeping.mover import Mover
    from ebbmq.node.keeping.placing import Stored
    from ebbmq.node.keeping.prefetching import Prefetcher
    from ebbmq.node.keeping.reconciling import Reconciler
    from ebbmq.policy.placement import Wanted
    from ebbmq.policy.rules.choose import View


class Keeper:
    """Everything the engine does about copies."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._holdings = engine.holdings
        self.placing = Placing(engine.config.client, engine.catalog)
        self.reviewer = Reviewer(engine)
        self.decisions, self.progress = Decisions(), Progress(engine)
        self.reconciler: Reconciler | None = None
        self.fetcher: Prefetcher | None = None
        self.readers, self.doubts = Readers(), Doubts()
        self.confirming = Confirming(engine)
        self.carrying = Carrying(engine, self.confirming)
        self.apply = self.carrying.apply
        viewing, known = Viewing(engine), Known(engine)
        self.view, self.check = viewing.view, viewing.check
        self.refuse_for_now, self.domains = viewing.refuse_for_now, viewing.domains
        self.row_of, self.mark = known.row_of, known.mark
        self.stored, self.fetch_headers = known.stored, known.fetch_headers
        self.fetch_headers_of = known.fetch_headers_of
        #: By device that is being compared: copies it confirmed meanwhile.
        self.confirmed_since: dict[str, set[Name]] = {}
        #: By device: copies it was asked for because they were lacking.
        self._repairs: dict[str, Stretches] = {}
        #: The opening found nothing missing, damaged or in doubt.
        self.is_whole = False
        #: By device: copies that only it lists, of messages that are not known to have left.
        self.unclaimed: dict[str, int] = {}
        #: Some message may have fewer copies than it should, as one may at the start.
        self.is_short = True
        #: Devices that were away for so long that their copies do not count.
        self.lost: Devices = NO_DEVICES

    @property
    def mover(self) -> Mover | None:
        """Who makes and deletes copies; None while there is nothing but the log."""
        return self.carrying.mover

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing but the log, so that no message needs to be asked about."""
        return self._engine.devices is None

    # Intake

    def place(
        self,
        shard: Shard,
        first: int,
        batch: Published,
        position: int,
        *,
        called: bool = True,
    ) -> bool:
        """Say where messages should be whose record ends at a position.

        True if some of them lack copies that must be there before they are leased.

        Args:
            shard: the partition.
            first: the number of the first of them.
            batch: the messages.
            position: where their record ends.
            called: a publish call waits for their copies.
        """
        answers = self.placing.answers(shard, batch, self.view())
        mover, base = self.mover, name_of(shard.partition.pid, first)
        self.placing.count(answers)
        saids = [answer.said for answer in answers]
        said = saids[0]
        now_ms = self._engine.now_ms()
        if saids.count(said) < len(saids):
            self.decisions.placed(now_ms, base, saids)
        elif said is not None:
            self.decisions.note(now_ms, range(base, base + len(saids)), "placed", *said)
        lacking: Sequence[Name] = ()
        for holding, names in _elsewhere(answers, base):
            assert mover is not None
            self.carrying.tell(self._holdings.place_many(names, holding))
            for seqs in seqs_of(names).values():
                shard.partition.mark_held(seqs)
            if holding.min_copies > 1:
                lacking = [*lacking, *names] if lacking else names
                mover.put_at_once(mover.published(names, base, batch), holding.pending)
                continue
            for device in holding.pending:
                mover.put_many(names, device)
        if lacking:
            self.confirming.hold(shard, position, lacking, called=called)
        return bool(lacking)

    def counts_reads(self, shard: Shard) -> bool:
        """Whether it matters how often messages are read: to their score, or a rule."""
        asked = self._engine.rules.ask_reads and not self.is_idle
        return shard.partition.counts_reads or asked

    def note_reads(self, granted: Iterable[tuple[Shard, Grants]]) -> None:
        """Messages were leased: where the score counts that, they are looked at when it is over."""
        for shard, grants in granted:
            if not self.counts_reads(shard):
                continue
            if not shard.partition.counts_reads:
                shard.partition.accesses.credit(grants.seqs, self._engine.now_ms())
            elif not self.is_idle:
                self.reviewer.was_read(shard, grants.seqs, grants.deadline_ms)
            self.share_reads(shard, grants.rows)

    def share_reads(
        self, shard: Shard, rows: Iterable[Row], granted_at_ms: int | None = None
    ) -> None:
        """Count reads for all subscriptions that have the bodies; or not, if leases failed."""
        engine, now_ms = self._engine, self._engine.now_ms()
        places: dict[int, set[int]] = {}
        for row in rows:
            if row[3] & TOPIC:
                places.setdefault(row[9], set()).add(row[10] << 32 | row[9])
        for segment, some in places.items():
            for pid, (first, last) in engine.ranges.get(segment, {}).items():
                other = engine.catalog.shards.get(pid)
                if other is None or other is shard or not self.counts_reads(other):
                    continue
                seqs = list(other.partition.index.at_places(first, last, some))
                if granted_at_ms is None:
                    other.partition.accesses.credit(seqs, now_ms)
                else:
                    for seq in seqs:
                        other.partition.accesses.reverse(seq, granted_at_ms, now_ms)
                if other.partition.counts_reads and not self.is_idle:
                    self.reviewer.was_read(other, seqs, now_ms)

    def withheld(self, client: str | None, pid: int, seqs: Iterable[int]) -> set[int]:
        """The messages of which a client may read no copy."""
        devices = self._engine.devices
        assert devices is not None
        who = self._engine.config.client if client is None else client
        readable = devices.readable_by(who)
        copies_of = self._holdings.of
        return {seq for seq in seqs if not copies_of(name_of(pid, seq)).copies & readable}

    def count_looks(self, seen: Iterable[tuple[Shard, int]]) -> None:
        """Messages were looked at, and it counts: they are looked at again soon."""
        now_ms = self._engine.now_ms()
        for shard, seq in seen:
            row = shard.partition.count_look(seq, now_ms)
            if row is None:
                continue
            self.share_reads(shard, [row])
            if shard.partition.counts_reads and not self.is_idle:
                self.reviewer.was_read(shard, [seq], now_ms)

    # Bodies that are elsewhere

    def fetch_ahead(self, shard: Shard, wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Have those (seq, importance) fetched that the log does not have; returns the others."""
        seqs = np.array([seq for seq, _ in wanted], dtype=np.uint64)
        kinds = shard.partition.index.words_of(seqs)[:, KIND]
        away = (kinds & np.uint64(ELSEWHERE << FLAGS_BIT) != 0) & (kinds & np.uint64(STATE) != FREE)
        if not away.any():
            return wanted
        assert self.fetcher is not None
        self.fetcher.ahead(shard, seqs[away].tolist())
        if away.all():
            return []
        return [wanted[at] for at in np.flatnonzero(~away).tolist()]

    def brought(self, shard: Shard, seq: int) -> bytes | None:
        """The body of a message that is to be moved to another queue.

        Raises:
            BodyElsewhere: it is being fetched.
        """
        if self.fetcher is None:
            raise BodyElsewhere(
                f"the body of message {shard.partition.pid:x}-{seq:x} is on a device that is not "
                "configured",
                "configure the device again under [devices]",
            )
        return self.fetcher.brought(shard, seq)

    # Steps

    def ask(self, name: Name, device: str) -> Step:
        """Ask for a copy; the row remembers that there is more to know of it."""
        self.mark(name)
        return self._holdings.add_copy(name, device)

    def rearrange(self, alike: Alike, wanted: Wanted, reason: str) -> bool:
        """Ask for what is wanted and let go of the rest, which waits for what was asked for.

        Whether that changes anything.
        """
        states, before = self.view().states, alike.stored.holding
        here = before.staying() | before.pending
        rest = () if wanted.missing else here.difference(wanted.copies)
        # A copy that cannot be reached is not judged.
        spare = sorted(name for name in rest if name in states and states[name].usable)
        names = names_of(alike.shard.partition.pid, alike.seqs)
        changed = self._holdings.rearrange_many(names, wanted.copies, wanted.target, spare)
        if not changed.held:
            return False
        alike.shard.partition.mark_held(alike.seqs)
        now_ms = self._engine.now_ms()
        for device, some in changed.asked.items():
            event = "archived" if wanted.phase is Phase.FADED else "asked"
            self.decisions.note(now_ms, some, event, device, reason, score=wanted.score)
        for device in spare:
            self.decisions.note(now_ms, names, "dropped", device, reason, score=wanted.score)
        self.carrying.change(changed)
        return True

    # Results

    def copies_made(self, device: str, names: Sequence[Name]) -> None:
        """A device has these copies."""
        if device in self.confirmed_since:
            self.confirmed_since[device].update(names)
        self.progress.arrived(device, len(names))
        changed, now_ms = self._holdings.copies_acked_by(device, names), self._engine.now_ms()
        if sum(map(len, changed.held.values())) < len(names):
            # Some were asked for twice, or are not asked for any more.
            names = [name for some in changed.held.values() for name in some]
        for reason, some in self._made_for(device, names, changed.dropped.values()):
            for why, of_it in self._by_plan(reason, some):
                self.decisions.note(now_ms, of_it, "copied", device, why)
        for left, moved in changed.dropped.items():
            self.decisions.moved(now_ms, moved, device, left)
        self.carrying.change(changed)

    def _made_for(
        self, device: str, names: Sequence[Name], moved: Collection[Sequence[Name]]
    ) -> list[tuple[str, Sequence[Name]]]:
        """Why copies were made, by reason; some of them let other copies go."""
        lacking = self._repairs.get(device)
        if not lacking and not moved:
            return [(reasons.REPLICA, names)]
        if not lacking and any(len(some) == len(names) for some in moved):
            return [(reasons.MOVE, names)]
        moving = {name for some in moved for name in some}
        by_reason: dict[str, list[Name]] = {}
        for name in names:
            if lacking and lacking.set(name, 0):
                reason = reasons.REPAIR
            else:
                reason = reasons.MOVE if name in moving else reasons.REPLICA
            by_reason.setdefault(reason, []).append(name)
        return list(by_reason.items())

    def _by_plan(self, reason: str, names: Sequence[Name]) -> list[tuple[str, Sequence[Name]]]:
        """Why copies were made, those apart whose messages are held to a plan: that is why."""
        pins = self._engine.pins
        if not len(pins) or reason == reasons.REPAIR:
            return [(reason, names)]
        by_reason: dict[str, list[Name]] = {}
        for name, advice in zip(names, pins.of_many(names), strict=True):
            why = reason if advice is None else plan_reason(advice.run, advice.action)
            by_reason.setdefault(why, []).append(name)
        return list(by_reason.items())

    def copies_failed(self, device: str, names: Sequence[Name], reason: str) -> None:
        """A device did not take these copies; others are asked."""
        self.decisions.note(self._engine.now_ms(), names, "refused", device, reason)
        self._repairs.get(device, Stretches()).set_many(names, 0)
        self.apply([self._holdings.copy_failed(name, device) for name in names])
        self.mend(names)
        self.apply([self._holdings.stay(name) for name in names])
        if any(lacks(self._holdings.of(name), self.lost) for name in names):
            self.is_short = True
        if device != LOG:
            self.reviewer.not_taken(device, names)

    def copies_deleted(
        self, device: str, dropped: Sequence[Name], forgotten: Sequence[Name]
    ) -> None:
        """A device has deleted these copies."""
        self.progress.left(device, len(dropped))
        self.carrying.tell(self._holdings.drops_acked_by(device, dropped))
        self.carrying.tell(self._holdings.removals_acked_by(device, forgotten))

    def copies_lost(
        self,
        device: str,
        names: Sequence[Name],
        *,
        damaged: Collection[Name] = (),
        reason: str | None = None,
    ) -> None:
        """A device answers, and has not what it confirmed; others are asked.

        A message's only copy is not given up because a device does not find it, which may be
        another device than it was: that is for people to say (`evict`). Wrong bytes are.

        Args:
            device: the device.
            names: the copies.
            damaged: those of them that are given up even if there is no other.
            reason: why they are lost; None: those are damaged, and the others missing.
        """
        # Who read at the same time may have found it out before.
        names = [name for name in names if device in self._holdings.of(name).copies]
        lost = [
            name for name in names if name in damaged or self._holdings.of(name).copies != {device}
        ]
        if len(lost) < len(names):
            log.error("only_copy_missing", device=device, count=len(names) - len(lost))
        wrong = [name for name in lost if name in damaged]
        if names:
            is_missing = reason == reasons.MISSING or not (reason or wrong)
            what = "missing" if is_missing else "not as they were put"
            self.erred(device, f"{len(names)} of its copies were {what}")
        now_ms = self._engine.now_ms()
        if reason is not None:
            self.decisions.note(now_ms, lost, "lost", device, reason)
        else:
            others = [name for name in lost if name not in damaged]
            self.decisions.note(now_ms, wrong, "lost", device, reasons.DAMAGED)
            self.decisions.note(now_ms, others, "lost", device, reasons.MISSING)
        self.apply([self._holdings.copy_lost(name, device) for name in lost])
        if device == LOG:
            self.carrying.leave_log(lost)
        self.mend(lost)
        if wrong and device != LOG and self.mover is not None:
            # It has something; unless it is asked for the right bytes, that has to go.
            self.mover.delete_many(wrong, device, self._engine.journal.position, forget=True)

    def erred(self, device: str, detail: str) -> None:
        """A device answered, and not with what it was given."""
        if self._engine.devices is not None:
            self._engine.devices.erred(device, detail)

    def mend(
        self,
        names: Iterable[Name],
        lost: Devices = NO_DEVICES,
        fetched: Mapping[Name, bytes] = NOTHING_FETCHED,
    ) -> int:
        """Ask for the copies that messages lack, and return of how many that could be done.

        What no device can take now is tried later. Where the headers of a message are neither at
        hand nor fetched, rules that name them are not true of it.
        """
        if self._engine.devices is None:
            return 0
        view = self.view()
        steps: list[Step] = []
        asked: dict[str, list[Name]] = {}
        wanted: dict[object, tuple[str, ...]] = {}
        for name in names:
            holding = self._holdings.of(name)
            missing = lacks(holding, lost)
            # Of what is nowhere nothing can be copied, until a device turns out to have it.
            known = self.row_of(name) if missing and holding.copies else None
            if known is None:
                continue
            shard, seq, row = known
            stored = self.stored(shard, seq, row, fetched.get(name))
            # All that the answer depends on.
            body_bytes, told = row[11] - (row[7] >> HIGH), stored._replace(row=())
            rest = row[1] & DURABLE, row[2], row[3], row[5], body_bytes, row[13]
            key = shard, told, rest
            if key not in wanted:
                wanted[key] = self._instead(shard, stored, view)
            for device in wanted[key][:missing]:
                steps.append(self.ask(name, device))
                asked.setdefault(device, []).append(name)
            if lacks(self._holdings.of(name), lost):
                self.is_short = True
        for device, some in asked.items():
            self._repairs.setdefault(device, Stretches()).set_many(some, 1)
            self.decisions.note(self._engine.now_ms(), some, "asked", device, reasons.REPAIR)
        self.apply(steps)
        if self.mover is not None:
            self.mover.wake()
        return sum(map(len, asked.values()))

    def _instead(self, shard: Shard, stored: Stored, view: View) -> tuple[str, ...]:
        """Where a message that lacks copies should have some."""
        now_ms = self._engine.now_ms()
        add = self.placing.again(shard, stored, now_ms, view).add
        if not add and LOG in stored.holding.leaving:
            # It was to leave the log for a device that did not take it: where to instead?
            add = self.placing.anew(shard, stored, now_ms, view).copies
        return add

    def spare(self, names: Iterable[Name]) -> None:
        """Drop copies beyond the target, which were made while a device was away."""
        view, now_ms = self.view(), self._engine.now_ms()
        steps: list[Step] = []
        spared: dict[str, list[Name]] = {}
        for name in names:
            holding = self._holdings.of(name)
            known = self.row_of(name) if len(holding.staying()) > holding.target else None
            if known is None or holding.pending:
                continue
            shard, seq, row = known
            wanted = self.placing.again(shard, self.stored(shard, seq, row), now_ms, view)
            for device in wanted.drop:
                steps.append(self._holdings.drop_copy(name, device))
                spared.setdefault(device, []).append(name)
        for device, some in spared.items():
            self.decisions.note(self._engine.now_ms(), some, "dropped", device, reasons.SPARE)
        self.apply(steps)

    def given_up(self, device: str, held: Iterable[tuple[Name, Holding]]) -> None:
        """A device is about to be given up, as far as it is about these messages."""
        now_ms = self._engine.now_ms()
        lost: list[Name] = []
        refused: list[Name] = []
        for name, holding in held:
            if device in holding.copies:
                lost.append(name)
            elif device in holding.pending:
                refused.append(name)
        self.decisions.note(now_ms, lost, "lost", device, reasons.EVICTED)
        self.decisions.note(now_ms, refused, "refused", device, reasons.EVICTED)
        self._repairs.get(device, Stretches()).set_many(refused, 0)

    def gone(self, pid: int, seqs: Sequence[int]) -> None:
        """Messages left: their copies are to be forgotten."""
        names = names_of(pid, as_run(seqs))
        self._engine.pins.forget(names)
        for lacking in self._repairs.values():
            if lacking:
                lacking.set_many(names, 0)
        self.carrying.change(self._holdings.remove_many(names))

    # Life

    def start(self) -> None:
        """Begin to make copies, with what is owed since the last start (the lock is free)."""
        engine = self._engine
        if engine.devices is not None:
            # Who has no devices does not load what they need.
            from ebbmq.node.keeping.hurrying import hurry  # noqa: PLC0415
            from ebbmq.node.keeping.mover import Mover  # noqa: PLC0415
            from ebbmq.node.keeping.prefetching import Prefetcher  # noqa: PLC0415
            from ebbmq.node.keeping.reconciling import Reconciler  # noqa: PLC0415

            self.decisions.log = DecisionLog(engine.directory.path / "decisions")
            for name, port in engine.devices.ports.items():
                self._holdings.declare_device(name, durable=port.spec.durable)
            engine.devices.counts = self._counts
            engine.devices.on_tick = partial(hurry, engine)
            self.carrying.mover = Mover(
                engine, bytes_per_s=engine.config.placement.move_bytes_per_s
            )
            self.reconciler = Reconciler(engine)
            self.fetcher = Prefetcher(engine)
        with engine.lock:
            restarting.resume(engine)
        for worker in self._workers():
            worker.start()

    def _counts(self, device: str) -> Counts:
        """What the node has on a device; of the log, every message that did not leave it."""
        engine = self._engine
        with engine.lock:
            copies, moves = engine.holdings.counts(device)
            self.progress.look()
            under_way = self.progress.of(device, "to"), self.progress.of(device, "from")
            if device == LOG:
                live = sum(shard.partition.live() for shard in engine.catalog.shards.values())
                copies += live - len(engine.holdings)
        return Counts(copies, moves, *under_way, self.unclaimed.get(device, 0))

    def stop(self) -> None:
        """Make no more copies; what is owed is asked for at the next start."""
        stops = [worker.stop for worker in self._workers()]
        end_all([*stops, self.confirming.close, self.decisions.close])

    def _workers(self) -> list[Mover | Reconciler | Prefetcher]:
        every = (self.reconciler, self.fetcher, self.mover)
        return [worker for worker in every if worker is not None]


def _elsewhere(answers: list[Answer], first: Name) -> Iterable[tuple[Holding, Sequence[Name]]]:
    """Messages that are not to be in the log alone, by where they are to be."""
    holding = answers[0].holding
    holdings = [answer.holding for answer in answers]
    if holdings.count(holding) == len(holdings):
        return [] if holding is NORMAL else [(holding, range(first, first + len(holdings)))]
    alike: dict[Holding, list[Name]] = {}
    for name, wanted in enumerate(holdings, first):
        if wanted is not NORMAL:
            alike.setdefault(wanted, []).append(name)
    return alike.items()


def lacks(holding: Holding, lost: Devices) -> int:
    """How many copies a body lacks while these devices are lost."""
    there = (holding.staying() | holding.pending) - lost
    return max(0, holding.target - len(there))
