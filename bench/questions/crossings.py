"""What does it take to know when 10 M messages fade?

Their queue has two thresholds of the decay score, so each message is to be looked at twice in its
life. A device is configured, or nobody would look.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from bench import deep
from bench.clock import JumpingClock
from bench.holding import file_device, open_holding
from bench.load import FILL_BATCH, QUEUE, SMALL_CACHE_BYTES, fifo_messages
from bench.row import Row, at_most, stated
from bench.run import median_us, rss_bytes
from ebbmq import Broker, QueueSpec
from ebbmq.core.reviews import Reviews, ages_of
from ebbmq.core.row import LOW48

if TYPE_CHECKING:
    from bench.run import Run
    from ebbmq.core.index import Index

SHALLOW: Final = 10_000
#: Between two batches, so that one of them is due at a time.
STEP_MS: Final = 1_000
ROUNDS: Final = 200
TICK_US: Final = 100
SLOWDOWN: Final = 1.5
SPEC: Final = QueueSpec(
    QUEUE,
    cache_bytes=SMALL_CACHE_BYTES,
    score_per_day=1.0,
    score_medium=1_000.0,
    score_high=2_000.0,
    tiers=("log", "log", "file"),
)


def measure(run: Run) -> list[Row]:
    """Bytes per message, a tick with nothing due, and the time to find 1,000 that are due."""
    shallow_us, _ = _at_depth(run, "shallow", SHALLOW)
    deep_us, rows = _at_depth(run, "deep", deep.total(run))
    settings = {"messages": deep.total(run), "thresholds": 2, "due": FILL_BATCH}
    return [
        *rows,
        stated(f"finding {FILL_BATCH:,} that are due, at full depth", deep_us, "us", **settings),
        at_most(
            f"finding {FILL_BATCH:,} that are due, deep against 10 k",
            deep_us / shallow_us,
            "x",
            SLOWDOWN,
            **settings,
        ),
    ]


def _at_depth(run: Run, name: str, count: int) -> tuple[float, list[Row]]:
    clock, config = JumpingClock(), {"devices": {"second": file_device()}}
    with open_holding(run.fresh(name), config, clock) as broker:
        broker.declare(SPEC)
        deep.warm_up(broker, deep.Order(name, SPEC, fifo_messages(FILL_BATCH, deep.BODY_BYTES)))
        before = rss_bytes()
        _fill(run, broker, clock, count)
        growth = rss_bytes() - before
        reviewer = broker.engine.keeping.reviewer
        tick_us = median_us(reviewer.run, ROUNDS)
        with broker.engine.lock:
            shard = broker.engine.catalog.queues[QUEUE].shards[0]
            ages = ages_of(broker.engine.keeping.placing.terms(SPEC))
            due_us = _due_us(shard.partition.index, ages[0], count)
    settings = {"messages": count, "thresholds": len(ages)}
    return due_us, [
        at_most(
            "row + order of messages that fade, per message",
            growth / count,
            "B",
            deep.ROW_AND_ORDER_BYTES,
            **settings,
            rss_growth=growth,
        ),
        at_most("looking for what is due, nothing is", tick_us, "us", TICK_US, **settings),
    ]


def _fill(run: Run, broker: Broker, clock: JumpingClock, count: int) -> None:
    messages = fifo_messages(FILL_BATCH, deep.BODY_BYTES)
    for size in run.steps(f"filling {count:,}", count, FILL_BATCH):
        broker.publish(QUEUE, messages[:size], confirm="memory")
        clock.jump(STEP_MS)


def _due_us(index: Index, age_ms: int, count: int) -> float:
    """The median time to find one batch that has just passed the age, from the front on."""
    reviews = Reviews(index)
    reviews.adopt([age_ms])
    times: list[float] = []
    for first in range(index.next_seq - count, index.next_seq, FILL_BATCH)[:ROUNDS]:
        row = index.read(first)
        assert row is not None
        started = time.perf_counter_ns()
        found = reviews.due((row[5] & LOW48) + age_ms + STEP_MS // 2, 2 * FILL_BATCH)
        times.append((time.perf_counter_ns() - started) / 1_000)
        assert len(found) == FILL_BATCH
    return statistics.median(times)
