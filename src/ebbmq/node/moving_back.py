"""Redrive: ready messages of a dead queue go back to work, at a rate if asked."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import InvalidMessage, UnknownQueue
from ebbmq.node import moving, peeking
from ebbmq.plain import is_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.model import Peeked
    from ebbmq.node.engine import Engine

#: How long a slow redrive may take to notice that it is over.
_STEP_MS: Final = 100


def redrive(
    engine: Engine,
    dead_queue: str,
    *,
    to: str | None,
    rate: float | None,
    where: Callable[[Peeked], bool] | None,
    stop: threading.Event | None = None,
) -> int:
    """Move messages back one by one; returns how many. What cannot go back stays where it is.

    Once `stop` is set, no more are moved.
    """
    stop = stop or threading.Event()
    if rate is not None and not (is_number(rate, 0, sys.float_info.max) and rate):
        raise InvalidMessage(f"rate is {rate!r}", "use messages per second above 0, or None")
    peeking.check_choice(where)
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
        if stop.is_set():
            break
        seen = peeking.look(engine, shard, seq, moving=True)
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
            _pause(engine, round(min(1_000 / rate, limits.DURATION_MS_MAX)), stop)
    if moved:
        engine.journal.wait("synced", position)
    return moved


def _pause(engine: Engine, ms: int, stop: threading.Event) -> None:
    """Let time pass, but not past the end of the broker or of the call."""
    while ms > 0 and engine.closed is None and not stop.is_set():
        engine.clock.advance(min(ms, _STEP_MS))
        ms -= _STEP_MS
