"""A partition that cannot be read is set apart, the others go on, and it is read again."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq import Broker, Message, QueueSpec, StorageFailed
from ebbmq.core import facts
from ebbmq.feed.settings import FaultyPartition
from ebbmq.feed.snapshots import CATALOG
from ebbmq.journal import scan
from ebbmq.journal.disk import FileDisk
from ebbmq.node.directory import Identity
from ebbmq.testing import ManualClock
from tests.feeds import manifests_of
from tests.served import Answer, Served
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

RETRY_MS = 31_000


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def damaged(tmp_path: Path, clock: ManualClock) -> tuple[Path, Path, int]:
    """A store whose first partition has neither a readable page nor a readable record."""
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("ill"))
        broker.declare(QueueSpec("well", partitions=2))
        broker.publish("ill", [Message(b"%d" % i) for i in range(50)])
        broker.publish("well", [Message(b"%d" % i, key=str(i)) for i in range(50)])
    segment, offset = make_ill(tmp_path)
    return tmp_path, segment, offset


def make_ill(tmp_path: Path) -> tuple[Path, int]:
    """Damage the page and the record of the first partition; returns where to mend the record."""
    (pages,) = sorted((tmp_path / "checkpoints").glob("*.pages"))
    flip(pages, 100)
    identity = msgspec.json.decode((tmp_path / "store.json").read_bytes(), type=Identity)
    (position,) = [
        item.position
        for item in scan.scan(FileDisk(tmp_path / "journal"), identity.uuid)
        if isinstance(item, scan.Found)
        and item.header.kind == facts.PUBLISH
        and item.header.pid == 1
    ]
    segment = tmp_path / "journal" / "young-0000000001.seg"
    offset = (position & 0xFFFFFFFF) + 60
    flip(segment, offset)
    return segment, offset


def test_a_faulty_partition_takes_no_requests_and_the_others_go_on(
    damaged: tuple[Path, Path, int], clock: ManualClock
) -> None:
    with Broker.open(damaged[0], clock=clock) as broker:
        assert [p["state"] for p in broker.stats("ill")["partitions"]] == ["faulty"]
        assert not broker.health()["ready"]
        with pytest.raises(StorageFailed) as caught:
            broker.publish("ill", [Message(b"x")])
        assert caught.value.code == "partition_faulty"
        assert broker.lease("ill", 10) == []
        assert len(broker.lease("well", 100)) == 50
        assert broker.publish("well", [Message(b"x")])


def test_a_faulty_partition_is_read_again_and_loses_nothing_when_it_can_be(
    damaged: tuple[Path, Path, int], clock: ManualClock
) -> None:
    data, segment, offset = damaged
    with Broker.open(data, clock=clock) as broker:
        broker.publish("well", [Message(b"meanwhile")])
        clock.advance(RETRY_MS)
        assert broker.stats("ill")["partitions"][0]["state"] == "faulty"
        flip(segment, offset)
        clock.advance(RETRY_MS)
        assert broker.stats("ill")["partitions"][0]["state"] == "ok"
        assert sorted(lease.body for lease in broker.lease("ill", 100)) == sorted(
            b"%d" % i for i in range(50)
        )


def test_a_snapshot_says_which_partitions_it_lacks(
    damaged: tuple[Path, Path, int], clock: ManualClock, tmp_path: Path
) -> None:
    data, segment, offset = damaged
    feed = {"lake": str(tmp_path / "lake"), "snapshot_every_ms": RETRY_MS}

    def told() -> tuple[object, int]:
        last = manifests_of(tmp_path / "lake", CATALOG)[-1]
        assert last.settings is not None
        return last.settings.faulty, sum(part.rows for part in last.parts)

    with Broker.open(data, {"feed": feed}, clock) as broker:
        clock.advance(RETRY_MS)
        assert told() == ((FaultyPartition(queue="ill", partition=0),), 50)
        flip(segment, offset)
        clock.advance(RETRY_MS)
        assert broker.stats("ill")["partitions"][0]["state"] == "ok"
        clock.advance(RETRY_MS)
        assert told() == ((), 100)


def test_leases_in_a_faulty_partition_are_not_left_out_when_they_are_read_by_their_tokens(
    tmp_path: Path, clock: ManualClock
) -> None:
    bodies = {b"%d" % i for i in range(50)}
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("ill", partitions=2))
        broker.publish("ill", [Message(body, key=body.decode()) for body in bodies])
        leases = broker.lease("ill", 100, lease_timeout_ms=3_600_000)
        assert {lease.body for lease in leases} == bodies
    tokens = {lease.token: lease.token.startswith("00000001") for lease in leases}
    segment, offset = make_ill(tmp_path)
    with Served(tmp_path, clock=clock) as server:

        def read(asked: list[str]) -> Answer:
            return server.ask("POST", "/v1/queues/ill/reads", {"tokens": asked})

        refused = read(list(tokens))
        assert (refused.status, refused.json["code"]) == (503, "partition_faulty")
        well = [token for token, is_ill in tokens.items() if not is_ill]
        assert 0 < len(well) < len(tokens)
        assert len(read(well).json["leases"]) == len(well)
        flip(segment, offset)
        clock.advance(RETRY_MS)
        assert len(read(list(tokens)).json["leases"]) == len(tokens)
        server.broker.ack("ill", list(tokens))


def test_copies_on_devices_outlive_the_time_in_which_their_partition_cannot_be_read(
    tmp_path: Path, clock: ManualClock
) -> None:
    config = {
        "devices": {"ssd": {"kind": "file", "capacity_bytes": 1 << 24}},
        "rules": [{"id": "S", "weight": 90, "device": "ssd", "when": "IMPORTANCE >= 1"}],
    }

    def stored(broker: Broker) -> int:
        assert broker.engine.devices is not None
        port = broker.engine.devices.ports["ssd"]
        return len(port.scan(broker.engine.directory.identity.uuid).result())

    def is_moved(broker: Broker) -> bool:
        with broker.engine.lock:
            found = dict(broker.engine.holdings.items()).values()
        return [each.copies for each in found] == [frozenset({"ssd"})] * 50

    bodies = [b"%d" % i for i in range(50)]
    with Broker.open(tmp_path, config, clock=clock) as broker:
        broker.declare(QueueSpec("ill"))
        broker.publish("ill", [Message(body) for body in bodies])
        wait_until(lambda: is_moved(broker), "moving")
    segment, offset = make_ill(tmp_path)
    with Broker.open(tmp_path, config, clock=clock) as broker:
        assert broker.stats("ill")["partitions"][0]["state"] == "faulty"
        assert broker.engine.keeping.reconciler is not None
        broker.engine.keeping.reconciler.look()
        flip(segment, offset)
        clock.advance(RETRY_MS)
        assert broker.stats("ill")["partitions"][0]["state"] == "ok"
        assert stored(broker) == 50
        assert sorted(lease.body for lease in broker.lease("ill", 100)) == sorted(bodies)


def test_damage_that_is_accepted_leaves_the_partition_open_with_what_can_be_read(
    damaged: tuple[Path, Path, int], clock: ManualClock
) -> None:
    data, _, _ = damaged
    with Broker.open(data, clock=clock, accept_damage=True) as broker:
        assert broker.stats("ill")["partitions"][0]["state"] == "ok"
        assert any("cannot be read" in problem for problem in broker.engine.damage)
        known = broker.lease("ill", 100)
        (receipt,) = broker.publish("ill", [Message(b"after")])
        lost = {f"1-{number:x}" for number in range(50)} - {lease.id for lease in known}
        assert receipt.id not in lost
    with Broker.open(data, clock=clock) as broker:
        assert [p["state"] for p in broker.stats("ill")["partitions"]] == ["ok"]
        assert [lease.body for lease in broker.lease("ill", 1)] == [b"after"]
        assert len(broker.lease("well", 100)) == 50


def doctor(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ebbmq.cli", "doctor", "--data", str(data), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_damage_is_accepted_by_doctor(damaged: tuple[Path, Path, int]) -> None:
    data = damaged[0]
    ran = doctor(data, "--accept-damage")
    assert ran.returncode == 1
    assert "the damage is accepted" in ran.stdout
    with Broker.open(data) as broker:
        assert [p["state"] for p in broker.stats("ill")["partitions"]] == ["ok"]
    assert doctor(data).returncode == 0
