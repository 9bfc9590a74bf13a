"""What people see of where a message is kept: on leases, peeks, and when they ask for one by id."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ebbmq.core.copies import LOG, name_of
from ebbmq.core.row import LOW48
from ebbmq.model import InLog, Kept
from ebbmq.node.keeping.wording import words
from ebbmq.node.ruling import ALONE
from ebbmq.policy.reads import fastest_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.core.copies import Devices
    from ebbmq.core.partition import Row
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.policy.rules.properties import States


def kept(engine: Engine, shard: Shard, seen: Iterable[tuple[int, Row]]) -> list[Kept]:
    """How messages are kept, by number and row; a row is as before a lease (the lock is held)."""
    states = ALONE if engine.devices is None else engine.devices.states
    pid, accesses = shard.partition.pid, shard.partition.accesses
    now_ms, score = engine.now_ms(), shard.partition.score
    out: list[Kept] = []
    for seq, row in seen:
        holding = engine.holdings.of(name_of(pid, seq))
        rate = accesses.of(seq).rate_at(now_ms)
        out.append(
            Kept(
                access_count=row[13],
                access_rate=rate,
                decay_score=score.at(now_ms - (row[5] & LOW48), rate),
                tier=tier_of(holding.copies, states),
                copies=tuple(sorted(holding.copies)),
                copies_acked=len(holding.copies),
                removals_acked=0,
                replica_target=holding.target,
            )
        )
    return out


def in_log(engine: Engine, shard: Shard, at_ms: int) -> InLog | None:
    """How all messages of a partition are kept; None where that has to be seen one by one."""
    if engine.devices is not None or len(engine.holdings) or shard.partition.accesses.rates:
        return None
    return InLog(at_ms, shard.partition.score)


def tier_of(copies: Devices, states: States) -> str:
    """The tier a message is read from: that of its fastest copy that can be used."""
    known = fastest_first(copies, states, LOG) or sorted(copies & states.keys())
    return states[known[0]].tier if known else ""


def first_tier_of(copies: Devices, states: States, tiers: Sequence[str]) -> str:
    """The tier a message counts as being in: the first in its queue's order that has a copy.

    Whichever copy answers sooner at the moment, it is the same. Devices that cannot be used count
    only where no other has a copy.
    """

    def order(device: str) -> tuple[bool, int, int, str]:
        state = states[device]
        place = tiers.index(state.tier) if state.tier in tiers else len(tiers)
        return not state.usable, place, state.slowness, device

    known = sorted(copies & states.keys(), key=order)
    return states[known[0]].tier if known else ""


def unconfigured(engine: Engine) -> list[str]:
    """Devices that have copies and are not configured, and what to do (the lock is held)."""
    states = {} if engine.devices is None else engine.devices.states
    copies, alone = Counter[str](), Counter[str]()
    for holding, count in engine.holdings.alike():
        away = holding.copies - states.keys() - {LOG}
        copies.update(dict.fromkeys(away, count))
        if away == holding.copies:
            alone.update(dict.fromkeys(away, count))
    return [
        f"device {name!r} is not configured and has {copies[name]} copies; {alone[name]} messages "
        f"have no other that can be read, and wait for it: configure it under [devices], or give "
        f"it up with `ebbmq devices evict {name}`"
        for name in sorted(copies)
    ]


def decided(engine: Engine, pid: int, seq: int) -> dict[str, Any]:
    """The decisions behind the copies of a message (the lock is free: files are read)."""
    decisions = engine.keeping.decisions
    told: dict[str, Any] = {
        "decisions": [
            {
                "at_ms": each.at_ms,
                "event": each.event,
                "device": each.device,
                "reason": each.reason,
                "text": words(each),
            }
            for each in decisions.of(name_of(pid, seq))
        ]
    }
    since_ms = decisions.since_ms()
    if since_ms is not None:
        told["decisions_since_ms"] = since_ms
    return told


def story(engine: Engine, pid: int, seq: int) -> dict[str, Any]:
    """What becomes of the copies of a message, and what it is held to (the lock is held)."""
    name = name_of(pid, seq)
    tombstone = engine.holdings.tombstone(name)
    told: dict[str, Any] = {}
    if tombstone is not None:
        told["removals_acked"] = len(tombstone.acked)
        told["removals_waiting"] = sorted(tombstone.waiting)
    advice = engine.pins.of(name)
    if advice is not None:
        told["pinned"] = {
            "run": advice.run,
            "action": advice.action,
            "target": advice.pin.target,
            "tier": advice.pin.tier,
            "decided_at_ms": advice.pin.decided_at_ms,
            "until_ms": advice.pin.until_ms,
        }
    holding = engine.holdings.of(name)
    if holding.pending or holding.leaving or holding.dropping:
        told["moving"] = {
            "to": sorted(holding.pending),
            "from": sorted(holding.leaving | holding.dropping),
        }
    return told
