"""Applying a plan: rows that fit the present become pins, and copies that the mover makes.

Some rows at a time, the lock free in between, so that delivery goes on; where there is not room for
all of a batch, the most valuable first (`ranking`). Of each batch the facts
about copies are appended first and those about pins after them: whoever finds a pin after a restart
finds what follows from it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq import limits
from ebbmq.core.block import SIZE
from ebbmq.core.copies import name_of
from ebbmq.core.pins import Advice
from ebbmq.feed.advice import plan_reason
from ebbmq.node.advising import checks, pinning, ranking
from ebbmq.node.keeping.likeness import Looking
from ebbmq.node.keeping.placing import replicas_of
from ebbmq.policy.decay import Phase
from ebbmq.policy.placement import Pin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.node.advising.room import Room
    from ebbmq.node.advising.rows import Rows
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.likeness import Alike
    from ebbmq.node.keeping.placing import Stored
    from ebbmq.policy.placement import Wanted
    from ebbmq.policy.rules.choose import View

#: Rows that are looked at under one hold of the lock.
AT_ONCE: Final = 512
#: What rows are alike in that ask for the same.
_ASKED: Final = (
    "action",
    "target",
    "to_tier",
    "decided_at_ms",
    "until_ms",
    "generation",
    "policy_version",
)
#: What facts about a message that is pinned and moved take in the journal at most, about.
_FACTS_BYTES: Final = 256
_LENGTH: Final = np.uint64((1 << 32) - 1)


class _Group(NamedTuple):
    """Rows of one partition that ask for the same; why and how much each is worth, by message."""

    advice: Advice
    reasons: dict[int, str]
    values: dict[int, float]


class Applying:
    """The rows of one run."""

    def __init__(self, engine: Engine, run: str, room: Room) -> None:
        self._engine, self._run, self._room = engine, run, room
        #: applied, in_force, and reasons of refusal.
        self.counts: Counter[str] = Counter()

    def apply(self, rows: Rows) -> None:
        """Take rows that are about this node (the lock is free).

        Raises:
            Overloaded: code `disk_full`; what was applied before stays.
        """
        valid = rows[rows["is_valid"]]
        self.counts["invalid"] += len(rows) - len(valid)
        fitting, rest = ranking.ranked(self._engine, self._room, valid)
        for pid in np.unique(fitting["pid"]).tolist():
            mine = fitting[fitting["pid"] == pid]
            for first in range(0, len(mine), AT_ONCE):
                self._of_partition(pid, mine[first : first + AT_ONCE])
                self._engine.let_others_in()
        for first in range(0, len(rest), AT_ONCE):
            some = ranking.in_order(rest[first : first + AT_ONCE])
            for pid in np.unique(some["pid"]).tolist():
                self._of_partition(pid, some[some["pid"] == pid])
            self._engine.let_others_in()

    def _of_partition(self, pid: int, mine: Rows) -> None:
        engine = self._engine
        with engine.lock:
            engine.check_open()
            shard = engine.catalog.shards.get(pid)
            is_usable = shard is not None and shard.faulty is None
        if shard is None or not is_usable:
            self.counts["gone"] += len(mine)
            return
        fetched: dict[int, bytes] = {}
        if engine.devices is not None:
            fetched = engine.keeping.fetch_headers(shard, mine["seq"].tolist())
        with engine.lock:
            engine.check_open()
            engine.admit(_FACTS_BYTES * len(mine))
            groups = self._groups(shard, mine)
            view = engine.keeping.view() if engine.devices is not None else None
            for group in groups:
                self._take(shard, group, view, fetched)
            engine.settle(shard)

    def _groups(self, shard: Shard, rows: Rows) -> list[_Group]:
        """Rows that fit, those that ask for the same together."""
        engine, now_ms = self._engine, self._engine.now_ms()
        until_max_ms = now_ms + limits.ADVICE_HOLDS_MS_MAX
        groups: dict[tuple[object, ...], _Group] = {}
        seen: set[int] = set()
        names = ("seq", "reason", "value")
        columns = zip(
            checks.outdated(engine, shard, self._run, rows),
            *(rows[name].tolist() for name in names),
            zip(*(rows[name].tolist() for name in _ASKED), strict=True),
            strict=True,
        )
        for why, seq, reason, value, key in columns:
            if why or seq in seen:
                self.counts[why or "superseded"] += 1
                continue
            seen.add(seq)
            group = groups.get(key)
            if group is None:
                action, target, tier, decided_ms, until_ms, generation, version = key
                pin = Pin(
                    target,
                    tier,
                    min(decided_ms, now_ms),
                    min(until_ms, until_max_ms),
                    generation,
                    version,
                )
                group = groups[key] = _Group(Advice(self._run, action, pin), {}, {})
            group.reasons[seq] = reason
            group.values[seq] = value
        return list(groups.values())

    def _take(
        self, shard: Shard, group: _Group, view: View | None, fetched: dict[int, bytes]
    ) -> None:
        """Do what rows that fit ask for, as far as it can be done."""
        engine, seqs = self._engine, list(group.reasons)
        if view is None or not _has_tier(group.advice.pin.tier, shard, view):
            self.counts["unknown_tier"] += len(seqs)
            return
        seqs = self._pinnable(shard, group, seqs)
        now_ms = engine.now_ms()
        looked = Looking(engine, shard, view, fetched).at(seqs, now_ms)
        # Its headers are on a device that is away: where it should be cannot be said.
        self.counts["no_device"] += len(looked.later)
        for alike in looked.alike:
            pinned = alike.stored._replace(review_at_ms=now_ms, pin=group.advice.pin)
            wanted = engine.keeping.placing.again(shard, pinned, now_ms, view)
            why = _why_not(shard, pinned, wanted, view, engine)
            if why:
                self.counts[why] += len(alike.seqs)
            else:
                self._do(alike, wanted, group)

    def _pinnable(self, shard: Shard, group: _Group, seqs: list[int]) -> list[int]:
        """Those that can be held to a plan: who is held to one already, then the most valuable."""
        pins = self._engine.pins
        if len(pins) + len(seqs) <= limits.PINS_MAX:
            return seqs
        base = name_of(shard.partition.pid, 0)
        known = pins.of_many([base | seq for seq in seqs])
        more = [seq for seq, advice in zip(seqs, known, strict=True) if advice is None]
        more.sort(key=lambda seq: -group.values[seq])
        refused = set(more[max(0, limits.PINS_MAX - len(pins)) :])
        self.counts["too_many_pins"] += len(refused)
        return [seq for seq in seqs if seq not in refused]

    def _do(self, alike: Alike, wanted: Wanted, group: _Group) -> None:
        """Ask for copies as far as there is room for them, and hold their messages to it."""
        engine, shard = self._engine, alike.shard
        fitting = self._fitting(alike, wanted, group)
        self.counts["no_room"] += len(alike.seqs) - len(fitting)
        if not fitting:
            return
        alike = alike._replace(seqs=fitting)
        why = {group.reasons[seq] for seq in fitting}
        told = why.pop() if len(why) == 1 else f"score {wanted.score:.1f}"
        reason = plan_reason(self._run, f"{group.advice.action}, {told}")
        base = name_of(shard.partition.pid, 0)
        names = [base | seq for seq in fitting]
        tier = group.advice.pin.tier or ""
        engine.keeping.decisions.note(
            engine.now_ms(), names, "pinned", tier, reason, score=wanted.score
        )
        is_new = alike.stored.holding.target != wanted.target
        # What is kept so already is held to it, too, but nothing was done for it.
        is_new |= engine.keeping.rearrange(alike, wanted, reason)
        engine.keeping.reviewer.look_again_if_blocked(alike, wanted, engine.now_ms())
        pinning.pin(engine, shard, fitting, group.advice)
        self.counts["applied" if is_new else checks.IN_FORCE] += len(fitting)

    def _fitting(self, alike: Alike, wanted: Wanted, group: _Group) -> Sequence[int]:
        """Those that every device has room for; where not all fit, the most valuable."""
        if not wanted.add:
            return alike.seqs
        left = min(self._room.left(device) for device in wanted.add)
        words = alike.shard.partition.index.words_of(np.array(alike.seqs, dtype=np.uint64))
        sizes: list[int] = (words[:, SIZE] & _LENGTH).tolist()
        fitting, taken = alike.seqs, sum(sizes)
        if taken > left:
            by_value = sorted(
                zip(alike.seqs, sizes, strict=True), key=lambda each: -group.values[each[0]]
            )
            chosen, taken = list[int](), 0
            for seq, size in by_value:
                if taken + size <= left:
                    chosen.append(seq)
                    taken += size
            fitting = sorted(chosen)
        for device in wanted.add:
            self._room.take(device, taken)
        return fitting


def _has_tier(tier: str | None, shard: Shard, view: View) -> bool:
    """Whether there is such a tier, for this queue."""
    if tier is None:
        return True
    known = shard.queue.spec.tiers
    return (not known or tier in known) and any(
        state.tier == tier for state in view.states.values()
    )


def _why_not(shard: Shard, stored: Stored, wanted: Wanted, view: View, engine: Engine) -> str:
    """Why what placement makes of advice is not what was advised; empty if it is."""
    pin, terms = stored.pin, engine.keeping.placing.terms(shard.queue.spec)
    assert pin is not None
    if wanted.action != "keep":
        return "faded"
    replicas = replicas_of(stored)
    asked = max(replicas, terms.min_copies)
    floor = 1 if wanted.phase is Phase.FADED else asked
    if not floor <= pin.target <= max(asked, terms.max_replicas or replicas):
        return "out_of_bounds"
    if not wanted.pinned:
        return "crossed"
    if wanted.missing or wanted.target != pin.target or not wanted.copies:
        return "no_device"
    there = view.states[wanted.copies[0]].tier
    return "no_device" if pin.tier is not None and there != pin.tier else ""
