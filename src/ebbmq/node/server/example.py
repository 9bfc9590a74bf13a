"""A small example for a first look: some queues and a few messages, put in a new store once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.limits import DAY_MS
from ebbmq.model import Message, QueueSpec

if TYPE_CHECKING:
    from ebbmq.node.async_broker import AsyncBroker

#: Where a newcomer is shown to publish.
FIRST_QUEUE: Final = "example.alerts"
ORDERS: Final = "example.orders"
#: What plans of the pipeline are about, with the devices of `deploy/example.toml`.
PHOTOS: Final = "example.photos"
_FADES_AFTER_MS: Final = 600_000
_FADED: Final = 100.0
_PHOTO_BYTES: Final = 2_048

QUEUES: Final = (
    QueueSpec.deadline(FIRST_QUEUE, ttl_ms=DAY_MS),
    QueueSpec(f"{ORDERS}.dead"),
    QueueSpec(ORDERS, max_attempts=5, dead_queue=f"{ORDERS}.dead"),
    QueueSpec(
        PHOTOS,
        tiers=("ssd", "hdd"),
        score_per_day=_FADED * DAY_MS / _FADES_AFTER_MS,
        score_medium=_FADED,
        score_high=_FADED,
        evaluate_every_ms=5_000,
    ),
)
ALERTS: Final = (
    (9, "disk of db-1 is 95 % full"),
    (7, "checkout answers in 2.4 s"),
    (4, "certificate of mail-2 ends in 20 days"),
    (2, "nightly report took 12 minutes"),
    (2, "cache of web-3 was restarted"),
)
PHOTO_COUNT: Final = 40


async def load(broker: AsyncBroker) -> None:
    """Declare the example queues and publish their messages; every alert fades within a day."""
    for spec in QUEUES:
        await broker.declare(spec)
    await broker.publish(
        FIRST_QUEUE,
        [Message(text.encode(), importance=importance, type="TEXT") for importance, text in ALERTS],
    )
    await broker.publish(
        PHOTOS,
        [
            Message(
                f"photo {number} ".encode().ljust(_PHOTO_BYTES, b"."), importance=1 + number % 10
            )
            for number in range(PHOTO_COUNT)
        ],
    )
    await broker.publish(
        ORDERS, [Message(f"order {number}".encode(), type="TEXT") for number in range(17, 20)]
    )
