"""A backup is whole without the devices: bodies that only they have are in its log."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import LOG
from ebbmq.errors import Overloaded
from tests.crash.copies import holdings, wait_until_settled
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 64 << 20
CONFIG = {
    "devices": {
        "ssd": {"kind": "file", "capacity_bytes": ROOM},
        "cold": {"kind": "object", "directory": "cold", "capacity_bytes": ROOM},
    },
    "rules": [
        {"id": "T", "weight": 90, "device": "ssd", "when": "TYPE == TEXT"},
        {"id": "C", "weight": 80, "device": "cold", "when": "IMPORTANCE < 3"},
    ],
    "upkeep_every_ms": 20,
}
MESSAGES = [
    *(Message(b"text %d" % n, type="TEXT", headers={"n": str(n)}) for n in range(1_500)),
    *(Message(b"cold %d" % n, importance=1) for n in range(50)),
    Message(b"", type="TEXT"),
    *(Message(b"here %d" % n) for n in range(20)),
]


def filled(path: Path) -> Broker:
    broker = Broker.open(path, CONFIG)
    broker.declare(QueueSpec("q", cache_enabled=False))
    broker.publish("q", MESSAGES)
    wait_until_settled(broker, "moving")
    assert sum(LOG not in each.copies for each in holdings(broker).values()) == 1_551
    return broker


def test_a_backup_has_bodies_that_only_devices_have(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with filled(tmp_path / "data") as broker:
        copied = broker.backup(tmp_path / "backup", lambda *both: told.append(both))
        assert told[-1] == (copied, copied)
        # The store goes on as before, and forgets what it was to forget.
        leases = broker.lease("q", 10_000)
        assert len(leases) == len(MESSAGES)
        broker.ack("q", [lease.token for lease in leases], confirm="synced")
        wait_until(lambda: not broker.engine.holdings.tombstones(), "forgetting")
    shutil.rmtree(tmp_path / "data")
    for _ in range(2):
        with Broker.open(tmp_path / "backup") as restored:
            found = restored.lease("q", 10_000)
            assert sorted(each.body for each in found) == sorted(each.body for each in MESSAGES)
            assert {each.headers.get("n") for each in found} >= {str(n) for n in range(1_500)}
            restored.release("q", [lease.token for lease in found])
            assert restored.health()["damage"] == []


def test_a_backup_that_would_lack_bodies_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "data") as broker:
        for pack in (tmp_path / "data" / "cold").rglob("*.parquet"):
            pack.unlink()
        with pytest.raises(Overloaded) as refusal:
            broker.backup(tmp_path / "backup")
        assert refusal.value.code == "bodies_away"
        assert "50 messages" in refusal.value.detail
        assert list((tmp_path / "backup").iterdir()) == []
