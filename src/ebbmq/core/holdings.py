"""Where bodies are, how many copies they should have, and which devices still have to forget them.

Theory of operation. A body is named by its message. The normal case, one copy in the node's log, is
not stored at all. Anything else is a `Holding`, an immutable value; a transition makes the next
one. Equal holdings are one object, and a body has only its number, which consecutive bodies share:
further copies cost a body twelve bytes at most however many they are, and next to nothing where
neighbours are kept alike.

Verbs change the state at once and return a `Step`: effects to carry out (copy, delete) and facts
to append before anybody relies on it. A fact states what is, so restoring it twice is harmless. A
copy that was asked for is part of it: it carries what the rules chose, and after a restart it is
asked for again.

A move is a copy that is asked for and one that is *leaving*: it goes once everything pending has
arrived, in the same step that makes the arrival known, or never, if the new copy cannot be made.

A message that left has a tombstone until every device that may have had a copy confirmed the
removal.

Invariants:
1. A device is in at most one of `copies`, `pending` and `dropping` of a holding; what is leaving is
   among the copies.
2. By its own verbs a body never loses its last copy, nor a durable body its last durable one; only
   the loss of a device or of a copy can do that, and it is reported.
3. A holding equal to `NORMAL` has no entry.
4. For one device the effects of a body come in the order in which they must be carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.core.copies import (
    LOG,
    NO_DEVICES,
    NORMAL,
    NOTHING,
    BodyLost,
    Changed,
    Devices,
    DropCopy,
    Effect,
    Fact,
    ForgetCopy,
    Gone,
    Held,
    Holding,
    Name,
    PutCopy,
    Step,
    Tombstone,
    add_names,
)
from ebbmq.core.shared_values import SharedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


class Holdings:
    """The copies, targets and removals of all bodies of a node."""

    def __init__(self) -> None:
        self._durable = {LOG}
        self._bodies = SharedValues(NORMAL)
        self._tombstones: dict[Name, Tombstone] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def declare_device(self, device: str, *, durable: bool) -> None:
        """Say whether copies on a device survive the loss of power; the log's do."""
        if durable:
            self._durable.add(device)
        elif device != LOG:
            self._durable.discard(device)

    def of(self, name: Name) -> Holding:
        """What is known of a body."""
        return self._bodies.get(name)

    def of_many(self, names: Sequence[Name]) -> list[Holding]:
        """What is known of bodies; equal ones are the same object."""
        return self._bodies.get_many(names)

    def are_alike(self, names: Sequence[Name]) -> bool:
        """Whether the same is known of all of some bodies."""
        return self._bodies.is_one(names)

    def items(self) -> Iterator[tuple[Name, Holding]]:
        """Every body that is not normal, in the order of names."""
        return self._bodies.items()

    def counts(self, device: str) -> tuple[int, int]:
        """Copies a device has, and copies that are to be made or deleted there.

        What is only in the log is not counted for it.
        """
        copies = moves = 0
        for holding, count in self._bodies.counts():
            copies += count * (device in holding.copies)
            moves += count * (device in holding.pending | holding.dropping | holding.leaving)
        return copies, moves

    def alike(self) -> list[tuple[Holding, int]]:
        """What is known of bodies that are not normal, with how many it is true of."""
        return self._bodies.counts()

    def without_log(self) -> int:
        """How many bodies the log does not have."""
        return sum(count for holding, count in self._bodies.counts() if LOG not in holding.copies)

    def after(self, name: Name, count: int) -> list[tuple[Name, Holding]]:
        """At most `count` bodies that are not normal, from a name on; none: there are no more."""
        return self._bodies.after(name, count)

    def told_from(self, name: Name, count: int) -> tuple[Changed, Name | None]:
        """The facts of at most `count` bodies from a name on, and the name to go on from."""
        found = self._bodies.alike_after(name, count)
        if not found:
            return Changed({}), None
        return Changed(found), max(names[-1] for names in found.values()) + 1

    # Where it is

    def place(
        self,
        name: Name,
        wanted: Collection[str],
        *,
        target: int = 1,
        min_copies: int = 1,
        durable: bool = True,
    ) -> Step:
        """A body came into the log, and these devices should have it; the log stays if it is one.

        What is to be done beside the log is asked for with `asked`, once the facts are appended.
        """
        assert wanted
        assert target >= 1
        assert min_copies >= 1
        return self._change(name, placed(frozenset(wanted), target, min_copies, durable=durable))

    def place_many(self, names: Sequence[Name], holding: Holding) -> Changed:
        """`place` for many that should be at the same devices; `placed` says what that is."""
        self._bodies.set_many(names, holding)
        return Changed({holding: names})

    def asked(self, name: Name) -> Step:
        """The copies that are asked for and not confirmed, to be made now."""
        return Step(tuple(PutCopy(name, device) for device in sorted(self.of(name).pending)))

    def awaited(self, device: str, names: Sequence[Name]) -> Sequence[Name]:
        """Those of which a device was asked to have a copy, and has not confirmed it."""
        return self._bodies.where(names, lambda holding: device in holding.pending)

    def unheld(self, device: str, names: Sequence[Name]) -> Sequence[Name]:
        """Those of which a device neither has a copy nor is asked to."""
        return self._bodies.where(
            names, lambda holding: device not in holding.copies | holding.pending
        )

    def that_move(self, names: Sequence[Name]) -> Sequence[Name]:
        """Those of which a copy goes once what is pending is there."""
        return self._bodies.where(names, lambda holding: bool(holding.leaving))

    def copies_acked(self, name: Name) -> int:
        """How many devices have confirmed a copy."""
        return len(self.of(name).copies)

    def is_eligible(self, name: Name) -> bool:
        """Whether enough copies are confirmed for its message to be leased."""
        holding = self.of(name)
        return len(holding.copies) >= holding.min_copies

    def shortage(self, name: Name) -> int:
        """How many copies to ask for so that target and min_copies are reached."""
        holding = self.of(name)
        wanted = max(holding.target, holding.min_copies)
        return max(0, wanted - len(holding.staying()) - len(holding.pending))

    def set_target(self, name: Name, target: int) -> Step:
        """Change how many copies a body should have; `shortage` says what that takes."""
        assert target >= 1
        return self._change(name, self.of(name)._replace(target=target))

    def add_copy(self, name: Name, device: str) -> Step:
        """Ask for a copy; nothing if there is one, or it is asked for, or still being deleted."""
        holding = self.of(name)
        if device in holding.leaving:
            return self._change(name, holding._replace(leaving=holding.leaving - {device}))
        if device in holding.copies | holding.pending | holding.dropping:
            return NOTHING
        step = self._change(name, holding._replace(pending=holding.pending | {device}))
        return step._replace(effects=(PutCopy(name, device),))

    def copy_acked(self, name: Name, device: str) -> Step:
        """The device has the copy; nothing if it was not asked for (any more)."""
        holding = self.of(name)
        if device not in holding.pending:
            return NOTHING
        return self._settle(
            name,
            holding._replace(copies=holding.copies | {device}, pending=holding.pending - {device}),
        )

    def copies_acked_by(self, device: str, names: Sequence[Name]) -> Changed:
        """`copy_acked` for many."""

        def confirmed(holding: Holding) -> Holding:
            if device not in holding.pending:
                return holding
            return self._settled(
                holding._replace(
                    copies=holding.copies | {device}, pending=holding.pending - {device}
                )
            )

        return self._change_all(names, confirmed)

    def copy_failed(self, name: Name, device: str) -> Step:
        """The device did not take the copy, or not in time; what it may have is deleted."""
        holding = self.of(name)
        if device not in holding.pending:
            return NOTHING
        after = holding._replace(
            pending=holding.pending - {device}, dropping=holding.dropping | {device} - {LOG}
        )
        return self._change(name, after)._replace(effects=(DropCopy(name, device),))

    def stay(self, name: Name) -> Step:
        """What was to leave for a copy that is not coming stays, if the others are not enough."""
        return self._change(name, self._keep_what_is_left(self.of(name)))

    def may_drop(self, name: Name, device: str) -> bool:
        """Whether a copy is there, and enough others, one of them durable for a durable body."""
        holding = self.of(name)
        return device in holding.copies and self._may_spare(holding, holding.leaving | {device})

    def drop_copy(self, name: Name, device: str) -> Step:
        """Let a copy go: now if `may_drop`, else once what is pending is there, else not."""
        holding = self.of(name)
        if device not in holding.copies or not (holding.pending or self.may_drop(name, device)):
            return NOTHING
        return self._settle(name, holding._replace(leaving=holding.leaving | {device}))

    def rearrange_many(
        self, names: Sequence[Name], wanted: Sequence[str], target: int, spare: Collection[str]
    ) -> Changed:
        """Set the target of many, ask for copies on what is wanted, then let go of what is spare.

        As `set_target`, `add_copy` and `drop_copy` one after the other; a spare copy that was asked
        for and is not confirmed is asked for no more, and deleted should it be there.
        """

        def rearranged(holding: Holding) -> Holding:
            known = holding.copies | holding.pending | holding.dropping
            after = holding._replace(
                target=target,
                leaving=holding.leaving.difference(wanted),
                pending=holding.pending.union(wanted).difference(known - holding.pending),
            )
            outdated = after.pending.intersection(spare)
            after = after._replace(
                pending=after.pending - outdated, dropping=after.dropping | outdated - {LOG}
            )
            for device in spare:
                leaving = after.leaving | {device}
                if device in after.copies and (after.pending or self._may_spare(after, leaving)):
                    after = self._settled(after._replace(leaving=leaving))
            # What was to leave for one of them leaves now, or not at all.
            return self._keep_what_is_left(self._settled(after)) if outdated else after

        return self._change_all(names, rearranged)

    def drop_acked(self, name: Name, device: str) -> Step:
        """The device has deleted the copy."""
        holding = self.of(name)
        if device not in holding.dropping:
            return NOTHING
        return self._change(name, holding._replace(dropping=holding.dropping - {device}))

    def drops_acked_by(self, device: str, names: Sequence[Name]) -> Changed:
        """`drop_acked` for many."""
        return self._change_all(
            names, lambda holding: holding._replace(dropping=holding.dropping - {device})
        )

    def copy_lost(self, name: Name, device: str) -> Step:
        """A device does not have the copy it confirmed, or not as it was; `shortage` follows."""
        holding = self.of(name)
        if device not in holding.copies:
            return NOTHING
        after = holding._replace(
            copies=holding.copies - {device}, leaving=holding.leaving - {device}
        )
        return self._lost(name, self._change(name, self._keep_what_is_left(after)))

    # Removal

    def remove(self, name: Name) -> Step:
        """The message left; every device but the log must confirm that it forgot the body."""
        holding = self.of(name)
        if holding == NORMAL:
            return NOTHING
        self._bodies.set(name, NORMAL)
        waiting = (holding.copies | holding.pending | holding.dropping) - {LOG}
        fact = self._await(name, Tombstone(waiting))
        return Step(_forget(name, waiting), (fact,))

    def remove_many(self, names: Sequence[Name]) -> Changed:
        """`remove` for many."""
        gone: dict[Devices, Sequence[Name]] = {}
        for holding, _, some in self._bodies.change(names, lambda _: NORMAL):
            waiting = (holding.copies | holding.pending | holding.dropping) - {LOG}
            if waiting:
                self._tombstones.update(dict.fromkeys(some, Tombstone(waiting)))
            add_names(gone, waiting, some)
        return Changed({}, gone)

    def removals_acked_by(self, device: str, names: Iterable[Name]) -> Changed:
        """`removal_acked` for many."""
        tombstones, done = self._tombstones, list[Name]()
        after: dict[Tombstone, Tombstone] = {}
        for name in names:
            before = tombstones.get(name)
            if before is None or device not in before.waiting:
                continue
            left = after.get(before)
            if left is None:
                left = Tombstone(before.waiting - {device}, before.acked | {device})
                after[before] = left
            if left.waiting:
                tombstones[name] = left
            else:
                del tombstones[name]
                done.append(name)
        return Changed({}, gone={NO_DEVICES: done} if done else {})

    def removal_acked(self, name: Name, device: str) -> Step:
        """A device has deleted its copy; with the last one the tombstone goes."""
        tombstone = self._tombstones.get(name)
        if tombstone is None or device not in tombstone.waiting:
            return NOTHING
        fact = self._await(
            name, Tombstone(tombstone.waiting - {device}, tombstone.acked | {device})
        )
        # In between nothing is written: a device that is asked again confirms again.
        return NOTHING if fact.waiting else Step(facts=(fact,))

    def tombstone(self, name: Name) -> Tombstone | None:
        """Who confirmed a removal and who did not; None once all have."""
        return self._tombstones.get(name)

    def tombstones(self) -> int:
        """How many removals are not confirmed by all devices."""
        return len(self._tombstones)

    # Devices that go and come

    def evict_device(self, device: str) -> Step:
        """Count on a lost device no more: its copies are gone, its confirmations not awaited."""
        copies = self.evict_copies(device, [name for name, _ in self._bodies.items()])
        facts = list(copies.facts)
        for name, tombstone in list(self._tombstones.items()):
            if device in tombstone.waiting:
                facts.append(
                    self._await(name, tombstone._replace(waiting=tombstone.waiting - {device}))
                )
        return copies._replace(facts=tuple(facts))

    def evict_copies(self, device: str, names: Iterable[Name]) -> Step:
        """The part of `evict_device` that is about these bodies."""
        assert device != LOG
        effects: list[Effect] = []
        facts: list[Fact] = []
        for name in names:
            holding = self.of(name)
            after = _without(holding, device)
            if after != holding:
                step = self._change(name, self._keep_what_is_left(after))
                facts += step.facts
                if not after.copies and holding.copies:
                    effects.append(BodyLost(name))
        return Step(tuple(effects), tuple(facts))

    def strays(self, device: str, listed: Iterable[Name]) -> Step:
        """What a device that returns must delete of what it lists: all that is not in a copy set.

        A message that has left, or has its one copy in the log, is in none.
        """
        effects: list[Effect] = []
        for name in listed:
            holding = self.of(name)
            if device not in holding.copies | holding.pending:
                effects.append(ForgetCopy(name, device))
        return Step(tuple(effects))

    def adopt(self, name: Name, device: str) -> Step:
        """A device has a body of which it was not known any more where it is."""
        holding = self.of(name)
        return self._change(
            name,
            _without(holding, device)._replace(
                copies=(holding.copies | {device}) - {LOG}, leaving=NO_DEVICES
            ),
        )

    # Recovery

    def restore(self, fact: Fact) -> None:
        """Make a fact true; facts come in the order written, from any point, more than once."""
        if isinstance(fact, Held):
            self._bodies.set(fact.name, fact.holding)
            self._tombstones.pop(fact.name, None)
        else:
            self._bodies.set(fact.name, NORMAL)
            self._await(fact.name, Tombstone(fact.waiting))

    def facts(self) -> Iterator[Fact]:
        """All that is true and not normal."""
        for name, holding in self._bodies.items():
            yield Held(name, holding)
        for name, tombstone in self._tombstones.items():
            yield Gone(name, tombstone.waiting)

    def removals(self) -> dict[Name, Tombstone]:
        """The messages that left and that not all devices have forgotten, as of the call."""
        return self._tombstones.copy()

    def fact_of(self, name: Name) -> Fact:
        """What is true of one body, to be said again."""
        tombstone = self._tombstones.get(name)
        if tombstone is not None:
            return Gone(name, tombstone.waiting)
        return Held(name, self.of(name))

    def owed(self) -> Iterator[Effect]:
        """What was asked for and not confirmed, to be asked for again after a restart."""
        for name, holding in self._bodies.items():
            for device in sorted(holding.dropping):
                yield DropCopy(name, device)
            for device in sorted(holding.pending):
                yield PutCopy(name, device)
        for name, tombstone in self._tombstones.items():
            yield from _forget(name, tombstone.waiting)

    # Steps

    def _settle(self, name: Name, holding: Holding) -> Step:
        """Let go of what is leaving, if all that was asked for is there."""
        after = self._settled(holding)
        gone = holding.copies - after.copies
        step = self._change(name, after)
        return step._replace(effects=tuple(DropCopy(name, device) for device in sorted(gone)))

    def _settled(self, holding: Holding) -> Holding:
        leaving = holding.leaving
        if not leaving or holding.pending or not self._may_spare(holding, leaving):
            return holding
        return holding._replace(
            copies=holding.copies - leaving,
            leaving=NO_DEVICES,
            dropping=holding.dropping | leaving - {LOG},
        )

    def _may_spare(self, holding: Holding, devices: Collection[str]) -> bool:
        rest = holding.copies.difference(devices)
        enough = bool(rest & self._durable if holding.durable else rest)
        return enough and len(rest) >= holding.target

    def _keep_what_is_left(self, holding: Holding) -> Holding:
        """A copy does not leave any more where the others are not enough and none is on its way."""
        if (
            holding.leaving
            and not holding.pending
            and not self._may_spare(holding, holding.leaving)
        ):
            return holding._replace(leaving=NO_DEVICES)
        return holding

    def _lost(self, name: Name, step: Step) -> Step:
        if self.of(name).copies:
            return step
        return step._replace(effects=(*step.effects, BodyLost(name)))

    def _await(self, name: Name, tombstone: Tombstone) -> Gone:
        if tombstone.waiting:
            self._tombstones[name] = tombstone
        else:
            self._tombstones.pop(name, None)
        return Gone(name, tombstone.waiting)

    def _change_all(
        self, names: Sequence[Name], transition: Callable[[Holding], Holding]
    ) -> Changed:
        held: dict[Holding, Sequence[Name]] = {}
        changed = Changed(held)
        for before, after, some in self._bodies.change(names, transition):
            add_names(held, after, some)
            for device in sorted(after.pending - before.pending):
                add_names(changed.asked, device, some)
            gone = (before.copies - after.copies) | (after.dropping - before.dropping)
            for device in sorted(gone):
                add_names(changed.dropped, device, some)
        return changed

    def _change(self, name: Name, holding: Holding) -> Step:
        if self.of(name) == holding:
            return NOTHING
        self._bodies.set(name, holding)
        return Step(facts=(Held(name, holding),))


def placed(
    wanted: Devices, target: int, min_copies: int, *, durable: bool, replicas: int = 1
) -> Holding:
    """The state of a body that is in the log, and that these devices should have."""
    log = frozenset({LOG})
    return Holding(
        log, wanted - log, NO_DEVICES, log - wanted, target, min_copies, durable, replicas
    )


def _without(holding: Holding, device: str) -> Holding:
    return holding._replace(
        copies=holding.copies - {device},
        pending=holding.pending - {device},
        dropping=holding.dropping - {device},
        leaving=holding.leaving - {device},
    )


def _forget(name: Name, devices: Devices) -> tuple[ForgetCopy, ...]:
    return tuple(ForgetCopy(name, device) for device in sorted(devices))
