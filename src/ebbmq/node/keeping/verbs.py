"""What operators ask of holding storage: apply the rules to what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import InvalidSpec
from ebbmq.node.advising import pinning
from ebbmq.node.keeping.likeness import Looking

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

_AT_ONCE: Final = 512


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
        # What is published from here on is placed by the rules as they are.
        pages = [(shard, page) for shard in shards for page in sorted(shard.partition.index.pages)]
    moved = done = 0
    for shard, number in pages:
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
