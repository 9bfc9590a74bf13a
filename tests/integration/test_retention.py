"""Retention: how long a queue keeps what nobody takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.testing import ManualClock
from tests.crash.copies import holdings, stored, wait_until_settled

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000
WEEK = QueueSpec("q", retention_ms=7 * DAY_MS, lease_timeout_ms=DAY_MS, retry_delay_ms=0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_message_is_kept_for_7_days_and_not_longer(tmp_path: Path, clock: ManualClock) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(WEEK)
        (receipt,) = broker.publish("q", [Message(b"m", importance=10)])
        clock.advance(7 * DAY_MS - 1)
        assert len(broker.peek("q")) == 1
        clock.advance(1)
        assert broker.lease("q") == []
        (removal,) = broker.removals("q", reason="retention")
        assert (removal.id, removal.at_ms) == (receipt.id, clock.wall_ms())
        assert broker.why(receipt.id)["reason"] == "retention"


def test_retention_counts_on_while_the_broker_is_closed(tmp_path: Path, clock: ManualClock) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(WEEK)
        broker.publish("q", [Message(b"old")])
        clock.advance(3 * DAY_MS)
        broker.publish("q", [Message(b"young")])
    clock.advance(4 * DAY_MS)
    with Broker.open(tmp_path, clock=clock) as broker:
        assert [lease.body for lease in broker.lease("q", 9)] == [b"young"]


def test_who_works_on_a_message_may_finish_it_whatever_the_retention(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(WEEK)
        broker.publish("q", [Message(b"done"), Message(b"fails")])
        clock.advance(7 * DAY_MS - 1)
        done, fails = broker.lease("q", 2)
        clock.advance(1_000)
        broker.ack("q", [done.token])
        broker.retry("q", [fails.token])
        assert broker.lease("q", 2) == []
        assert [each.id for each in broker.removals("q")] == [fails.id]


def test_a_retention_that_is_declared_later_counts_for_what_is_there(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"m")])
        clock.advance(8 * DAY_MS)
        assert len(broker.peek("q")) == 1
        broker.declare(WEEK, change=True)
        clock.advance(1)
        assert broker.peek("q") == []
        assert [each.reason for each in broker.removals("q")] == ["retention"]


def test_what_is_past_its_retention_leaves_with_its_copies_on_every_device(
    tmp_path: Path, clock: ManualClock
) -> None:
    room = {"capacity_bytes": 64 << 20}
    devices = {
        "ram": {"kind": "memory", **room},
        "hdd": {"kind": "file", **room},
        "db": {"kind": "sql", "directory": str(tmp_path / "db"), **room},
        "archive": {"kind": "object", "directory": str(tmp_path / "archive"), **room},
    }
    rules = [{"id": "A", "weight": 90, "device": "archive", "when": "TYPE == TEXT"}]
    config = {"devices": devices, "rules": rules}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(WEEK)
        everywhere = broker.publish("q", [Message(b"%d" % n, replicas=5) for n in range(20)])
        archived = broker.publish("q", [Message(b"%d" % n, type="TEXT") for n in range(20)])
        wait_until_settled(broker, "copying")
        assert {len(found) for found in stored(broker).values()} == {20, 40}
        assert sum(each.copies == {"archive"} for each in holdings(broker).values()) == 20
        clock.advance(7 * DAY_MS)
        left = {removal.id for removal in broker.removals("q", reason="retention")}
        assert left == {receipt.id for receipt in [*everywhere, *archived]}
        wait_until_settled(broker, "forgetting")
        assert stored(broker) == {name: set() for name in devices}
        assert holdings(broker) == {}
