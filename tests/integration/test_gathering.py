"""Publishes of several threads share a flush, and each gets what is its own."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, ClosedBroker, Message, QueueFull, QueueSpec, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ebbmq.model import Lease


def together(work: Callable[[int], None], count: int) -> list[Exception]:
    """Run `work(number)` in threads that start at once; what they raised."""
    errors: list[Exception] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except Exception as error:  # the test looks at what it was
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def test_every_thread_gets_the_receipts_of_its_own_messages(tmp_path: Path) -> None:
    receipts: dict[bytes, str] = {}
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("a"))
        broker.declare(QueueSpec("b"))

        def publish(number: int) -> None:
            for step in range(20):
                bodies = [f"{number}-{step}-{part}".encode() for part in range(1 + number % 3)]
                queue = "ab"[number % 2]
                told = broker.publish(queue, [Message(body) for body in bodies], confirm="synced")
                receipts.update(zip(bodies, (one.id for one in told), strict=True))

        assert together(publish, 12) == []
        leases = [lease for queue in "ab" for lease in broker.lease(queue, 10_000)]
        assert {lease.body: lease.id for lease in leases} == receipts


def test_messages_of_all_kinds_are_taken_in_together_as_they_are(tmp_path: Path) -> None:
    made = [
        Message(b"plain"),
        Message(b"important", importance=9, ttl_ms=60_000, decay_rate=0.5),
        Message(b"headers", headers={"a": "b"}, type="TEXT"),
        Message(b"large" * 10_000),
        Message(b"later", delay_ms=1),
        Message(b"volatile", durable=False),
        Message(b""),
    ]
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q"))

        def publish(number: int) -> None:
            for _ in range(5):
                broker.publish("q", made[number], confirm="synced")

        assert together(publish, len(made)) == []
        leases: list[Lease] = []
        while len(leases) < 5 * len(made):
            leases += broker.lease("q", 100, wait_ms=10_000)
        shown = Counter(
            (one.body, one.importance, one.ttl_ms, one.decay_rate, str(one.headers), one.type)
            for one in leases
        )
        assert shown == {
            (
                one.body,
                one.importance or 5,
                one.ttl_ms,
                one.decay_rate or 0,
                str(dict(one.headers or {})),
                one.type,
            ): 5
            for one in made
        }


def test_one_that_is_refused_does_not_disturb_the_others(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("small", max_messages=5))

        def publish(number: int) -> None:
            queue = "unknown" if number % 4 == 0 else "small"
            broker.publish(queue, [Message(b"x")], confirm="synced")

        errors = together(publish, 16)
        kinds = Counter(type(error) for error in errors)
        assert kinds == {UnknownQueue: 4, QueueFull: 7}
        assert broker.stats("small")["depth"]["ready"] == 5


def test_a_flush_serves_all_who_wait(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        before = broker.engine.journal.flushes

        def publish(number: int) -> None:
            for _ in range(50):
                broker.publish("q", [Message(b"x")], confirm="synced")

        assert together(publish, 8) == []
        assert broker.engine.journal.flushes - before < 400


def test_who_waits_while_the_broker_closes_is_told(tmp_path: Path) -> None:
    broker = Broker.open(tmp_path)
    broker.declare(QueueSpec("q"))
    started = threading.Event()
    stored: list[str] = []

    def publish(number: int) -> None:
        while True:
            stored.append(broker.publish("q", [Message(b"x")], confirm="synced")[0].id)
            started.set()

    def close(number: int) -> None:
        started.wait(60)
        broker.close()

    errors = together(lambda n: close(n) if n == 0 else publish(n), 5)
    assert [type(error) for error in errors] == [ClosedBroker] * 4
    with Broker.open(tmp_path) as broker:
        assert {lease.id for lease in broker.lease("q", 10_000)} >= set(stored)


def test_a_repeated_publish_is_confirmed_although_the_queue_is_full(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q", max_messages=2))
        messages = [Message(b"1", id="one"), Message(b"2", id="two")]
        first = broker.publish("q", messages)
        again = broker.publish("q", messages)
        assert [receipt.id for receipt in again] == [receipt.id for receipt in first]
        assert all(receipt.duplicate for receipt in again)
        with pytest.raises(QueueFull):
            broker.publish("q", [*messages, Message(b"3", id="three")])


def test_names_of_leases_that_are_over_are_forgotten(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        held = []
        for number in range(1_000):
            broker.publish("q", [Message(b"x")], confirm="memory")
            (lease,) = broker.lease("q", name=f"name-{number}")
            if number % 100:
                broker.ack("q", [lease.token])
            else:
                held.append((f"name-{number}", lease))
        (shard,) = broker.engine.catalog.shards.values()
        assert len(shard.partition.names) < 200
        for name, lease in held:
            assert [each.token for each in broker.lease("q", name=name)] == [lease.token]
