"""Where copies go that no rule and no tier speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import Broker, Message, QueueSpec
from ebbmq.testing import ManualClock
from tests.integration.test_holding import ROOM, ids, is_on, until

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = {
    # First by name, and as well as the other.
    "archive": {"kind": "object", "directory": "objects", "capacity_bytes": ROOM},
    "disk": {"kind": "file", "capacity_bytes": ROOM},
}


def test_the_second_copy_of_a_message_is_on_a_disk_and_not_in_the_archive(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", {"devices": DEVICES}) as broker:
        broker.declare(QueueSpec("q"))
        receipts = broker.publish("q", [Message(b"body", replicas=2) for _ in range(20)])
        until(is_on(broker, ids(receipts), "log", "disk"))


def test_the_third_copy_is_in_the_archive_where_no_other_device_is_left(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", {"devices": DEVICES}) as broker:
        broker.declare(QueueSpec("q"))
        receipts = broker.publish("q", [Message(b"body", replicas=3) for _ in range(20)])
        until(is_on(broker, ids(receipts), "log", "disk", "archive"))


def test_who_refused_a_copy_is_asked_again_a_second_later_whatever_else_happens(
    tmp_path: Path,
) -> None:
    seldom = {"status": {"every_ms": 600_000}}
    disk = {"kind": "file", "capacity_bytes": 1 << 20, **seldom}
    clock = ManualClock()
    with Broker.open(
        tmp_path / "data", {"devices": {"log": seldom, "disk": disk}}, clock
    ) as broker:
        keeping, lock = broker.engine.keeping, broker.engine.lock

        def is_asked() -> bool:
            with lock:
                return keeping.view().states["disk"].usable

        assert is_asked()
        with lock:
            keeping.refuse_for_now("disk")
        assert not is_asked()
        clock.advance(1_000)
        assert is_asked()
