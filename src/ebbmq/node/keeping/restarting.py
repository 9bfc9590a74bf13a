"""What a start does about copies: rows are marked, what was owed is asked for, strays are adopted.

Everything here is called with the engine's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.core.copies import LOG, Held, parts_of
from ebbmq.core.row import AT_FLAGS, ELSEWHERE, FREE, HELD
from ebbmq.node.advising import pinning
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.core.copies import Name, Step
    from ebbmq.node.engine import Engine


def mark_rows(engine: Engine) -> None:
    """Mark the rows whose copies are told of."""
    shards = engine.catalog.shards
    astray: list[Held] = []
    for name, holding in engine.holdings.items():
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
        engine.holdings.restore(told)
    pinning.mark_rows(engine)


def resume(engine: Engine) -> None:
    """Forget copies of what is gone, ask again for what was asked for."""
    steps: list[Step] = []
    for name, _ in list(engine.holdings.items()):
        if has_left(engine, name):
            steps.append(engine.holdings.remove(name))
    engine.keeping.apply(steps)
    carrying = engine.keeping.carrying
    if carrying.mover is not None:
        position = engine.journal.position
        for effect in engine.holdings.owed():
            carrying.carry_out(effect, position)
        carrying.mover.wake()


def has_left(engine: Engine, name: Name) -> bool:
    """Whether a message is known to have left; that it is not there alone says nothing.

    What a faulty partition has is not known: it may be read again.
    """
    pid, seq = parts_of(name)
    shard = engine.catalog.shards.get(pid)
    if not engine.keeping.is_whole or engine.catalog.damage_to(pid, seq):
        return False
    if shard is None:
        return pid < engine.catalog.next_pid  # it was deleted
    index = shard.partition.index
    was_given_out = seq < index.next_seq and seq not in shard.passed_over
    return was_given_out and shard.faulty is None and index.state_of(seq) == FREE


def adopt(engine: Engine, device: str, listed: Iterable[Name]) -> None:
    """Of what a device has, take those bodies for copies that are not known to be anywhere."""
    steps: list[Step] = []
    for name in listed:
        known = engine.keeping.row_of(name)
        if (
            known is not None
            and known[2][1] & ELSEWHERE
            and not engine.holdings.of(name).copies - {LOG}
        ):
            log.warning("copy_adopted", device=device, message=f"{name >> 48:x}-{known[1]:x}")
            engine.keeping.mark(name)
            steps.append(engine.holdings.adopt(name, device))
    engine.keeping.apply(steps)
