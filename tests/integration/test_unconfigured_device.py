"""A store whose configuration lost a device that has copies: nobody waits without being told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.cli.main import main
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

HDD = {"kind": "file", "capacity_bytes": 64 << 20}
TOLD = (
    "device 'hdd' is not configured and has 3 copies; 2 messages have no other that can be read, "
    "and wait for it: configure it under [devices], or give it up with `ebbmq devices evict hdd`"
)


def moved_to_hdd(data: Path) -> None:
    with Broker.open(data, {"devices": {"hdd": HDD}, "upkeep_every_ms": 20}) as broker:
        broker.declare(QueueSpec("work", default_device="hdd"))
        broker.publish("work", [Message(b"a"), Message(b"b"), Message(b"c", replicas=2)])
        wait_until(lambda: copies(broker)["hdd"] == (3, 0), "three copies on hdd")


def copies(broker: Any) -> dict[str, tuple[int, int]]:
    return {device.name: (device.copies, device.moves) for device in broker.devices()}


def test_copies_on_a_device_that_is_not_configured_are_told_until_they_are_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved_to_hdd(tmp_path / "data")
    ssd = {"ssd": HDD}
    with Served(tmp_path / "data", devices=ssd) as served:
        assert served.ask("GET", "/health/ready").json["devices"] == [TOLD]
        with pytest.raises(SystemExit) as ended:
            main(["devices", "--url", f"http://127.0.0.1:{served.port}"])
        assert not ended.value.code
        assert f"attention: {TOLD}" in " ".join(capsys.readouterr().err.split())
        assert served.broker.evict_device("hdd").messages_lost == 2
        assert served.broker.health()["devices"] == []


def test_without_any_device_configured_it_is_told_too(tmp_path: Path) -> None:
    moved_to_hdd(tmp_path / "data")
    with Broker.open(tmp_path / "data") as broker:
        assert broker.health()["devices"] == [TOLD]
        assert [lease.body for lease in broker.lease("work", 3)] == [b"c"]
    with Broker.open(tmp_path / "data", {"devices": {"hdd": HDD}}) as broker:
        assert broker.health()["devices"] == []
