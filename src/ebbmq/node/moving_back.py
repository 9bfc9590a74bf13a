"""Redrive: ready messages of a dead queue go back to work, at a rate if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.errors import InvalidMessage, UnknownQueue
from ebbmq.node import leasing, moving

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.model import Peeked
    from ebbmq.node.engine import Engine


def redrive(
    engine: Engine,
    dead_queue: str,
    *,
    to: str | None,
    rate: float | None,
    where: Callable[[Peeked], bool] | None,
) -> int:
    """Move messages back one by one; returns how many. What cannot go back stays where it is."""
    if rate is not None and not rate > 0:
        raise InvalidMessage(f"rate is {rate!r}", "use messages per second above 0, or None")
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(dead_queue)
        if to is not None:
            engine.catalog.queue(to)
        now_ms = engine.now_ms()
        waiting = [
            (shard, seq)
            for shard in queue.shards
            if shard.faulty is None
            for seq in shard.partition.order.peek(shard.partition.depth[3], now_ms)
        ]
    moved = position = 0
    for shard, seq in waiting:
        seen = leasing.look(engine, shard, seq)
        if seen is None or (where is not None and not where(seen)):
            continue
        name = to or seen.headers.get(moving.SOURCE)
        if name is None:
            raise UnknownQueue(
                f"message {seen.id} does not say which queue it came from", "give to=.."
            )
        with engine.lock:
            engine.check_open()
            target = engine.catalog.queue(name)
            moved += moving.redrive_one(engine, shard, target, seq)
            engine.write_now()
            position = engine.journal.position
        if rate is not None:
            engine.clock.advance(round(1_000 / rate))
    if moved:
        engine.journal.wait("synced", position)
    return moved
