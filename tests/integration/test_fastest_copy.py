"""A body is read from the fastest copy whose device is well, and from the next if that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import Broker, Message, QueueSpec
from tests.integration.test_holding import ROOM, ids, is_on, until

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 40
TO_RAM = [{"id": "W-001", "weight": 90, "device": "ram", "when": "TYPE == TEXT"}]
RAM = {"kind": "memory", "capacity_bytes": ROOM}
DISK = {"kind": "file", "capacity_bytes": ROOM}
#: Whatever a probe of it takes is too long.
UNWELL = {"every_ms": 20, "latency_ms": [0.0, 0.000001]}
#: Whatever a probe of it takes on a busy machine is soon enough.
WELL = {"latency_ms": [1_000_000.0, 2_000_000.0]}


def opened(path: Path, devices, *, rules=()) -> Broker:
    config = {"devices": devices, "rules": list(rules), "upkeep_every_ms": 20}
    broker = Broker.open(path / "data", config)
    # Nothing is kept in RAM, so every body is read when it is delivered.
    broker.declare(QueueSpec("q", cache_enabled=False))
    return broker


def filled(broker: Broker, *copies: str, **fields) -> list[bytes]:
    messages = [Message(b"body of message %04d" % n, **fields) for n in range(COUNT)]
    until(is_on(broker, ids(broker.publish("q", messages)), *copies))
    return [message.body for message in messages]


def delivered(broker: Broker) -> list[bytes]:
    return [lease.body for lease in broker.lease("q", count=COUNT)]


def reads(broker: Broker) -> dict[str, int]:
    return {name: count for name, count in broker.engine.keeping.readers.read.items() if count}


def is_unwell(broker: Broker, device: str) -> bool:
    found = {each.name: each.status for each in broker.devices()}
    return found[device] < -50


def test_while_the_disk_of_the_log_is_slow_bodies_come_from_the_other_copy(tmp_path: Path) -> None:
    disk = {**DISK, "status": WELL}
    with opened(tmp_path, {"log": {"status": UNWELL}, "disk": disk}) as broker:
        until(lambda: is_unwell(broker, "log"))
        bodies = filled(broker, "log", "disk", replicas=2)
        assert delivered(broker) == bodies
        assert reads(broker) == {"disk": COUNT}
        assert {seen.tier for seen in broker.peek("q", COUNT, state="leased")} == {"file"}


def test_a_copy_in_ram_is_read_before_that_of_a_log_that_is_slow(tmp_path: Path) -> None:
    ram = {**RAM, "status": WELL}
    with opened(tmp_path, {"log": {"status": UNWELL}, "ram": ram}, rules=TO_RAM) as broker:
        until(lambda: is_unwell(broker, "log"))
        bodies = filled(broker, "log", "ram", type="TEXT")
        assert delivered(broker) == bodies
        assert reads(broker) == {"ram": COUNT}
        assert {seen.tier for seen in broker.peek("q", COUNT, state="leased")} == {"memory"}


def test_a_copy_whose_device_is_slow_is_not_read_before_that_of_the_log(tmp_path: Path) -> None:
    ram = {**RAM, "status": UNWELL}
    with opened(tmp_path, {"log": {"status": WELL}, "ram": ram}, rules=TO_RAM) as broker:
        until(lambda: is_unwell(broker, "ram"))
        bodies = filled(broker, "log", "ram", type="TEXT")
        assert delivered(broker) == bodies
        assert reads(broker) == {}


def test_wrong_bytes_of_the_fastest_copy_are_not_delivered_but_those_of_the_next(
    tmp_path: Path,
) -> None:
    disk = {**DISK, "status": WELL}
    with opened(tmp_path, {"log": {"status": UNWELL}, "disk": disk}) as broker:
        until(lambda: is_unwell(broker, "log"))
        bodies = filled(broker, "log", "disk", replicas=2)
        damaged = 0
        for file in (tmp_path / "data" / "devices" / "disk").rglob("*"):
            found = file.read_bytes() if file.is_file() else b""
            at = found.find(bodies[7])
            if at >= 0:
                with file.open("r+b") as segment:
                    segment.seek(at)
                    segment.write(bodies[7].upper())
                damaged += 1
        assert damaged == 1
        assert delivered(broker) == bodies
        assert reads(broker) == {"disk": COUNT - 1}
