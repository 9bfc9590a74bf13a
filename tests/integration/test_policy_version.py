"""The version of a queue's parameters, by which a plan that was made for others is known."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.snapshots import CATALOG
from ebbmq.testing import ManualClock
from tests.feeds import rows_of

if TYPE_CHECKING:
    from pathlib import Path

START_MS = 1_700_000_000_000


def version(broker: Broker, name: str = "q") -> int:
    return broker.engine.catalog.version_of(name)


def test_each_change_of_a_queue_is_a_version_of_its_parameters(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        assert version(broker) == 1
        broker.declare(QueueSpec("q"))
        assert version(broker) == 1
        broker.declare(QueueSpec("q", score_per_day=2.0), change=True)
        broker.declare(QueueSpec("q"), change=True)
        broker.declare(QueueSpec("other"))
        assert version(broker) == 3
        # As after kill -9: nothing was closed.
        shutil.copytree(tmp_path / "data", tmp_path / "torn")
    for name in ("data", "torn"):
        with Broker.open(tmp_path / name) as broker:
            assert version(broker) == 3
            assert version(broker, "other") == 1


def test_a_snapshot_says_which_parameters_its_messages_are_under(tmp_path: Path) -> None:
    clock, lake = ManualClock(START_MS), tmp_path / "lake"
    config = {"node": "n1", "feed": {"lake": str(lake), "snapshot_every_ms": 1_000}}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"1")])
        clock.advance(20_000)
        broker.declare(QueueSpec("q", max_attempts=3), change=True)
        clock.advance(20_000)
        broker.publish("q", [Message(b"2")])
    told = [row["policy_version"] for row in rows_of(lake, CATALOG)]
    assert told[0] == 1
    assert told[-1] == 2
