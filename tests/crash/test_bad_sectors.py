"""Copies that a disk cannot read any more: told of one by one, made anew from others."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from typing_extensions import override

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import name_of
from ebbmq.holding import opening
from ebbmq.holding.contract import Copy, DeviceSpec, Key, Lack
from ebbmq.holding.file import FileDevice
from ebbmq.journal.disk import FileDisk
from ebbmq.journal.record import ALIGNMENT
from ebbmq.journal.sectors import SECTOR_BYTES
from ebbmq.node import doctor
from ebbmq.node.outflow import parse_id
from tests.crash.copies import differences, holdings, wait_until_settled
from tests.crash.devices import MIB, SOON
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.journal.disk import File

pytestmark = pytest.mark.crash

STORE = b"s" * 16
MARKED = b"on a bad sector " * 8
FILLER = bytes(range(256)) * 4
TO_A = {"id": "A", "weight": 90, "device": "a", "when": "IMPORTANCE >= 1"}
TO_B = {"id": "B", "weight": 80, "device": "b", "when": "IMPORTANCE >= 5"}


class Sectors:
    """Places of files that fail to read: so many bytes around each, as a sector has, or one."""

    def __init__(self, nbytes: int = 1) -> None:
        self.bad: set[tuple[str, int]] = set()
        self.nbytes = nbytes

    def break_where(self, directory: Path, marked: bytes) -> None:
        """Let what is written there now never be read again."""
        for path in directory.rglob("*.seg"):
            at = path.read_bytes().find(marked)
            if at >= 0:
                self.bad.add((path.name, at))
        assert self.bad


class WornFile:
    """A file some of whose sectors fail; all else is that of the file."""

    def __init__(self, file: File, name: str, sectors: Sectors) -> None:
        self._file, self._name, self._sectors = file, name, sectors

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def read(self, offset: int, nbytes: int) -> bytes:
        for name, at in self._sectors.bad:
            size = self._sectors.nbytes
            first = at // size * size
            if name == self._name and offset < first + size and first < offset + nbytes:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.read(offset, nbytes)


class WornDisk(FileDisk):
    """A directory on a disk that fails in places."""

    def __init__(self, directory: Path, sectors: Sectors) -> None:
        super().__init__(directory)
        self._sectors = sectors

    @override
    def create(self, name: str, nbytes: int) -> File:
        return WornFile(super().create(name, nbytes), name, self._sectors)  # type: ignore[return-value]  # by __getattr__

    @override
    def open(self, name: str) -> File:
        return WornFile(super().open(name), name, self._sectors)  # type: ignore[return-value]  # by __getattr__


def named(ids: list[str], problems: list[str]) -> set[int]:
    return {number for number, known in enumerate(ids) if any(f"{known} " in p for p in problems)}


@pytest.mark.parametrize("left", ["closed", "killed"])
@pytest.mark.parametrize("lost", ["body", "header"])
def test_a_journal_with_a_bad_sector_opens_without_what_is_on_it(
    tmp_path: Path, left: str, lost: str
) -> None:
    sectors = Sectors(SECTOR_BYTES)
    data, disks = tmp_path / "data", {name: tmp_path / name for name in ("closed", "killed")}
    disks["closed"].mkdir()
    # So large that no two are on the same sector.
    bodies = [b"%d " % number + FILLER for number in range(19)]
    bodies[9] = FILLER + MARKED + FILLER
    with Broker.open(data, disk=WornDisk(disks["closed"], sectors)) as broker:
        broker.declare(QueueSpec("q"))
        ids = [broker.publish("q", [Message(body)])[0].id for body in bodies]
        shutil.copytree(disks["closed"], disks["killed"])
    sectors.break_where(disks[left], MARKED)
    gone = {9}
    if lost == "header":
        # Header 40, checksum of the rows 8, one row 64, then the body.
        ((name, at),) = sectors.bad
        begins = at - len(FILLER) - 112
        sectors.bad = {(name, begins + 12)}
        if begins % SECTOR_BYTES > -(112 + len(bodies[8])) % ALIGNMENT:
            gone.add(8)  # its end is on the same sector
        for path in disks[left].glob("checkpoint*"):
            path.unlink()
    disk = WornDisk(disks[left], sectors)
    report = doctor.examine(data, disk=disk)
    assert not report.unusable
    assert named(ids, report.problems) == gone
    with Broker.open(data, disk=disk) as broker:
        got = [lease.body for lease in broker.lease("q", 100)]
        assert got == [body for number, body in enumerate(bodies) if number not in gone]
        assert named(ids, broker.health()["damage"]) >= gone
        broker.publish("q", [Message(b"it goes on")])
    with Broker.open(data, disk=disk) as broker:
        assert [lease.body for lease in broker.lease("q", 100)] == [b"it goes on"]


def test_a_bad_sector_at_the_end_of_a_killed_journal_is_told(tmp_path: Path) -> None:
    sectors = Sectors()
    (tmp_path / "disk").mkdir()
    with Broker.open(tmp_path / "data", disk=WornDisk(tmp_path / "disk", sectors)) as broker:
        broker.declare(QueueSpec("q"))
        for body in (b"first", b"second", FILLER + MARKED + FILLER):
            broker.publish("q", [Message(body)])
        shutil.copytree(tmp_path / "disk", tmp_path / "killed")
    sectors.break_where(tmp_path / "killed", MARKED)
    disk = WornDisk(tmp_path / "killed", sectors)
    (problem,) = doctor.examine(tmp_path / "data", disk=disk).problems
    assert "512 bytes at the end of the journal" in problem
    with Broker.open(tmp_path / "data", disk=disk) as broker:
        assert broker.health()["damage"] == [problem]
        assert [lease.body for lease in broker.lease("q", 100)] == [b"first", b"second"]


def test_a_checkpoint_that_cannot_be_read_is_done_without(tmp_path: Path) -> None:
    sectors = Sectors()
    (tmp_path / "disk").mkdir()
    disk = WornDisk(tmp_path / "disk", sectors)
    with Broker.open(tmp_path / "data", disk=disk) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"first")])
    (manifest,) = (tmp_path / "disk").glob("*.manifest")
    sectors.bad.add((manifest.name, 0))
    assert doctor.examine(tmp_path / "data", disk=disk).problems == [
        f"checkpoint: {manifest.name} does not match its checksum"
    ]
    with Broker.open(tmp_path / "data", disk=disk) as broker:
        assert [lease.body for lease in broker.lease("q")] == [b"first"]


def copy_of(seq: int, payload: bytes) -> Copy:
    return Copy(Key(STORE, 1, seq), payload, crc32c(payload))


def churn(device: FileDevice, first: int, rounds: int) -> None:
    """Write so much, and forget it, that what is old is moved."""
    for seq in range(first, first + rounds):
        device.put_many([copy_of(seq, bytes(100_000))])
        device.delete_many([Key(STORE, 1, seq)])


def test_a_device_keeps_and_names_what_it_cannot_read_and_moves_the_rest(tmp_path: Path) -> None:
    sectors = Sectors()
    spec = DeviceSpec(name="d", tier="t", durable=True, failure_domain="d", capacity_bytes=64 * MIB)
    device = FileDevice(spec, WornDisk(tmp_path, sectors), b"d" * 16, lambda: 0.0)
    device.put_many([copy_of(1, b"before"), copy_of(2, MARKED), copy_of(3, b"after")])
    keys = [Key(STORE, 1, seq) for seq in (1, 2, 3)]
    sectors.break_where(tmp_path, MARKED)
    churn(device, 100, 300)
    assert device.probe().damaged == (keys[1],)
    assert "1 damaged copies" in device.probe().detail
    assert device.get_many(keys) == [b"before", Lack.UNREADABLE, b"after"]
    assert {each.key for each in device.scan(STORE)} == set(keys)
    used = device.probe().used_bytes
    device.put_many([copy_of(2, MARKED)])
    churn(device, 1_000, 200)
    assert device.get_many(keys) == [b"before", MARKED, b"after"]
    assert device.probe().damaged == ()
    assert device.probe().used_bytes < used
    device.close()


def test_what_a_disk_cannot_read_is_made_anew_from_the_other_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sectors = Sectors()
    disks = {"a": sectors, "b": Sectors()}
    monkeypatch.setattr(opening, "FileDisk", lambda path: WornDisk(path, disks[path.name]))
    file = {"kind": "file", "capacity_bytes": 64 * MIB, "status": SOON, "stall_ms": 60_000}
    config = {
        "devices": {name: {**file, "directory": str(tmp_path / name)} for name in "ab"},
        "rules": [TO_A, TO_B],
        "upkeep_every_ms": 20,
    }
    with Broker.open(tmp_path / "data", config) as broker:
        broker.declare(QueueSpec("kept", cache_enabled=False))
        broker.declare(QueueSpec("passing"))
        (receipt,) = broker.publish("kept", [Message(MARKED, replicas=2)])
        name = name_of(*parse_id(receipt.id))
        wait_until_settled(broker, "moving")
        assert holdings(broker)[name].copies == {"a", "b"}
        sectors.break_where(tmp_path / "a", MARKED)
        while "copies_damaged" not in caplog.text:
            broker.publish("passing", [Message(bytes(100_000), importance=1) for _ in range(20)])
            wait_until_settled(broker, "moving")
            broker.ack("passing", [lease.token for lease in broker.lease("passing", 100)])
        wait_until(lambda: len(holdings(broker)[name].copies) == 2, "mending")
        wait_until_settled(broker, "mending")
        assert differences(broker) == {}
        port = broker.engine.devices.ports["a"]
        wait_until(lambda: port.probe().result().damaged == (), "telling")
        assert [lease.body for lease in broker.lease("kept")] == [MARKED]
