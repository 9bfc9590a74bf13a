"""Where bodies are, how many copies they should have, and who still needs them.

Theory of operation. A body is named by its location in the node's log. The normal case, one copy
in that log needed by one message, is not stored at all. Anything else is a `Holding`, an immutable
value; a transition makes the next one. Equal holdings are one object, and a body has only its
number, so further copies cost a body some eight bytes however many they are.

Verbs change the state at once and return a `Step`: effects to carry out (copy, delete) and facts
to append before anybody relies on it. A fact states what is, so restoring it twice is harmless.
How many messages need a body is no fact of its own: the rows that refer to it say so, and recovery
counts them. Neither is a copy that was asked for and not confirmed: after a restart it is short of
the target, and is asked for again.

A message that left is a *name*, (pid, seq), because devices know no locations. Its tombstone waits
until every device that may have had a copy confirmed the removal.

Invariants:
1. A device is in at most one of `copies`, `pending` and `dropping` of a holding.
2. By its own verbs a body never loses its last copy, nor a durable body its last durable one; only
   the loss of a device can do that, and it is reported.
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
    held,
)
from ebbmq.core.located import SharedValues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


class Holdings:
    """The copies, targets, needs and removals of all bodies of a node."""

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

    def of(self, body: int) -> Holding:
        """What is known of a body."""
        return self._bodies.get(body)

    # Who needs it

    def share(self, body: int, count: int) -> None:
        """Say that `count` messages need this body, whatever was said before."""
        assert count >= 1
        self._bodies.set(body, Holding(count, *self.of(body)[1:]))

    def let_go(self, body: int) -> bool:
        """One message less needs this body; True if it was the last, for which `remove` follows."""
        holding = self.of(body)
        if holding.needs == 1:
            return True
        self._bodies.set(body, Holding(holding.needs - 1, *holding[1:]))
        return False

    def relocate(self, body: int, to: int) -> Step:
        """The log's copy of a body is at another place; everything known of it goes along."""
        holding = self.of(body)
        assert self.of(to) == NORMAL
        self._bodies.set(body, NORMAL)
        self._bodies.set(to, holding)
        if held(body, holding) == held(body, NORMAL):
            return NOTHING
        return Step(facts=(held(body, NORMAL), held(to, holding)))

    # Where it is

    def place(
        self,
        body: int,
        copies: Collection[str],
        *,
        target: int = 1,
        min_copies: int = 1,
        durable: bool = True,
    ) -> Step:
        """A body came in, with copies already confirmed on these devices."""
        assert copies
        assert target >= 1
        assert min_copies >= 1
        before = self.of(body)
        assert not before.pending
        assert not before.dropping
        return self._change(
            body,
            Holding(
                before.needs,
                frozenset(copies),
                target=target,
                min_copies=min_copies,
                durable=durable,
            ),
        )

    def copies(self, body: int) -> Devices:
        """The devices that have confirmed a copy."""
        return self.of(body).copies

    def copies_acked(self, body: int) -> int:
        """How many devices have confirmed a copy."""
        return len(self.of(body).copies)

    def is_eligible(self, body: int) -> bool:
        """Whether enough copies are confirmed for its messages to be leased."""
        holding = self.of(body)
        return len(holding.copies) >= holding.min_copies

    def shortage(self, body: int) -> int:
        """How many copies to ask for so that target and min_copies are reached."""
        holding = self.of(body)
        wanted = max(holding.target, holding.min_copies)
        return max(0, wanted - len(holding.copies) - len(holding.pending))

    def set_target(self, body: int, target: int) -> Step:
        """Change how many copies a body should have; `shortage` says what that takes."""
        assert target >= 1
        return self._change(body, self.of(body)._replace(target=target))

    def add_copy(self, body: int, device: str) -> Step:
        """Ask for a copy; nothing if there is one, or it is asked for, or still being deleted."""
        holding = self.of(body)
        if device in holding.copies | holding.pending | holding.dropping:
            return NOTHING
        self._bodies.set(body, holding._replace(pending=holding.pending | {device}))
        return Step(effects=(PutCopy(body, device),))

    def copy_acked(self, body: int, device: str) -> Step:
        """The device has the copy; nothing if it was not asked for (any more)."""
        holding = self.of(body)
        if device not in holding.pending:
            return NOTHING
        return self._change(
            body,
            holding._replace(copies=holding.copies | {device}, pending=holding.pending - {device}),
        )

    def copy_failed(self, body: int, device: str) -> Step:
        """The device did not take the copy, or not in time; what it may have is deleted."""
        holding = self.of(body)
        if device not in holding.pending:
            return NOTHING
        step = self._change(
            body,
            holding._replace(
                pending=holding.pending - {device}, dropping=holding.dropping | {device}
            ),
        )
        return step._replace(effects=(DropCopy(body, device),))

    def may_drop(self, body: int, device: str) -> bool:
        """Whether a copy is there and not the last, or the last durable one of a durable body."""
        holding = self.of(body)
        rest = holding.copies - {device}
        enough = rest & self._durable if holding.durable else rest
        return device in holding.copies and bool(enough)

    def drop_copy(self, body: int, device: str) -> Step:
        """Ask for the removal of a copy; nothing unless `may_drop`."""
        if not self.may_drop(body, device):
            return NOTHING
        holding = self.of(body)
        step = self._change(
            body,
            holding._replace(
                copies=holding.copies - {device}, dropping=holding.dropping | {device}
            ),
        )
        return step._replace(effects=(DropCopy(body, device),))

    def drop_acked(self, body: int, device: str) -> Step:
        """The device has deleted the copy."""
        holding = self.of(body)
        if device not in holding.dropping:
            return NOTHING
        return self._change(body, holding._replace(dropping=holding.dropping - {device}))

    # Removal

    def remove(self, body: int, name: Name) -> Step:
        """The last message that needed the body left; every device but the log must confirm."""
        holding = self.of(body)
        assert holding.needs == 1
        step = self._change(body, NORMAL)
        waiting = (holding.copies | holding.pending | holding.dropping) - {LOG}
        if not waiting:
            return step
        self._tombstones[name] = Tombstone(waiting)
        return Step(_forget(name, waiting), (*step.facts, Gone(name, waiting)))

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

    def removals_acked(self, name: Name) -> int | None:
        """How many devices have confirmed a removal; None once all have."""
        tombstone = self._tombstones.get(name)
        return None if tombstone is None else len(tombstone.acked)

    # Devices that go and come

    def evict_device(self, device: str) -> Step:
        """Count on a lost device no more: its copies are gone, its confirmations not awaited."""
        assert device != LOG
        effects: list[Effect] = []
        facts: list[Fact] = []
        for body, holding in list(self._bodies.items()):
            after = _without(holding, device)
            if after != holding:
                facts += self._change(body, after).facts
                if not after.copies and holding.copies:
                    effects.append(BodyLost(body))
        for name, tombstone in list(self._tombstones.items()):
            if device in tombstone.waiting:
                facts.append(
                    self._await(name, tombstone._replace(waiting=tombstone.waiting - {device}))
                )
        return Step(tuple(effects), tuple(facts))

    def strays(self, device: str, listed: Iterable[tuple[Name, int | None]]) -> Step:
        """What a device that returns must delete of what it lists: all that is not in a copy set.

        Each listed name comes with the body of its message, or None if that has left.
        """
        effects: list[Effect] = []
        for name, body in listed:
            if body is None or device not in self.of(body).copies | self.of(body).pending:
                effects.append(ForgetCopy(name, device))
        return Step(tuple(effects))

    # Recovery

    def restore(self, fact: Fact) -> None:
        """Make a fact true; facts come in the order written, from any point, more than once."""
        match fact:
            case Held(body, copies, dropping, target, min_copies, durable):
                needs = self.of(body).needs
                self._bodies.set(
                    body,
                    Holding(needs, copies, NO_DEVICES, dropping, target, min_copies, durable),
                )
            case Gone(name, waiting):
                self._await(name, Tombstone(waiting))

    def facts(self) -> Iterator[Fact]:
        """All that is true and not normal, for a checkpoint."""
        for body, holding in self._bodies.items():
            if held(body, holding) != held(body, NORMAL):
                yield held(body, holding)
        for name, tombstone in self._tombstones.items():
            yield Gone(name, tombstone.waiting)

    def owed(self) -> Iterator[Effect]:
        """The deletions that are not confirmed, to be asked for again after a restart."""
        for body, holding in self._bodies.items():
            for device in sorted(holding.dropping):
                yield DropCopy(body, device)
        for name, tombstone in self._tombstones.items():
            yield from _forget(name, tombstone.waiting)

    def _await(self, name: Name, tombstone: Tombstone) -> Gone:
        if tombstone.waiting:
            self._tombstones[name] = tombstone
        else:
            self._tombstones.pop(name, None)
        return Gone(name, tombstone.waiting)

    def _change(self, body: int, holding: Holding) -> Step:
        before = self.of(body)
        self._bodies.set(body, holding)
        fact = held(body, holding)
        return NOTHING if fact == held(body, before) else Step(facts=(fact,))


def _without(holding: Holding, device: str) -> Holding:
    return holding._replace(
        copies=holding.copies - {device},
        pending=holding.pending - {device},
        dropping=holding.dropping - {device},
    )


def _forget(name: Name, devices: Devices) -> tuple[ForgetCopy, ...]:
    return tuple(ForgetCopy(name, device) for device in sorted(devices))
