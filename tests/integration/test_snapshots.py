"""Snapshots of many queues: their messages share steps, and each is told as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.node.feeding.snapshots import Snapshot
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAY_MS = 86_400_000
QUEUES = 150


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path, clock=clock) as broker:
        yield broker


def tables_of(broker: Broker) -> list[Any]:
    return list(Snapshot(broker.engine, 7).tables())


def test_small_partitions_share_a_step_and_keep_what_is_their_own(
    broker: Broker, clock: ManualClock
) -> None:
    expected = {}
    for number in range(QUEUES):
        # Every other queue fades at another speed, so that two of them are never judged alike.
        spec = QueueSpec(f"q{number}", partitions=1 + number % 3, score_per_day=number % 2)
        broker.declare(spec)
        messages = [Message(b"x", key=str(key), importance=key) for key in range(1, 4)]
        for message, receipt in zip(messages, broker.publish(spec.name, messages), strict=True):
            expected[receipt.id] = (spec.name, message.importance, float(number % 2))
    clock.advance(DAY_MS)
    tables = tables_of(broker)
    rows = [row for table in tables for row in table.to_pylist()]
    assert {
        row["message_id"]: (row["queue"], row["importance"], row["decay_score"]) for row in rows
    } == expected
    assert len(rows) == len(expected)
    partitions = {(row["queue"], row["message_id"].split("-")[0], row["partition"]) for row in rows}
    pids = {(name, pid) for name, pid, _ in partitions}
    assert len(pids) == len(partitions), "a partition has one number in its queue"
    # 300 partitions in two sorts, 64 of them a step at most.
    assert len(tables) <= 6
    assert {(row["node"], row["boot"]) for row in rows} == {(broker.engine.config.node, 7)}


def test_large_partitions_come_a_few_pages_at_a_time(broker: Broker) -> None:
    broker.declare(QueueSpec("large"))
    broker.declare(QueueSpec("small"))
    broker.publish("large", [Message(b"x")] * 100_000, confirm="memory")
    broker.publish("small", [Message(b"y", ttl_ms=1_000)], confirm="memory")
    leases = broker.lease("large", count=3)
    tables = tables_of(broker)
    # There is no message 0 on the first page.
    assert [len(table) for table in tables] == [65_535, 34_466]
    last = tables[-1].to_pylist()[-1]
    assert (last["queue"], last["ttl_ms"], last["state"]) == ("small", 1_000, "ready")
    states = {row["message_id"]: row["state"] for row in tables[0].to_pylist()}
    assert [states.pop(lease.id) for lease in leases] == ["leased"] * 3
    assert set(states.values()) == {"ready"}


def test_what_is_the_same_for_all_messages_is_told_as_where_they_differ(
    broker: Broker, clock: ManualClock
) -> None:
    kinds = [
        Message(b"x"),
        Message(b"longer", importance=9, ttl_ms=600_000, decay_rate=0.5),
        Message(b"", durable=False, importance=1),
        Message(b"later", delay_ms=500_000),
        Message(b"gone soon", ttl_ms=400_000),
    ]
    # What is asked of placement differs, so that each queue has steps of its own.
    for number, kind in enumerate(kinds):
        broker.declare(QueueSpec(f"alike-{number}", score_base=number + 1))
        broker.publish(f"alike-{number}", [kind] * 3)
    broker.declare(QueueSpec("mixed", retry_delay_ms=0))
    mixed = [receipt.id for receipt in broker.publish("mixed", kinds)]
    clock.advance(5_000)
    leased = broker.lease("mixed", count=1)
    broker.retry("mixed", [lease.token for lease in leased], delay_ms=0)
    tables = tables_of(broker)
    assert len(tables) == len(kinds) + 1
    rows = {row["message_id"]: row for table in tables for row in table.to_pylist()}
    own = ("message_id", "queue", "decay_score", "policy_version")
    for number, kind in enumerate(kinds):
        same = [row for row in rows.values() if row["queue"] == f"alike-{number}"]
        found = rows[mixed[number]]
        other = {"generation", "attempts", "failures"} if leased[0].id == mixed[number] else set()
        assert [len(same), *(row["decay_score"] for row in same)] == [3, *[number + 1.0] * 3]
        for row in same:
            left_out = {*own, *other}
            assert {name: row[name] for name in row.keys() - left_out} == {
                name: found[name] for name in found.keys() - left_out
            }
        assert (found["ttl_ms"], found["durable"]) == (kind.ttl_ms, kind.durable)
        assert found["state"] == ("scheduled" if kind.delay_ms else "ready")
    tried = rows[leased[0].id]
    assert (tried["generation"], tried["attempts"], tried["failures"]) == (1, 1, 1)


def test_attempts_begin_anew_in_the_queue_a_message_is_moved_to(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("dead"))
    broker.declare(QueueSpec("q", max_attempts=1, dead_queue="dead"))
    broker.publish("q", [Message(b"x")])

    def seen() -> tuple[str, int, int]:
        ((row,),) = (table.to_pylist() for table in tables_of(broker))
        return row["queue"], row["generation"], row["attempts"]

    leased = broker.lease("q", count=1)
    assert seen() == ("q", 1, 1)
    broker.retry("q", [lease.token for lease in leased])
    clock.advance(10)
    assert seen() == ("dead", 0, 0)
    assert broker.redrive("dead", to="q") == 1
    assert seen() == ("q", 0, 0)
