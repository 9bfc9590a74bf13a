"""Topics: one body for every subscription, and each subscription lives and ends by itself."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import InvalidMessage, QueueFull
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BODY = b"said once to everybody " * 50
SETTINGS = {"segment_bytes": 1 << 20}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path / "data", SETTINGS, clock) as broker:
        declare(broker)
        yield broker


def declare(broker: Broker, **topic: int) -> None:
    broker.declare_topic(TopicSpec("news", **topic))
    for name in ("a", "b", "c"):
        broker.declare(QueueSpec(name, cache_enabled=False))
        broker.subscribe("news", name)


def times_on_disk(directory: Path, body: bytes) -> int:
    files = (directory / "data" / "journal").iterdir()
    return sum(path.read_bytes().count(body) for path in files)


def take(broker: Broker, queue: str) -> list[bytes]:
    leases = broker.lease(queue, 1_000)
    broker.ack(queue, [lease.token for lease in leases])
    return [lease.body for lease in leases]


def tidy(broker: Broker) -> None:
    for _ in range(50):
        broker.engine.upkeep()


def bytes_of(number: int) -> bytes:
    return b"%06d" % number * 200


def test_a_body_is_stored_once_for_all_subscriptions(broker: Broker, tmp_path: Path) -> None:
    broker.publish_topic("news", Message(BODY))
    assert times_on_disk(tmp_path, BODY) == 1
    assert [take(broker, queue) for queue in ("a", "b", "c")] == [[BODY]] * 3


def test_who_subscribes_later_gets_what_is_published_later(broker: Broker) -> None:
    broker.publish_topic("news", Message(b"before"))
    broker.declare(QueueSpec("late"))
    broker.subscribe("news", "late")
    broker.publish_topic("news", Message(b"after"))
    assert take(broker, "late") == [b"after"]
    assert take(broker, "a") == [b"before", b"after"]


def test_a_subscription_outlives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    with Broker.open(tmp_path / "data", SETTINGS, clock) as broker:
        declare(broker)
        broker.publish_topic("news", Message(b"before"))
    with Broker.open(tmp_path / "data", SETTINGS, clock) as broker:
        broker.publish_topic("news", Message(b"after"))
        assert [take(broker, queue) for queue in ("a", "b", "c")] == [[b"before", b"after"]] * 3


def test_what_goes_stale_or_expires_for_one_subscription_stays_for_the_others(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(
        QueueSpec("a", decay_rate=1.0, decay_unit_ms=1_000, cache_enabled=False), change=True
    )
    broker.declare(QueueSpec("b", default_ttl_ms=1_000, cache_enabled=False), change=True)
    broker.publish_topic("news", Message(BODY))
    clock.advance(2_000)
    assert [each.reason for each in broker.removals("a")] == ["stale"]
    assert [each.reason for each in broker.removals("b")] == ["expired"]
    assert take(broker, "c") == [BODY]


def test_a_subscription_that_fails_moves_its_message_alone_to_its_dead_queue(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(
        QueueSpec("a", max_attempts=1, dead_queue="a.dead", cache_enabled=False), change=True
    )
    broker.publish_topic("news", Message(BODY))
    (lease,) = broker.lease("a")
    broker.retry("a", [lease.token])
    clock.advance(1_000)
    assert [take(broker, queue) for queue in ("a", "a.dead", "b")] == [[], [BODY], [BODY]]
    assert broker.purge("c") == 1


def test_what_is_published_ends_with_the_max_age_of_its_topic(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare_topic(TopicSpec("news", max_age_ms=10_000), change=True)
    broker.publish_topic("news", [Message(b"long"), Message(b"short", ttl_ms=1_000)])
    assert [seen.ttl_ms for seen in broker.peek("a")] == [10_000, 1_000]
    clock.advance(1_000)
    assert [seen.body for seen in broker.peek("a")] == [b"long"]
    clock.advance(9_000)
    assert broker.peek("a") == []


def test_one_full_queue_refuses_a_publish_for_all_of_them(broker: Broker) -> None:
    broker.declare(QueueSpec("b", max_messages=1, cache_enabled=False), change=True)
    broker.publish_topic("news", Message(b"fits"))
    with pytest.raises(QueueFull):
        broker.publish_topic("news", Message(b"does not"))
    assert [take(broker, queue) for queue in ("a", "b", "c")] == [[b"fits"]] * 3


def test_a_producers_id_is_refused_by_name(broker: Broker) -> None:
    with pytest.raises(InvalidMessage) as caught:
        broker.publish_topic("news", Message(b"m", id="mine"))
    assert "id" in caught.value.detail


@pytest.mark.parametrize("checkpoints", ["kept", "deleted"])
def test_space_is_given_back_once_the_last_subscription_let_go_and_not_before(
    tmp_path: Path, clock: ManualClock, checkpoints: str
) -> None:
    data = tmp_path / "data"
    bodies = [bytes_of(number) for number in range(4_000)]
    with Broker.open(data, SETTINGS, clock) as broker:
        declare(broker)
        for start in range(0, len(bodies), 500):
            messages = [Message(body) for body in bodies[start : start + 500]]
            broker.publish_topic("news", messages, "written")
        for queue in ("a", "b"):
            while take(broker, queue):
                pass
    for _ in range(2):
        if checkpoints == "deleted":
            shutil.rmtree(data / "checkpoints")
        with Broker.open(data, SETTINGS, clock) as broker:
            broker.engine.checkpoint()
            tidy(broker)
    with Broker.open(data, SETTINGS, clock) as broker:
        assert take(broker, "a") == take(broker, "b") == []
        kept: list[bytes] = []
        while taken := take(broker, "c"):
            kept += taken
        assert kept == bodies
        broker.engine.checkpoint()
        tidy(broker)
    size = sum(path.stat().st_size for path in (data / "journal").iterdir())
    assert size < len(bodies) * len(bodies[0]) // 2
