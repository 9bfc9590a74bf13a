"""What operators ask of holding storage: give up a device, apply the rules to what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core.copies import LOG
from ebbmq.errors import DeviceInUse, InvalidSpec, UnknownDevice
from ebbmq.model import Evicted
from ebbmq.node.advising import pinning
from ebbmq.node.devices.identities import Identities
from ebbmq.node.keeping.likeness import Looking
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

_AT_ONCE: Final = 512


def evict(engine: Engine, device: str, *, force: bool = False) -> Evicted:
    """Count on a lost device no more; what it alone had is lost, on the record.

    Raises:
        UnknownDevice: no such device is configured, and no message has a copy there.
        InvalidSpec: the node's own log cannot be evicted.
        DeviceInUse: it answers, and `force` is not given.
    """
    if device == LOG:
        raise InvalidSpec("the node's own log cannot be evicted", "name another device")
    with engine.lock:
        engine.check_open()
        states = engine.devices.states if engine.devices is not None else {}
        copies, moves = engine.holdings.counts(device)
        if device not in states and not copies and not moves:
            known = ", ".join(name for name in states if name != LOG) or "none"
            raise UnknownDevice(f"there is no device {device!r}", f"configured are: {known}")
        if device in states and states[device].usable and not force:
            raise DeviceInUse(
                f"device {device!r} answers and has {copies} copies",
                "evict what is lost for good; to give up a device that works, force it",
            )
    lost, name = 0, 0
    while True:
        with engine.lock:
            engine.check_open()
            held = engine.holdings.after(name, _AT_ONCE)
            some = [each for each, _ in held]
            # Of what came meanwhile, all that is there is asked at the end.
            engine.keeping.given_up(device, held or engine.holdings.items())
            step = (
                engine.holdings.evict_copies(device, some)
                if some
                else engine.holdings.evict_device(device)
            )
            lost += len(step.effects)
            engine.keeping.apply([step])
            engine.keeping.mend(fact.name for fact in step.facts)
            position = engine.journal.position
        if not some:
            break
        name = some[-1] + 1
        engine.let_others_in()
    engine.journal.wait("synced", position)
    # Another disk may take its name; without this it would be refused as not the one it was.
    Identities(engine.directory.path).forget(device)
    log.warning("device_evicted", device=device, copies=copies, messages_lost=lost)
    return Evicted(device, copies, lost)


def apply_rules(engine: Engine, progress: Callable[[int, int], None] | None = None) -> int:
    """Ask the rules again for everything that is stored; returns how many messages move."""
    with engine.lock:
        engine.check_open()
        if engine.devices is None:
            raise InvalidSpec(
                "there is no device but the node's own log", "configure some under [devices]"
            )
        shards = [shard for shard in engine.catalog.shards.values() if shard.faulty is None]
        total = sum(shard.partition.live() for shard in shards)
    moved = done = 0
    for shard in shards:
        for number in sorted(shard.partition.index.pages):
            for at in range(0, limits.PAGE_ROWS, _AT_ONCE):
                first = number * limits.PAGE_ROWS + at
                looked, changed = _again(engine, shard, range(first, first + _AT_ONCE))
                done, moved = done + looked, moved + changed
                if progress is not None and looked:
                    progress(done, max(done, total))
                if looked:
                    engine.let_others_in()
    return moved


def _again(engine: Engine, shard: Shard, seqs: range) -> tuple[int, int]:
    """Ask the rules for some messages; returns how many there were, and how many move."""
    keeper = engine.keeping
    fetched = keeper.fetch_headers(shard, seqs)
    changed = 0
    with engine.lock:
        engine.check_open()
        view, now_ms = keeper.view(), engine.now_ms()
        looked = Looking(engine, shard, view, fetched).whenever(seqs, now_ms)
        for alike in looked.alike:
            wanted = keeper.placing.by_rules(shard, alike.stored, now_ms, view)
            pinning.unpin(engine, shard, alike.seqs, "rules applied")
            if wanted.action == "keep" and keeper.rearrange(alike, wanted, "rules applied"):
                changed += len(alike.seqs)
    return sum(len(each.seqs) for each in looked.alike) + len(looked.later), changed
