"""What the two questions about 10 M messages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.load import BATCH, FILL_BATCH, QUEUE, fill, lease_times, open_with
from bench.row import Row, at_most, stated
from bench.run import median_us, rss_bytes

if TYPE_CHECKING:
    from bench.run import Run
    from ebbmq import Broker, Message, QueueSpec

BODY_BYTES: Final = 8
SHALLOW: Final = 10_000
ROW_AND_ORDER_BYTES: Final = 72
SLOWDOWN: Final = 1.5
TICK_US: Final = 100
ROUNDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Order:
    """A way of ordering, and a batch of messages that exercises it."""

    name: str
    spec: QueueSpec
    messages: list[Message]


def total(run: Run) -> int:
    """How many messages are deep."""
    return run.scale(10_000_000, 300_000)


def ready(broker: Broker) -> int:
    """How many messages could be leased."""
    return int(broker.stats(QUEUE)["depth"]["ready"])


def shallow_us(run: Run, order: Order) -> tuple[float, float]:
    """Lease + ack at 10 k ready: one at a time, and per message in batches of 100."""
    with open_with(run.fresh("shallow"), order.spec) as broker:
        fill(run, broker, order.messages, SHALLOW)
        return _lease_us(broker, order)


def _lease_us(broker: Broker, order: Order) -> tuple[float, float]:
    return (
        lease_times(broker, order.messages, 1, ROUNDS).median,
        lease_times(broker, order.messages, BATCH, ROUNDS // 20).median,
    )


def warm_up(broker: Broker, order: Order) -> None:
    """Let everything that is allocated once be allocated before memory is read."""
    for _ in range(10):
        broker.publish(QUEUE, order.messages, confirm="written")
        leases = broker.lease(QUEUE, count=FILL_BATCH)
        broker.ack(QUEUE, [lease.token for lease in leases], confirm="written")


def fill_and_measure(
    run: Run, broker: Broker, order: Order, shallow: tuple[float, float]
) -> list[Row]:
    """Fill to the full depth and measure bytes, lease + ack and an idle tick there."""
    before = rss_bytes()
    fill(run, broker, order.messages, total(run))
    growth = rss_bytes() - before
    count = ready(broker)
    settings = {"backlog": count, "body": BODY_BYTES}
    single, batched = _lease_us(broker, order)
    tick_us = median_us(broker.engine.run_due, ROUNDS)
    return [
        at_most(
            f"row + order, {order.name}, per message",
            growth / count,
            "B",
            ROW_AND_ORDER_BYTES,
            **settings,
            rss_growth=growth,
        ),
        stated(f"lease + ack one at full depth, {order.name}", single, "us", **settings),
        stated(f"lease + ack of 100 at full depth, {order.name}", batched, "us", **settings),
        at_most(
            f"lease + ack one, deep against 10 k, {order.name}",
            single / shallow[0],
            "x",
            SLOWDOWN,
            **settings,
        ),
        at_most(
            f"lease + ack of 100, deep against 10 k, {order.name}",
            batched / shallow[1],
            "x",
            SLOWDOWN,
            **settings,
        ),
        at_most(f"tick with nothing due, {order.name}", tick_us, "us", TICK_US, **settings),
    ]
