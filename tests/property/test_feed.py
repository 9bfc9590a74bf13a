"""The feed of a broker against a recorder that notes each event by itself, from the outside."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.snapshots import CATALOG
from ebbmq.testing import ManualClock
from tests.feeds import rows_of

COLUMNS = ("event", "queue", "message_id", "at_ms", "generation", "failures", "latency_ms")
AGED = ("stale", "expired")


class Recorder:
    """Does things to a broker, and notes what must be in its feed, one event at a time."""

    def __init__(self, broker: Broker, clock: ManualClock, seed: int) -> None:
        self.broker = broker
        self.clock = clock
        self.random = random.Random(seed)
        self.told: list[tuple[Any, ...]] = []
        self.leases: dict[str, tuple[Any, int]] = {}

    def note(self, event: str, message_id: str, *rest: Any) -> None:
        self.told.append((event, "q", message_id, self.clock.wall_ms(), *rest))

    def publish(self) -> None:
        messages = [
            Message(
                b"x" * self.random.randrange(40),
                importance=self.random.randrange(1, 11),
                ttl_ms=self.random.choice([None, 700, 60_000]),
                decay_rate=self.random.choice([None, 0.9]),
                delay_ms=self.random.choice([0, 0, 300]),
                headers=self.random.choice([None, {"a": "b"}]),
            )
            for _ in range(self.random.choice([1, 3, 40]))
        ]
        for message, receipt in zip(messages, self.broker.publish("q", messages), strict=True):
            self.note("published", receipt.id, 0, 0, None)
            if message.delay_ms:
                self.note("scheduled", receipt.id, 0, 0, None)

    def lease(self) -> None:
        timeout_ms = self.random.choice([None, 250])
        count = self.random.choice([1, 5, 30])
        for lease in self.broker.lease("q", count=count, lease_timeout_ms=timeout_ms):
            self.leases[lease.id] = lease, self.clock.wall_ms()
            self.note("leased", lease.id, lease.attempt, lease.failures, None)

    def settle(self) -> None:
        chosen = [name for name in self.leases if self.random.random() < 0.7]
        verb = self.random.choice(["ack", "ack", "retry", "release"])
        if verb == "ack":
            self.broker.ack("q", [self.leases[name][0].token for name in chosen])
        elif verb == "retry":
            self.broker.retry("q", [self.leases[name][0].token for name in chosen])
        else:
            self.broker.release("q", [self.leases[name][0].token for name in chosen])
        event = {"ack": "acked", "retry": "retried", "release": "released"}[verb]
        for name in chosen:
            self.end(event, name)

    def end(self, event: str, name: str) -> None:
        lease, since_ms = self.leases.pop(name)
        failures = lease.failures + (event in ("retried", "lease_expired"))
        ended_ms = min(self.clock.wall_ms(), lease.deadline_ms)
        self.note(event, name, lease.attempt, failures, ended_ms - since_ms)

    def wait(self) -> None:
        self.clock.advance(self.random.choice([1, 90, 400]))
        for name, (lease, _) in list(self.leases.items()):
            if lease.deadline_ms <= self.clock.wall_ms():
                self.end("lease_expired", name)

    def removed(self) -> list[tuple[Any, ...]]:
        out = []
        for removal in self.broker.removals("q"):
            event = removal.reason if removal.reason in AGED else "removed"
            if removal.moved_to:
                event = "dead_lettered"
            key = (event, "q", removal.id, removal.at_ms, removal.attempts, removal.failures, None)
            out.append(key)
        return out


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dead_queue", [None, "q.dead"])
def test_the_feed_tells_what_happened_event_by_event(tmp_path, seed, dead_queue) -> None:
    clock = ManualClock()
    lake = tmp_path / "lake"
    config = {"feed": {"lake": str(lake), "every_ms": 500, "snapshot_every_ms": 0}}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(
            QueueSpec(
                "q",
                max_attempts=2,
                retry_delay_ms=seed % 2 * 100,
                lease_timeout_ms=600,
                retention_ms=5_000,
                dead_queue=dead_queue,
            )
        )
        recorder = Recorder(broker, clock, seed)
        for _ in range(60):
            verbs = [recorder.publish, recorder.lease, recorder.settle, recorder.wait]
            recorder.random.choice(verbs)()
        expected = Counter(recorder.told + recorder.removed())
    rows = rows_of(lake)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["at_ms"] for row in rows] == sorted(row["at_ms"] for row in rows)
    found = Counter(tuple(row[column] for column in COLUMNS) for row in rows if row["queue"] == "q")
    assert found == expected
    assert len({key[0] for key in found}) > 5


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_is_what_peek_shows(tmp_path, seed) -> None:
    clock = ManualClock()
    lake = tmp_path / "lake"
    config = {"node": "a/b", "feed": {"lake": str(lake), "every_ms": 10, "snapshot_every_ms": 10}}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(
            QueueSpec("q", lease_timeout_ms=600, score_per_day=1_000, score_access_bonus=0.5)
        )
        recorder = Recorder(broker, clock, seed)
        for _ in range(30):
            verbs = [recorder.publish, recorder.lease, recorder.settle, recorder.wait]
            recorder.random.choice(verbs)()
        clock.advance(10)
        peeked = {
            seen.id: (seen.state, seen.importance, seen.ttl_ms, seen.attempt, seen.failures)
            for state in ("ready", "leased", "scheduled", "dying")
            for seen in broker.peek("q", count=10_000, state=state)
        }
        last = max(row["at_ms"] for row in rows_of(lake, CATALOG))
        rows = [row for row in rows_of(lake, CATALOG) if row["at_ms"] == last]
    assert last == clock.wall_ms()
    assert {
        row["message_id"]: (
            row["state"], row["importance"], row["ttl_ms"], row["attempts"], row["failures"]
        )
        for row in rows
    } == peeked  # fmt: skip
    assert {(row["node"], row["queue"], row["copies"]) for row in rows} == {("a/b", "q", 1)}
