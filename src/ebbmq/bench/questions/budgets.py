"""How many bytes for a lease, a retry, a producer's id?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import Message
from ebbmq.bench.load import (
    FILL_BATCH,
    QUEUE,
    SMALL_CACHE_BYTES,
    fifo_messages,
    fifo_spec,
    fill,
    open_with,
)
from ebbmq.bench.row import Row, at_most
from ebbmq.bench.run import rss_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq import Broker
    from ebbmq.bench.run import Run

BODY_BYTES: Final = 8
LEASED_BYTES: Final = 64
DISPLACED_BYTES: Final = 32
DEDUP_BYTES: Final = 40


def measure(run: Run) -> list[Row]:
    """RSS growth per message leased, retried, or published with an id."""
    # Dedup ids are bounded at a million per queue, so a million shows them all.
    count = run.scale(1_000_000, 100_000)
    settings = {"messages": count}
    return [
        at_most("leased, per message", _leased(run, count), "B", LEASED_BYTES, **settings),
        at_most(
            "displaced by a retry, per message",
            _displaced(run, count),
            "B",
            DISPLACED_BYTES,
            **settings,
        ),
        at_most("producer's id, per message", _dedup(run, count), "B", DEDUP_BYTES, **settings),
    ]


def _growth(count: int, work: Callable[[], None]) -> float:
    before = rss_bytes()
    work()
    return (rss_bytes() - before) / count


def _filled(run: Run, name: str, count: int) -> Broker:
    broker = open_with(run.fresh(name), fifo_spec(SMALL_CACHE_BYTES))
    fill(run, broker, fifo_messages(FILL_BATCH, BODY_BYTES), count)
    return broker


def _leased(run: Run, count: int) -> float:
    # A tenth more than is leased first, so that what is allocated once is not counted.
    with _filled(run, "leased", count + count // 10) as broker:

        def lease(number: int) -> None:
            for size in run.steps("leasing", number, FILL_BATCH):
                assert len(broker.lease(QUEUE, count=size)) == size

        lease(count // 10)
        return _growth(count, lambda: lease(count))


def _displaced(run: Run, count: int) -> float:
    with _filled(run, "displaced", count + count // 10) as broker:

        def retry(number: int) -> None:
            for size in run.steps("retrying", number, FILL_BATCH):
                leases = broker.lease(QUEUE, count=size)
                broker.retry(QUEUE, [lease.token for lease in leases], delay_ms=0)

        retry(count // 10)
        return _growth(count, lambda: retry(count))


def _dedup(run: Run, count: int) -> float:
    """Growth with ids less the growth without, both per message."""
    with _filled(run, "dedup", count // 10) as broker:
        plain = fifo_messages(FILL_BATCH, BODY_BYTES)

        def without_ids() -> None:
            fill(run, broker, plain, count)

        def with_ids() -> None:
            done = 0
            for size in run.steps("publishing with ids", count, FILL_BATCH):
                batch = [Message(b"........", id=f"id-{done + n}") for n in range(size)]
                broker.publish(QUEUE, batch, confirm="memory")
                done += size

        rows_only = _growth(count, without_ids)
        return _growth(count, with_ids) - rows_only
