"""Redrive: ready messages of a dead queue go back to work, at a rate if asked."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import InvalidMessage, UnknownQueue
from ebbmq.node import moving, peeking
from ebbmq.node.log import log
from ebbmq.plain import is_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.model import Peeked
    from ebbmq.node.catalog import Queue
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

    Raises:
        UnknownQueue: there is no such queue, or no message says where it came from.
    """
    stop = stop or threading.Event()
    if rate is not None and not (is_number(rate, 0, sys.float_info.max) and rate):
        raise InvalidMessage(f"rate is {rate!r}", "use messages per second above 0, or None")
    peeking.check_choice(where)
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(dead_queue)
        if to is not None and engine.catalog.queue(to) is queue:
            raise InvalidMessage(
                f"queue {dead_queue!r} cannot be redriven to itself",
                "name another queue, or none: messages then go back to where they came from",
            )
        now_ms = engine.now_ms()
        waiting = [
            (shard, seq)
            for shard in queue.shards
            if shard.faulty is None
            for seq in peeking.first_ready(shard, shard.partition.depth[3], now_ms)
        ]
    moved = position = 0
    lost: list[str] = []
    for shard, seq in waiting:
        if stop.is_set():
            break
        seen = peeking.look(engine, shard, seq, moving=True)
        if seen is None or (where is not None and not where(seen)):
            continue
        with engine.lock:
            engine.check_open()
            target = engine.catalog.queue(to) if to else _origin(engine, queue, seen)
            if target is None:
                lost.append(seen.id)
                continue
            moved += moving.redrive_one(engine, shard, target, seq)
            engine.write_now()
            position = engine.journal.position
        if rate is not None:
            _pause(engine, round(min(1_000 / rate, limits.DURATION_MS_MAX)), stop)
    if moved:
        engine.journal.wait("synced", position)
    if lost:
        _tell_lost(dead_queue, lost, moved)
    return moved


def _origin(engine: Engine, dead: Queue, seen: Peeked) -> Queue | None:
    """The queue a message says it came from, if there is one: anybody can write that."""
    found = engine.catalog.queues.get(seen.headers.get(moving.SOURCE, ""))
    return None if found is dead else found


def _tell_lost(dead_queue: str, lost: list[str], moved: int) -> None:
    """Name those that know no way back; an error only where nothing else was done."""
    detail = (
        f"{len(lost)} messages of queue {dead_queue!r} do not say which queue they came from, "
        f"or it is gone; the first is {lost[0]}"
    )
    if not moved:
        raise UnknownQueue(detail, "say which queue they go to: to=.., or --to")
    log.warning("redrive_left", queue=dead_queue, detail=detail)


def _pause(engine: Engine, ms: int, stop: threading.Event) -> None:
    """Let time pass, but not past the end of the broker or of the call."""
    while ms > 0 and engine.closed is None and not stop.is_set():
        engine.clock.advance(min(ms, _STEP_MS))
        ms -= _STEP_MS
