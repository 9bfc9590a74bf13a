"""One message leased or acked by a call of its own: what changes about a queue is seen at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import (
    Broker,
    ClosedBroker,
    InvalidMessage,
    LeaseLost,
    Message,
    Overloaded,
    QueueSpec,
    UnknownQueue,
)
from ebbmq.journal.disk import MemoryDisk
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A queue of which one message was leased by a call of its own already."""
    with Broker.open(tmp_path / "data", clock=ManualClock(), disk=MemoryDisk()) as opened:
        opened.declare(QueueSpec("q", lease_timeout_ms=1_000))
        opened.publish("q", [Message(bytes([number])) for number in range(10)])
        assert opened.lease("q")[0].body == b"\0"
        yield opened


def test_a_queue_that_is_paused_gives_no_message(broker: Broker) -> None:
    broker.pause("q")
    assert broker.lease("q") == []
    broker.resume("q")
    assert broker.lease("q")[0].body == b"\1"


def test_a_queue_that_was_deleted_is_not_known(broker: Broker) -> None:
    lease = broker.lease("q")[0]
    broker.delete("q")
    with pytest.raises(UnknownQueue):
        broker.lease("q")
    with pytest.raises(UnknownQueue):
        broker.ack("q", [lease.token])
    broker.declare(QueueSpec("q"))
    assert broker.lease("q") == []
    with pytest.raises(LeaseLost):
        broker.ack("q", [lease.token])


def test_a_lease_lasts_as_long_as_the_queue_says_by_then(broker: Broker) -> None:
    before = broker.lease("q")[0]
    broker.declare(QueueSpec("q", lease_timeout_ms=5_000))
    assert broker.lease("q")[0].deadline_ms == before.deadline_ms + 4_000


def test_a_fair_share_counts_from_when_it_is_declared(broker: Broker) -> None:
    broker.publish("q", Message(b"important", importance=9))
    broker.declare(QueueSpec("q", fair_share=1))
    assert broker.lease("q")[0].body == b"\1"


def test_a_broker_that_is_closed_gives_and_takes_nothing(broker: Broker) -> None:
    lease = broker.lease("q")[0]
    broker.close()
    with pytest.raises(ClosedBroker):
        broker.lease("q")
    with pytest.raises(ClosedBroker):
        broker.ack("q", [lease.token])


@pytest.mark.parametrize(
    "arguments", [{"count": True}, {"wait_ms": None}, {"lease_timeout_ms": 0}, {"count": 0}]
)
def test_what_makes_no_sense_is_refused(broker: Broker, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidMessage):
        broker.lease("q", **arguments)


def test_a_message_that_comes_before_the_others_is_given_next(broker: Broker) -> None:
    broker.publish("q", Message(b"important", importance=9))
    assert broker.lease("q")[0].body == b"important"
    first = broker.lease("q")[0]
    broker.release("q", [first.token])
    assert broker.lease("q")[0].id == first.id


def test_a_message_that_ended_meanwhile_is_not_given(broker: Broker) -> None:
    broker.publish(
        "q", [Message(b"short", importance=9, ttl_ms=10), Message(b"long", importance=9)]
    )
    broker.lease("q")
    broker.publish("q", [Message(bytes([n]), importance=9, ttl_ms=10) for n in range(3)])
    broker.engine.clock.advance(20)
    assert broker.lease("q")[0].body == b"long"
    assert broker.stats("q")["totals"]["expired"] == 3


def test_leases_and_acks_of_one_survive_a_kill(tmp_path: Path) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    broker = Broker.open(tmp_path / "data", clock=clock, disk=disk)
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(bytes([number])) for number in range(5)])
    acked, held = broker.lease("q")[0], broker.lease("q")[0]
    broker.ack("q", [acked.token])
    disk.kill()
    broker.engine.directory.close()
    with Broker.open(tmp_path / "data", clock=clock, disk=disk) as again:
        assert again.lease("q")[0].body == b"\2"
        again.ack("q", [held.token])
        with pytest.raises(LeaseLost):
            again.ack("q", [acked.token])


def publish_for_ever(broker: Broker) -> None:
    while True:
        broker.publish("q", Message(bytes(1 << 20)))


def test_one_message_can_be_leased_and_acked_on_a_full_disk(tmp_path: Path) -> None:
    disk = MemoryDisk()
    with Broker.open(tmp_path / "data", clock=ManualClock(), disk=disk) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"x") for _ in range(100)])
        lease = broker.lease("q")[0]
        disk.capacity = disk.capacity - disk.free_bytes()
        with pytest.raises(Overloaded):
            publish_for_ever(broker)
        assert broker.lease("q")[0].body == b"x"
        broker.ack("q", [lease.token])
