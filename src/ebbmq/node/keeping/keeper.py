"""The holdings of a node at work: facts to the journal, effects to the mover, results back.

Theory of operation. Intake appends a message with its body to the node's log, as ever, and says in
the same commit where else it should be (`place`). The mover makes the copies; each result is a step
of the holdings, and its facts are appended before what follows from it is carried out. A copy is
deleted only once the fact that it may go is on the device: a power cut must not bring a message
back whose body is gone.

A queue that needs more than one copy (`min_copies`) holds its messages back, and their confirms,
until enough devices have confirmed (`confirming`).

Everything here is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ebbmq.core import held
from ebbmq.core.copies import (
    LOG,
    NO_DEVICES,
    NORMAL,
    BodyLost,
    DropCopy,
    Effect,
    ForgetCopy,
    Held,
    PutCopy,
    Step,
    name_of,
    parts_of,
    seqs_of,
)
from ebbmq.core.row import AT_FLAGS, ELSEWHERE, FREE, HELD, HIGH, ROW
from ebbmq.errors import DamagedRecord, Overloaded
from ebbmq.model import Reason
from ebbmq.node.advising import pinning
from ebbmq.node.devices.describing import Counts
from ebbmq.node.keeping import likeness, reading
from ebbmq.node.keeping.confirming import Confirming
from ebbmq.node.keeping.decisions import Decisions
from ebbmq.node.keeping.placing import Answer, Placing, Stored
from ebbmq.node.keeping.prefetching import BodyElsewhere
from ebbmq.node.keeping.reviewing import Reviewer
from ebbmq.node.log import log
from ebbmq.policy.decay import Access, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ebbmq.core.copies import Changed, Devices, Fact, Holding, Name
    from ebbmq.core.grants import Grants
    from ebbmq.core.partition import Batch as Published
    from ebbmq.core.partition import Row
    from ebbmq.model import QueueSpec
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.likeness import Alike
    from ebbmq.node.keeping.mover import Mover
    from ebbmq.node.keeping.prefetching import Prefetcher
    from ebbmq.node.keeping.reconciling import Reconciler
    from ebbmq.policy.placement import Wanted
    from ebbmq.policy.rules.choose import View
    from ebbmq.policy.rules.properties import States

_REFUSED_MS: Final = 1_000
_NO_ACCESS: Final = Access()
NOTHING_FETCHED: Final[dict[int, bytes]] = {}


class Keeper:
    """Everything the engine does about copies."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._holdings = engine.holdings
        self.placing = Placing(engine.config.client, engine.catalog.version_of)
        self.reviewer = Reviewer(engine)
        self.decisions = Decisions()
        self.mover: Mover | None = None
        self.reconciler: Reconciler | None = None
        self.fetcher: Prefetcher | None = None
        self.confirming = Confirming(engine)
        #: Devices that have just refused a copy, and until when nothing new is asked of them.
        self._refused: dict[str, int] = {}
        self._states: tuple[States, States] | None = None
        #: By device that is being compared: copies it confirmed meanwhile.
        self.confirmed_since: dict[str, set[Name]] = {}
        #: Some message may have fewer copies than it should, as one may at the start.
        self.is_short = True
        #: Devices that were away for so long that their copies do not count.
        self.lost: Devices = NO_DEVICES

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing but the log, so that no message needs to be asked about."""
        return self._engine.devices is None

    def view(self) -> View:
        """The rules and the devices as they are now."""
        devices = self._engine.devices
        assert devices is not None
        states = devices.states
        if not self._refused:
            return self._engine.rules.view(states)
        if self._states is None or self._states[0] is not states:
            now_ms = self._engine.clock.elapsed_ms()
            self._refused = {name: end for name, end in self._refused.items() if end > now_ms}
            asked = {
                name: replace(state, usable=state.usable and name not in self._refused)
                for name, state in states.items()
            }
            self._states = states, asked
        return self._engine.rules.view(self._states[1])

    # Intake

    def check(self, spec: QueueSpec) -> None:
        """Refuse a publish to a queue whose `min_copies` cannot be had now.

        Raises:
            Overloaded: code `too_few_devices`.
        """
        if spec.min_copies <= 1:
            return
        domains = {LOG}
        if self._engine.devices is not None:
            states = self.view().states
            domains = {
                states[name].failure_domain or name for name in states if states[name].usable
            }
        if len(domains) < spec.min_copies:
            raise Overloaded(
                f"queue {spec.name!r} needs {spec.min_copies} copies, and devices of only "
                f"{len(domains)} failure domain{'s' if len(domains) > 1 else ''} can be used",
                "see `ebbmq devices`, add a device, or lower min_copies",
                code="too_few_devices",
            )

    def place(
        self,
        shard: Shard,
        first: int,
        batch: Published,
        position: int,
        *,
        topic: bool = False,
        called: bool = True,
    ) -> bool:
        """Say where messages should be whose record ends at a position.

        True if some of them lack copies that must be there before they are leased.

        Args:
            shard: the partition.
            first: the number of the first of them.
            batch: the messages.
            position: where their record ends.
            topic: they were published to a topic.
            called: a publish call waits for their copies.
        """
        answers = self.placing.answers(shard, batch, self.view(), topic=topic)
        if all(
            answer.holding == NORMAL for answer in {id(each): each for each in answers}.values()
        ):
            return False
        mover, base = self.mover, name_of(shard.partition.pid, first)
        assert mover is not None
        now_ms = self._engine.now_ms()
        lacking: list[Name] = []
        for (holding, devices, reason), names in _together(answers, base):
            if holding == NORMAL:
                continue
            self.decisions.note(now_ms, names, "placed", devices, reason)
            self._tell(self._holdings.place_many(names, holding))
            shard.partition.mark_held([name - base + first for name in names])
            for device in holding.pending:
                mover.put_many(names, device)
            if holding.min_copies > 1:
                lacking += names
        if lacking:
            self.confirming.hold(shard, position, lacking, called=called)
        return bool(lacking)

    def note_reads(self, queue: Queue, granted: Iterable[tuple[Shard, Grants]]) -> None:
        """Messages were leased: where reads count, they are looked at once that is over."""
        if queue.spec.score_access_bonus and not self.is_idle:
            for shard, grants in granted:
                self.reviewer.was_read(shard, grants.seqs, grants.deadline_ms)

    def withheld(self, shard: Shard, seqs: Iterable[int], client: str | None) -> set[int]:
        """The messages of which a client may read no copy."""
        devices = self._engine.devices
        assert devices is not None
        pid = shard.partition.pid
        who = self._engine.config.client if client is None else client
        readable = devices.readable_by(who)
        copies_of = self._holdings.of
        return {seq for seq in seqs if not copies_of(name_of(pid, seq)).copies & readable}

    def count_looks(self, seen: Iterable[tuple[Shard, int]]) -> None:
        """Messages were looked at, and it counts: they are looked at again soon."""
        now_ms = self._engine.now_ms()
        for shard, seq in seen:
            if shard.partition.count_look(seq, now_ms) and not self.is_idle:
                self.reviewer.was_read(shard, [seq], now_ms)

    # Bodies that are elsewhere

    def fetch_ahead(self, shard: Shard, wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Have those (seq, importance) fetched that the log does not have; returns the others."""
        read = shard.partition.index.read
        away = {seq for seq, _ in wanted if (row := read(seq)) and row[1] & ELSEWHERE}
        if not away:
            return wanted
        assert self.fetcher is not None
        self.fetcher.ahead(shard, [seq for seq, _ in wanted if seq in away])
        return [each for each in wanted if each[0] not in away]

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
        base = name_of(alike.shard.partition.pid, 0)
        names = [base | seq for seq in alike.seqs]
        changed = self._holdings.rearrange_many(names, wanted.copies, wanted.target, spare)
        if not changed.held:
            return False
        alike.shard.partition.mark_held(alike.seqs)
        now_ms = self._engine.now_ms()
        for device in changed.asked:
            event = "archived" if wanted.phase is Phase.FADED else "asked"
            self.decisions.note(now_ms, names, event, device, reason, score=wanted.score)
        for device in spare:
            self.decisions.note(now_ms, names, "dropped", device, reason, score=wanted.score)
        self._change(changed)
        return True

    def mark(self, name: Name) -> None:
        """Have a row say that there is more to know of its body."""
        known = self.row_of(name)
        if known is not None:
            found = known[0].partition.index.locate(known[1])
            assert found is not None
            found[0].buffer[found[1] + AT_FLAGS] |= HELD
            found[0].dirty = True

    def apply(self, steps: Iterable[Step], *, calm: bool = False) -> None:
        """Append the facts of steps, then carry out what follows; `calm`: when there is time."""
        facts: list[Fact] = []
        effects: list[Effect] = []
        for step in steps:
            facts += step.facts
            effects += step.effects
        position = self._append(facts)
        for effect in effects:
            self._carry_out(effect, position, calm=calm)
        if self.confirming:
            names = (fact.name for fact in facts)
            self.confirming.copied(name for name in names if self._holdings.is_eligible(name))
            self._engine.open_held()

    def _change(self, changed: Changed) -> None:
        """Append the facts of a transition of many, then carry out what follows, calmly."""
        position = self._tell(changed)
        for device, names in changed.dropped.items():
            if device == LOG:
                self._leave_log(names)
        if self.mover is not None:
            self._hand_over(changed, position, self.mover)
        if self.confirming:
            for holding, names in changed.held.items():
                if len(holding.copies) >= holding.min_copies:
                    self.confirming.copied(names)
            for names in changed.gone.values():
                self.confirming.copied(names)
            self._engine.open_held()

    def _hand_over(self, changed: Changed, position: int, mover: Mover) -> None:
        """Have copies made, and deleted once the facts are on the device up to a position."""
        for device, names in changed.asked.items():
            mover.put_many(names, device, calm=True)
        for device, names in changed.dropped.items():
            if device != LOG:
                mover.delete_many(names, device, position, forget=False)
        for devices, names in changed.gone.items():
            for device in devices:
                mover.delete_many(names, device, position, forget=True)

    def _tell(self, changed: Changed) -> int:
        """Append the facts of a transition of many; returns the position after."""
        self._engine.append(held.pack_changed(changed))
        return self._engine.journal.position

    def _carry_out(self, effect: Effect, position: int, *, calm: bool = False) -> None:
        mover = self.mover
        if isinstance(effect, BodyLost):
            self._lost(effect.name)
        elif isinstance(effect, DropCopy) and effect.device == LOG:
            self._leave_log([effect.name])
        elif mover is None:
            return  # asked for again when there are devices
        elif isinstance(effect, PutCopy):
            mover.put_many([effect.name], effect.device, calm=calm)
        else:
            forget = isinstance(effect, ForgetCopy)
            mover.delete_many([effect.name], effect.device, position, forget=forget)

    def _leave_log(self, names: Sequence[Name]) -> None:
        """The log does not have these bodies any more, as soon as their segments go."""
        for pid, seqs in seqs_of(names).items():
            shard = self._engine.catalog.shards.get(pid)
            if shard is not None:
                shard.partition.leave_log(seqs)
                self._engine.settle(shard)

    def _lost(self, name: Name) -> None:
        """Put a message without any copy on the record as damaged."""
        pid, seq = parts_of(name)
        shard = self._engine.catalog.shards.get(pid)
        row = None if shard is None else shard.partition.index.read(seq)
        if shard is None or row is None:
            return
        identity = f"{pid:x}-{seq:x}"
        self._engine.damage.append(f"every copy of message {identity} is lost")
        log.error("body_lost", message=identity, queue=shard.queue.spec.name)
        shard.partition.remove([(seq, row)], Reason.LOST, self._engine.now_ms())
        self._engine.settle(shard)

    # Results

    def copies_made(self, device: str, names: Sequence[Name]) -> None:
        """A device has these copies."""
        if device in self.confirmed_since:
            self.confirmed_since[device].update(names)
        changed, now_ms = self._holdings.copies_acked_by(device, names), self._engine.now_ms()
        self.decisions.note(now_ms, names, "copied", device, "")
        for left, moved in changed.dropped.items():
            self.decisions.moved(now_ms, moved, device, left)
        self._change(changed)

    def copies_failed(self, device: str, names: Sequence[Name]) -> None:
        """A device did not take these copies; others are asked."""
        self.decisions.note(self._engine.now_ms(), names, "refused", device, "")
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
        self._tell(self._holdings.drops_acked_by(device, dropped))
        self._tell(self._holdings.removals_acked_by(device, forgotten))

    def copies_lost(
        self, device: str, names: Sequence[Name], *, damaged: Collection[Name] = ()
    ) -> None:
        """A device answers, and has not what it confirmed; others are asked.

        A message's only copy is not given up because a device does not find it, which may be
        another device than it was: that is for people to say (`evict`). Wrong bytes are.
        """
        lost = [
            name for name in names if name in damaged or self._holdings.of(name).copies != {device}
        ]
        if len(lost) < len(names):
            log.error("only_copy_missing", device=device, count=len(names) - len(lost))
        self.decisions.note(self._engine.now_ms(), lost, "lost", device, "")
        self.apply([self._holdings.copy_lost(name, device) for name in lost])
        if device == LOG:
            self._leave_log(lost)
        self.mend(lost)

    def refuse_for_now(self, device: str) -> None:
        """Ask nothing new of a device for a while: it has just refused a copy."""
        self._refused[device] = self._engine.clock.elapsed_ms() + _REFUSED_MS
        self._states = None

    def mend(self, names: Iterable[Name], lost: Devices = NO_DEVICES) -> None:
        """Ask for the copies that messages lack; what no device can take now is tried later."""
        if self._engine.devices is None:
            return
        view = self.view()
        steps: list[Step] = []
        for name in names:
            holding = self._holdings.of(name)
            missing = lacks(holding, lost)
            # Of what is nowhere nothing can be copied, until a device turns out to have it.
            known = self.row_of(name) if missing and holding.copies else None
            if known is None:
                continue
            shard, seq, row = known
            stored = self.stored(shard, seq, row)
            add = self.placing.again(shard, stored, 0, view).add
            if not add and LOG in stored.holding.leaving:
                # It was to leave the log for a device that did not take it: where to instead?
                add = self.placing.anew(shard, stored, view).copies
            for device in add[:missing]:
                steps.append(self.ask(name, device))
            if lacks(self._holdings.of(name), lost):
                self.is_short = True
        self.apply(steps)
        if self.mover is not None:
            self.mover.wake()

    def spare(self, names: Iterable[Name]) -> None:
        """Drop copies beyond the target, which were made while a device was away."""
        view = self.view()
        steps: list[Step] = []
        for name in names:
            holding = self._holdings.of(name)
            known = self.row_of(name) if len(holding.staying()) > holding.target else None
            if known is None or holding.pending:
                continue
            shard, seq, row = known
            wanted = self.placing.again(shard, self.stored(shard, seq, row), 0, view)
            steps += [self._holdings.drop_copy(name, device) for device in wanted.drop]
        self.apply(steps)

    def stored(
        self, shard: Shard, seq: int, row: Row, fetched: Mapping[int, bytes] = NOTHING_FETCHED
    ) -> Stored:
        """A message as placement is asked about it; without headers where they are not at hand."""
        size = row[7] >> HIGH
        headers: bytes | None = b""
        if size:
            payload = fetched.get(seq) or shard.resident.get(seq, row[2])
            headers = None if payload is None else payload[:size]
            if headers is None and not row[1] & ELSEWHERE:
                with contextlib.suppress(DamagedRecord):
                    headers = self._engine.journal.read(row[9], row[10], size)
        name = name_of(shard.partition.pid, seq)
        advice = self._engine.pins.of(name)
        pin = None if advice is None else advice.pin
        return Stored(row, headers, self._holdings.of(name), _NO_ACCESS, None, pin)

    def fetch_headers(self, shard: Shard, seqs: Sequence[int]) -> dict[int, bytes]:
        """Payloads of those messages whose headers only a device has (the lock is free)."""
        with self._engine.lock:
            read, resident = shard.partition.index.read, shard.resident
            away = [
                seq
                for seq in likeness.away_with_headers(shard, seqs)
                if (row := read(seq)) and resident.get(seq, row[2]) is None
            ]
        bodies = reading.read(self._engine, shard, away) if away else []
        return {
            seq: body for seq, body in zip(away, bodies, strict=True) if isinstance(body, bytes)
        }

    def gone(self, pid: int, seqs: Sequence[int]) -> None:
        """Messages left: their copies are to be forgotten."""
        base = name_of(pid, 0)
        names = [base | seq for seq in seqs]
        self._engine.pins.forget(names)
        self._change(self._holdings.remove_many(names))

    def _append(self, facts: Sequence[Fact]) -> int:
        if facts:
            self._engine.append(held.pack(facts))
        return self._engine.journal.position

    # Recovery

    def mark_rows(self) -> None:
        """Mark the rows whose copies are told of."""
        shards = self._engine.catalog.shards
        astray: list[Held] = []
        for name, holding in self._holdings.items():
            pid, seq = parts_of(name)
            shard = shards.get(pid)
            found = None if shard is None else shard.partition.index.locate(seq)
            if found is None or found[0].buffer[found[1]] == FREE:
                continue
            page, at = found
            flags = page.buffer[at + AT_FLAGS] | HELD
            if flags & ELSEWHERE and LOG in holding.copies:
                # The body left the log, and what was said of that is damaged.
                astray.append(Held(name, holding.astray()))
            page.buffer[at + AT_FLAGS] = flags if LOG in holding.copies else flags | ELSEWHERE
            page.dirty = True
        for told in astray:
            self._holdings.restore(told)
        pinning.mark_rows(self._engine)

    def adopt(self, device: str, listed: Iterable[Name]) -> None:
        """Of what a device has, take those bodies for copies that are not known to be anywhere."""
        steps: list[Step] = []
        for name in listed:
            known = self.row_of(name)
            if (
                known is not None
                and known[2][1] & ELSEWHERE
                and not self._holdings.of(name).copies - {LOG}
            ):
                log.warning("copy_adopted", device=device, message=f"{name >> 48:x}-{known[1]:x}")
                self.mark(name)
                steps.append(self._holdings.adopt(name, device))
        self.apply(steps)

    def start(self) -> None:
        """Begin to make copies, with what is owed since the last start (the lock is free)."""
        engine = self._engine
        if engine.devices is not None:
            # Who has no devices does not load what they need.
            from ebbmq.node.keeping.mover import Mover  # noqa: PLC0415
            from ebbmq.node.keeping.prefetching import Prefetcher  # noqa: PLC0415
            from ebbmq.node.keeping.reconciling import Reconciler  # noqa: PLC0415

            for name, port in engine.devices.ports.items():
                self._holdings.declare_device(name, durable=port.spec.durable)
            engine.devices.counts = self._counts
            self.mover = Mover(engine, bytes_per_s=engine.config.placement.move_bytes_per_s)
            self.reconciler = Reconciler(engine)
            self.fetcher = Prefetcher(engine)
        with engine.lock:
            self._resume()
        for worker in self._workers():
            worker.start()

    def _counts(self, device: str) -> Counts:
        """What the node has on a device; of the log, every message that did not leave it."""
        engine = self._engine
        with engine.lock:
            copies, moves = engine.holdings.counts(device)
            if device == LOG:
                live = sum(shard.partition.live() for shard in engine.catalog.shards.values())
                copies += live - len(engine.holdings)
        return Counts(copies, moves)

    def stop(self) -> None:
        """Make no more copies; what is owed is asked for at the next start."""
        for worker in self._workers():
            worker.stop()
        self.confirming.close()

    def _workers(self) -> list[Mover | Reconciler | Prefetcher]:
        every = (self.reconciler, self.fetcher, self.mover)
        return [worker for worker in every if worker is not None]

    def _resume(self) -> None:
        """Forget copies of what is gone, ask again for what was asked for."""
        shards = self._engine.catalog.shards
        steps: list[Step] = []
        for name, _ in list(self._holdings.items()):
            pid, seq = parts_of(name)
            shard = shards.get(pid)
            # What a faulty partition has is not known: it may be read again.
            if shard is None or (
                shard.faulty is None and shard.partition.index.state_of(seq) == FREE
            ):
                steps.append(self._holdings.remove(name))
        self.apply(steps)
        if self.mover is not None:
            position = self._engine.journal.position
            for effect in self._holdings.owed():
                self._carry_out(effect, position)
            self.mover.wake()

    def row_of(self, name: Name) -> tuple[Shard, int, tuple[int, ...]] | None:
        """The partition, number and row of a message; None if it is gone."""
        pid, seq = parts_of(name)
        shard = self._engine.catalog.shards.get(pid)
        if shard is None or shard.faulty is not None:
            return None
        found = shard.partition.index.locate(seq)
        if found is None or found[0].buffer[found[1]] == FREE:
            return None
        return shard, seq, ROW.unpack_from(found[0].buffer, found[1])


def _together(answers: list[Answer], first: Name) -> Iterable[tuple[Answer, list[Name]]]:
    """Messages with these answers, by answer: those that are alike have the same object."""
    if answers.count(answers[0]) == len(answers):
        return [(answers[0], list(range(first, first + len(answers))))]
    alike: dict[int, tuple[Answer, list[Name]]] = {}
    for name, answer in enumerate(answers, first):
        alike.setdefault(id(answer), (answer, []))[1].append(name)
    return alike.values()


def lacks(holding: Holding, lost: Devices) -> int:
    """How many copies a body lacks while these devices are lost."""
    there = (holding.staying() | holding.pending) - lost
    return max(0, max(holding.target, holding.min_copies) - len(there))
