"""Queues with a bound: what goes when more is published than they may hold, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import QueueFull
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq.model import Level

BYTES = b"0123456789"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path / "data", clock=clock) as broker:
        yield broker


def waiting(broker: Broker, queue: str) -> list[int]:
    return [seen.importance for seen in broker.peek(queue, 100)]


def removed(broker: Broker, queue: str) -> list[tuple[str, int]]:
    return [(each.reason, each.importance) for each in broker.removals(queue)]


@pytest.mark.parametrize("confirm", ["memory", "written", "synced"])
@pytest.mark.parametrize("bound", [{"max_messages": 3}, {"max_bytes": 30}])
def test_the_least_important_goes_also_when_it_is_what_was_just_published(
    broker: Broker, confirm: Level, bound: dict[str, Any]
) -> None:
    broker.declare(QueueSpec("q", overflow="drop_lowest", **bound))
    for importance in (9, 8, 7):
        broker.publish("q", Message(BYTES, importance=importance), confirm)
    broker.publish("q", [Message(BYTES, importance=1)] * 2, confirm)
    assert waiting(broker, "q") == [9, 8, 7]
    broker.publish("q", [Message(BYTES, importance=10)], confirm)
    assert waiting(broker, "q") == [10, 9, 8]
    assert removed(broker, "q") == [("overflow", 1), ("overflow", 1), ("overflow", 7)]
    assert broker.stats("q")["totals"]["overflowed"] == 3


def test_of_equal_importance_the_oldest_goes(broker: Broker) -> None:
    broker.declare(QueueSpec("q", overflow="drop_lowest", max_messages=2))
    broker.publish("q", [Message(b"%d" % number) for number in range(5)])
    assert [seen.body for seen in broker.peek("q")] == [b"3", b"4"]


def test_what_faded_goes_before_what_is_worth_more_by_now(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", overflow="drop_lowest", max_messages=1, decay_rate=1.0))
    broker.publish("q", Message(b"old", importance=9))
    clock.advance(3_000_000)
    broker.publish("q", Message(b"fresh", importance=5))
    assert [seen.body for seen in broker.peek("q")] == [b"fresh"]


@pytest.mark.parametrize("overflow", ["drop_lowest", "dead_letter"])
def test_what_is_leased_stays_whatever_is_published(broker: Broker, overflow: Any) -> None:
    broker.declare(QueueSpec("q", overflow=overflow, max_messages=1))
    broker.publish("q", Message(b"at work", importance=1))
    (lease,) = broker.lease("q")
    broker.publish("q", Message(b"more", importance=9))
    broker.ack("q", [lease.token])
    assert removed(broker, "q") == [("overflow", 9)]


@pytest.mark.parametrize("confirm", ["memory", "written", "synced"])
def test_what_overflows_goes_to_the_dead_queue_where_that_is_asked_for(
    broker: Broker, clock: ManualClock, confirm: Level
) -> None:
    broker.declare(QueueSpec("q", overflow="dead_letter", max_messages=2, dead_queue="q.dead"))
    broker.publish("q", [Message(b"%d" % number, importance=9) for number in range(2)], confirm)
    broker.publish("q", [Message(b"least", importance=2)], confirm)
    clock.advance(1_000)
    assert waiting(broker, "q") == [9, 9]
    (dead,) = broker.peek("q.dead")
    assert dead.body == b"least"
    assert dead.headers["x-ebbmq-reason"] == "overflow"
    assert dead.headers["x-ebbmq-source"] == "q"
    assert broker.redrive("q.dead", to="q") == 1


@pytest.mark.parametrize("bound", [{"max_messages": 3}, {"max_bytes": 30}])
def test_a_queue_whose_dead_queue_is_full_refuses_when_as_much_waits_for_it_as_it_may_hold(
    tmp_path: Path, clock: ManualClock, bound: dict[str, Any]
) -> None:
    with Broker.open(tmp_path / "data", clock=clock) as broker:
        broker.declare(QueueSpec("dead", max_messages=1))
        broker.declare(QueueSpec("q", overflow="dead_letter", dead_queue="dead", **bound))
        for _ in range(3 + 1 + 3):
            broker.publish("q", Message(BYTES))
        assert broker.stats("q")["depth"] | {"ready": 3, "dying": 3} == broker.stats("q")["depth"]
        with pytest.raises(QueueFull) as caught:
            broker.publish("q", Message(BYTES))
        assert "'dead'" in caught.value.detail
        assert "dead queue" in caught.value.action
    with Broker.open(tmp_path / "data", clock=clock) as broker:
        with pytest.raises(QueueFull):
            broker.publish("q", Message(BYTES))
        (lease,) = broker.lease("dead")
        broker.ack("dead", [lease.token])
        clock.advance(10_000)
        broker.publish("q", Message(BYTES))
        assert broker.stats("q")["depth"] | {"ready": 3, "dying": 3} == broker.stats("q")["depth"]


@pytest.mark.parametrize("bound", [{"max_messages": 3}, {"max_bytes": 30}])
def test_what_expired_counts_too_while_the_dead_queue_does_not_take_it(
    broker: Broker, clock: ManualClock, bound: dict[str, Any]
) -> None:
    broker.declare(QueueSpec("dead", max_messages=1))
    broker.declare(QueueSpec("q", overflow="drop_lowest", dead_queue="dead", **bound))
    for _ in range(2):
        broker.publish("q", [Message(BYTES, ttl_ms=1_000)] * 2)
        clock.advance(2_000)
    with pytest.raises(QueueFull):
        broker.publish("q", Message(BYTES))
    assert broker.stats("q")["depth"]["dying"] == 3


@pytest.mark.parametrize("overflow", ["reject", "drop_lowest", "dead_letter"])
def test_a_message_larger_than_its_queue_is_refused_and_drives_nothing_out(
    broker: Broker, overflow: Any
) -> None:
    broker.declare(QueueSpec("q", overflow=overflow, max_bytes=30))
    broker.declare_topic(TopicSpec("t"))
    broker.subscribe("t", "q")
    broker.publish("q", [Message(BYTES)] * 3)
    for publish in (broker.publish, broker.publish_topic):
        with pytest.raises(QueueFull) as caught:
            publish("q" if publish == broker.publish else "t", [Message(bytes(31), importance=10)])
        assert "31" in caught.value.detail
        assert "max_bytes" in caught.value.action
    assert len(broker.peek("q")) == 3


@pytest.mark.parametrize("overflow", ["reject", "drop_lowest", "dead_letter"])
def test_partitions_share_the_bound_of_their_queue(broker: Broker, overflow: Any) -> None:
    broker.declare(QueueSpec("q", partitions=4, max_messages=8, overflow=overflow))
    for number in range(40):
        try:
            broker.publish("q", Message(b"m", key=f"key {number}"))
        except QueueFull:
            assert overflow == "reject"
    assert broker.stats("q")["depth"]["ready"] == 8
