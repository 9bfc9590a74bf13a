"""Holding messages to advice and letting go of it; each change is on the record.

Everything here is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.core import pins
from ebbmq.core.copies import name_of, parts_of
from ebbmq.core.row import AT_FLAGS, FREE, HELD
from ebbmq.feed.advice import plan_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.core import facts as fact
    from ebbmq.core.copies import Name
    from ebbmq.core.pins import Advice
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

#: So many are looked at before others get the lock.
_AT_ONCE: Final = 1_024


def pin(engine: Engine, shard: Shard, seqs: Sequence[int], advice: Advice) -> None:
    """Hold messages to advice, once the facts about copies that follow from it are appended."""
    base = name_of(shard.partition.pid, 0)
    shard.partition.mark_held(seqs)
    engine.append(engine.pins.pin([base | seq for seq in seqs], advice))


def unpin(engine: Engine, shard: Shard, seqs: Sequence[int], reason: str) -> None:
    """Hold messages to no plan any more."""
    if not len(engine.pins):
        return
    base = name_of(shard.partition.pid, 0)
    names = [base | seq for seq in seqs]
    _let_go(
        engine,
        [
            (name, advice)
            for name, advice in zip(names, engine.pins.of_many(names), strict=True)
            if advice is not None
        ],
        reason,
    )


def let_run_out(engine: Engine) -> None:
    """Let go of advice whose time has passed, and look at its messages again (lock is free)."""
    with engine.lock:
        if engine.closed is not None or not engine.pins.has_run_out(engine.now_ms()):
            return
    name = 0
    while True:
        with engine.lock:
            last = _let_some_run_out(engine, name)
        if last is None:
            return
        name = last + 1
        engine.let_others_in()


def _let_some_run_out(engine: Engine, first: Name) -> Name | None:
    """`let_run_out` for some from a name on; returns the last one looked at."""
    some = engine.pins.after(first, _AT_ONCE) if engine.closed is None else []
    now_ms = engine.now_ms()
    ended = [each for each in some if each[1].pin.until_ms <= now_ms]
    _let_go(engine, ended, "its time has passed")
    _look_again(engine, [name for name, _ in ended], now_ms)
    return some[-1][0] if some else None


def _let_go(engine: Engine, pinned: Sequence[tuple[Name, Advice]], reason: str) -> None:
    by_run: dict[str, list[Name]] = {}
    for name, advice in pinned:
        by_run.setdefault(advice.run, []).append(name)
    now_ms = engine.now_ms()
    for run, names in by_run.items():
        engine.append(engine.pins.pin(names, None))
        engine.keeping.decisions.note(now_ms, names, "unpinned", "", plan_reason(run, reason))


def _look_again(engine: Engine, names: Sequence[Name], now_ms: int) -> None:
    """Have messages reviewed: what a plan held them to may not be what their phase asks for."""
    for name in names:
        pid, seq = parts_of(name)
        shard = engine.catalog.shards.get(pid)
        if shard is not None and shard.faulty is None:
            engine.keeping.reviewer.of(shard).look_at(seq, now_ms)


def mark_rows(engine: Engine) -> None:
    """After a start: rows of pinned messages say so, and pins of messages that left go."""
    gone: list[Name] = []
    for name in engine.pins.names():
        pid, seq = parts_of(name)
        shard = engine.catalog.shards.get(pid)
        found = None if shard is None else shard.partition.index.locate(seq)
        if found is not None and found[0].buffer[found[1]] != FREE:
            page, at = found
            page.buffer[at + AT_FLAGS] |= HELD
            page.dirty = True
        elif shard is None or shard.faulty is None:
            gone.append(name)
    engine.pins.forget(gone)


def said_again(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[fact.Fact]:
    """What messages that are there are held to, also if it is nothing any more."""
    alive = [seq for seq in seqs if shard.partition.index.state_of(seq) != FREE]
    base = name_of(shard.partition.pid, 0)
    names = [base | seq for seq in alive]
    together: dict[Advice | None, list[Name]] = {}
    for name, advice in zip(names, engine.pins.of_many(names), strict=True):
        together.setdefault(advice, []).append(name)
    return [each for advice, some in together.items() for each in pins.pack(some, advice)]


def for_checkpoint(engine: Engine) -> Iterator[fact.Fact]:
    """All that messages are held to, some at a time (the lock is free)."""
    name = 0
    while True:
        with engine.lock:
            some = engine.pins.after(name, _AT_ONCE)
        if not some:
            return
        together: dict[Advice, list[Name]] = {}
        for each, advice in some:
            together.setdefault(advice, []).append(each)
        for advice, names in together.items():
            yield from pins.pack(names, advice)
        name = some[-1][0] + 1
