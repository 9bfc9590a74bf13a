"""The text log sums up what left other than by ack; the removals log has each of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

TTL_MS = 1_000
PAUSE_MS = 10_000


@pytest.fixture(autouse=True)
def informed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebbmq")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of messages that left, since this was last asked."""
    lines = [line for line in caplog.messages if line.startswith("messages_left ")]
    caplog.clear()
    return [line.removeprefix("messages_left ") for line in lines]


def test_what_left_is_summed_up_by_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", dead_queue="dead", partitions=2))
        broker.publish("q", [Message(b"m", ttl_ms=TTL_MS)] * 100)
        broker.ack("q", [lease.token for lease in broker.lease("q", count=10)])
        clock.advance(TTL_MS)
        assert told(caplog) == ["queue='q' expired=90 dead_lettered=90"]
        clock.advance(PAUSE_MS)
        assert told(caplog) == []
        assert len(broker.removals("q")) == 90


def test_what_was_to_be_done_and_is_in_no_dead_queue_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("tried", max_attempts=1))
        broker.declare(QueueSpec("kept", max_attempts=1, dead_queue="dead"))
        broker.declare(QueueSpec("full", max_messages=2, overflow="drop_lowest"))
        broker.declare(QueueSpec("fading", default_ttl_ms=TTL_MS))
        for queue in ("tried", "kept"):
            broker.publish(queue, [Message(b"m")])
            broker.retry(queue, [lease.token for lease in broker.lease(queue)])
        broker.publish("full", [Message(b"m")] * 5)
        broker.publish("fading", [Message(b"m")])
        clock.advance(TTL_MS)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert sorted(warnings) == [
        "messages_lost queue='full' overflow=3",
        "messages_lost queue='tried' max_attempts=1",
    ]


def test_there_is_one_line_for_what_leaves_in_ten_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q"))
        for _ in range(5):
            broker.publish("q", [Message(b"m", ttl_ms=TTL_MS)])
            clock.advance(TTL_MS)
        assert told(caplog) == ["queue='q' expired=1"]
        clock.advance(PAUSE_MS)
        assert told(caplog) == ["queue='q' expired=4"]


def test_what_left_last_is_told_when_the_broker_closes_and_not_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with Broker.open(tmp_path, clock=ManualClock()) as broker:
            broker.declare(QueueSpec("q"))
            broker.publish("q", [Message(b"m")] * 3)
            broker.purge("q")
        assert told(caplog) == ["queue='q' purged=3"]


def test_what_a_deleted_queue_held_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"m")] * 3)
        broker.delete("q")
    assert told(caplog) == ["queue='q' deleted=3"]
