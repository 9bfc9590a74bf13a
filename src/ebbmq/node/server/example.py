"""A small example for a first look: some queues and a few messages, put in a new store once.

Its photos fade within minutes, and then nothing happens any more: a later start brings new ones.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ebbmq.errors import EbbError
from ebbmq.limits import DAY_MS
from ebbmq.model import AdaptSpec, Message, QueueSpec
from ebbmq.node.log import log

if TYPE_CHECKING:
    from ebbmq.model import Peeked
    from ebbmq.node.async_broker import AsyncBroker

#: Where a newcomer is shown to publish.
FIRST_QUEUE: Final = "example.alerts"
ORDERS: Final = "example.orders"
#: What moves between the devices of `deploy/example.toml`.
PHOTOS: Final = "example.photos"
_FADES_AFTER_MS: Final = 600_000
#: The first run comes a minute or two after the start, and finds a photo of that age still fresh.
_SHOWN_UNTIL_MS: Final = _FADES_AFTER_MS // 2
_FADED: Final = 100.0
_PHOTO_BYTES: Final = 2_048

QUEUES: Final = (
    QueueSpec.deadline(
        FIRST_QUEUE, ttl_ms=DAY_MS, adapt=AdaptSpec(raise_above_ms=100.0, lower_below_ms=50.0)
    ),
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
#: Alerts that take longer than their queue wants: a run on Spark recommends that they fade sooner.
_SLOW_COUNT: Final = 3
_SLOW_S: Final = 0.2


async def load(broker: AsyncBroker) -> None:
    """Declare the example queues and publish their messages; every alert fades within a day."""
    for spec in QUEUES:
        await broker.declare(spec)
    await broker.publish(FIRST_QUEUE, [Message(b"a slow look at a log")] * _SLOW_COUNT)
    leases = await broker.lease(FIRST_QUEUE, _SLOW_COUNT)
    await asyncio.sleep(_SLOW_S)
    await broker.ack(FIRST_QUEUE, [lease.token for lease in leases])
    await broker.publish(
        FIRST_QUEUE,
        [Message(text.encode(), importance=importance, type="TEXT") for importance, text in ALERTS],
    )
    await _publish_photos(broker)
    await broker.publish(
        ORDERS, [Message(f"order {number}".encode(), type="TEXT") for number in range(17, 20)]
    )


async def renew(broker: AsyncBroker) -> None:
    """Publish the photos anew if none is left that will move; who has none gets none.

    An example is no reason not to serve: what goes wrong is told, and nothing else.
    """
    if PHOTOS not in {spec.name for spec in await broker.queues()}:
        return
    since_ms: int = (await broker.stats(PHOTOS))["now_ms"] - _SHOWN_UNTIL_MS

    def is_fresh(photo: Peeked) -> bool:
        return photo.enqueued_at_ms > since_ms

    try:
        if not await broker.peek(PHOTOS, 1, where=is_fresh):
            await _publish_photos(broker)
    except EbbError as error:
        log.warning("example_not_renewed", detail=error.detail)


async def _publish_photos(broker: AsyncBroker) -> None:
    await broker.publish(
        PHOTOS,
        [
            Message(
                f"photo {number} ".encode().ljust(_PHOTO_BYTES, b"."), importance=1 + number % 10
            )
            for number in range(PHOTO_COUNT)
        ],
    )
