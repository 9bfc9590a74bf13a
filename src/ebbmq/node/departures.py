"""The text log of messages that left other than by ack: how many and why, not one by one.

Each of them has a record in the removals log; here a queue has a line when some left, and at most
one every few seconds. Those that were to be done have a second one, a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.model import LOSSES, REASON_TEXT, gone
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine

_EVERY_MS: Final = 10_000
_DEAD: Final = tuple(f"dead_lettered_{reason}" for reason in LOSSES)
_COUNTED: Final = (*REASON_TEXT.values(), "dead_lettered", *_DEAD)


class Departures:
    """What the text log was told of each partition."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: dict[int, dict[str, int]] = {}
        self._next_ms = 0

    def tell_if_due(self) -> None:
        """Log what left since the last time, unless that was a moment ago."""
        now_ms = self._engine.now_ms()
        if now_ms >= self._next_ms and self.tell():
            self._next_ms = now_ms + _EVERY_MS

    def tell(self) -> bool:
        """Log what left since the last time; False if nothing did."""
        with self._engine.lock:
            queues = list(self._engine.catalog.queues.values())
            left = [(queue.spec.name, self._left(queue.shards)) for queue in queues]
        for name, counts in left:
            _log(name, counts)
        return any(counts for _, counts in left)

    def tell_of(self, queue: Queue) -> None:
        """Log what left a queue that goes (the lock is held)."""
        _log(queue.spec.name, self._left(queue.shards))
        for shard in queue.shards:
            self._told.pop(shard.partition.pid, None)

    def _left(self, shards: Iterable[Shard]) -> dict[str, int]:
        """How many left by reason since this was last asked."""
        counts = dict.fromkeys(_COUNTED, 0)
        for shard in shards:
            totals = shard.partition.totals
            told = self._told.get(shard.partition.pid, shard.totals_before)
            for reason in _COUNTED:
                # A partition that was read again may have counted less by then.
                counts[reason] += max(0, totals.get(reason, 0) - told.get(reason, 0))
            self._told[shard.partition.pid] = dict(totals)
        return {reason: count for reason, count in counts.items() if count}


def _log(queue: str, counts: dict[str, int]) -> None:
    if counts:
        told = {reason: count for reason, count in counts.items() if reason not in _DEAD}
        log.info("messages_left", queue=queue, **told)
    lost = {reason: count for reason in LOSSES if (count := gone(counts, reason))}
    if lost:
        log.warning("messages_lost", queue=queue, **lost)
