"""One message by a call of its own: what changes about its queue is seen at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ebbmq import (
    Broker,
    ClosedBroker,
    InvalidMessage,
    LeaseLost,
    Message,
    Overloaded,
    QueueFull,
    QueueSpec,
    UnknownQueue,
)
from ebbmq.journal.disk import MemoryDisk
from ebbmq.node import publishing
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
    broker.declare(QueueSpec("q", lease_timeout_ms=5_000), change=True)
    assert broker.lease("q")[0].deadline_ms == before.deadline_ms + 4_000


def test_a_fair_share_counts_from_when_it_is_declared(broker: Broker) -> None:
    broker.publish("q", Message(b"important", importance=9))
    broker.declare(QueueSpec("q", fair_share=1), change=True)
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


def _kinds() -> list[Message]:
    """Plain messages of all sorts."""
    return [
        Message(
            b"%d" % number,
            importance=(None, 1, 5, 10)[number % 4],
            ttl_ms=(None, 5_000, 60_000)[number % 3],
            decay_rate=(None, 0.0, 0.5, 1.0)[number // 4 % 4],
            durable=number % 5 > 0,
        )
        for number in range(200)
    ]


@pytest.mark.parametrize("band_width", [1.0, 3.0, 0.0])
@pytest.mark.parametrize("level", ["written", "memory"])
def test_messages_published_one_by_one_are_as_those_of_a_batch(
    tmp_path: Path, band_width: float, level: str
) -> None:
    told: list[list[object]] = []
    for way in ("one by one", "batch"):
        disk, clock = MemoryDisk(), ManualClock()
        with Broker.open(tmp_path / way, clock=clock, disk=disk) as broker:
            broker.declare(QueueSpec("q", band_width=band_width, default_ttl_ms=90_000))
            if way == "batch":
                broker.publish("q", _kinds(), confirm="written")
            else:
                for message in _kinds():
                    broker.publish("q", message, confirm=level)  # type: ignore[arg-type]  # a table
            clock.advance(3_000)
            stats = broker.stats("q")
            seen: list[object] = [stats[each] for each in ("depth", "by_importance", "bytes")]
            seen += broker.peek("q", 300)
        with Broker.open(tmp_path / way, clock=clock, disk=disk) as broker:
            seen += broker.peek("q", 300)
            clock.advance(3_000)
            seen += [broker.stats("q")["totals"][each] for each in ("stale", "expired")]
        told.append(seen)
    assert told[0] == told[1]


def test_one_message_published_at_written_survives_a_kill(tmp_path: Path) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    broker = Broker.open(tmp_path / "data", clock=clock, disk=disk)
    broker.declare(QueueSpec("q"))
    receipts = [broker.publish("q", Message(bytes([n])), confirm="written")[0] for n in range(5)]
    disk.kill()
    broker.engine.directory.close()
    with Broker.open(tmp_path / "data", clock=clock, disk=disk) as again:
        leases = again.lease("q", count=10)
        assert [lease.id for lease in leases] == [receipt.id for receipt in receipts]
        assert [lease.body for lease in leases] == [bytes([n]) for n in range(5)]


def test_a_limit_counts_from_when_it_is_declared(broker: Broker) -> None:
    broker.publish("q", Message(b"before"), confirm="written")
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, max_messages=11), change=True)
    with pytest.raises(QueueFull):
        broker.publish("q", Message(b"one too many"), confirm="written")
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, max_messages=12), change=True)
    assert broker.publish("q", Message(b"the last"), confirm="written")


def test_one_message_does_not_overtake_those_that_wait_for_their_level(tmp_path: Path) -> None:
    with Broker.open(tmp_path, clock=ManualClock(), threaded=False) as broker:
        broker.declare(QueueSpec("q"))
        publishing.publish(broker.engine, "q", [Message(b"held")], "synced")
        broker.publish("q", Message(b"after"), confirm="written")
        assert broker.lease("q") == []
        broker.engine.journal.commit()
        assert [lease.body for lease in broker.lease("q", count=2)] == [b"held", b"after"]


def test_one_message_wakes_who_waits_for_it(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker, ThreadPoolExecutor(1) as pool:
        broker.declare(QueueSpec("q"))
        waiting = pool.submit(broker.lease, "q", wait_ms=60_000)
        broker.publish("q", Message(b"here"), confirm="written")
        assert waiting.result()[0].body == b"here"


def test_what_is_not_a_message_is_refused(broker: Broker) -> None:
    for wrong in (b"body", ["body"], [None], 1):
        with pytest.raises(InvalidMessage):
            broker.publish("q", wrong, confirm="written")  # type: ignore[arg-type]  # the point
