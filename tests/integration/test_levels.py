"""When a published message can be leased: once its level holds, in the order of the publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import Broker, Message, QueueSpec
from ebbmq.journal.disk import MemoryDisk
from ebbmq.node import publishing
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path


def test_a_message_is_ready_when_its_level_and_those_before_it_hold(tmp_path: Path) -> None:
    with Broker.open(tmp_path, clock=ManualClock(), disk=MemoryDisk(), threaded=False) as broker:
        broker.declare(QueueSpec("q"))
        engine = broker.engine
        _, _, position = publishing.publish(engine, "q", [Message(b"first")], "synced")
        publishing.publish(engine, "q", [Message(b"second")], "written")
        assert broker.stats("q")["depth"]["replicating"] == 2
        # A commit reports what it had written when it began, which may be less than is by then.
        engine.committed(position, position)
        assert [lease.body for lease in broker.lease("q", count=9)] == [b"first", b"second"]


def test_a_message_that_waits_for_its_level_is_not_leased(tmp_path: Path) -> None:
    with Broker.open(tmp_path, clock=ManualClock(), disk=MemoryDisk(), threaded=False) as broker:
        broker.declare(QueueSpec("q"))
        _, _, position = publishing.publish(broker.engine, "q", [Message(b"m")], "synced")
        assert broker.lease("q") == []
        assert broker.stats("q")["depth"] == {
            "ready": 0, "leased": 0, "scheduled": 0, "replicating": 1, "dying": 0,
        }  # fmt: skip
        broker.engine.journal.wait("synced", position)
        assert [lease.body for lease in broker.lease("q")] == [b"m"]
