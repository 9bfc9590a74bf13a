"""A journal beside the wrong store.json: refused by name, and nothing of it is erased."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import StorageFailed
from ebbmq.journal import belonging
from ebbmq.journal.disk import FileDisk, MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import name_of
from ebbmq.node import doctor
from ebbmq.node.directory import Identity, decode
from tests.crash.faults import Fault, FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.crash.faults import Moment, Operation

UUID = b"u" * 16
SEGMENT = 4_096
COUNT = 20


@pytest.fixture(params=["closed", "killed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with messages, as its broker left it."""
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"%d" % number) for number in range(COUNT)])
        shutil.copytree(directory, copy)
    return copy if request.param == "killed" else directory


def contents(directory: Path) -> dict[str, bytes]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def set_identity(directory: Path, uuid: bytes) -> None:
    """Write a store.json as those were that have no checksum."""
    (directory / "store.json").write_bytes(msgspec.json.encode(Identity(uuid, 1)))


def test_a_store_without_a_checksum_of_its_identity_opens(store: Path) -> None:
    set_identity(store, decode((store / "store.json").read_bytes()).uuid)
    assert doctor.examine(store).clean
    with Broker.open(store) as broker:
        assert len(broker.lease("q", COUNT)) == COUNT


@pytest.mark.parametrize("bit", [0, 61, 127])
def test_a_journal_of_another_store_is_refused_and_nothing_is_erased(store: Path, bit: int) -> None:
    right = (store / "store.json").read_bytes()
    uuid = bytearray(decode(right).uuid)
    uuid[bit >> 3] ^= 1 << (bit & 7)
    set_identity(store, bytes(uuid))
    before = contents(store)
    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"no record of the store that store\.json names"):
            Broker.open(store)
    report = doctor.examine(store)
    assert report.unusable
    assert len(report.problems) == 1
    after = contents(store)
    assert {name: after[name] for name in before} == before
    (store / "store.json").write_bytes(right)
    with Broker.open(store) as broker:
        assert len(broker.lease("q", COUNT)) == COUNT


def test_doctor_ends_with_2_beside_another_stores_identity(store: Path, tmp_path: Path) -> None:
    Broker.open(tmp_path / "other").close()
    shutil.copy(tmp_path / "other" / "store.json", store / "store.json")
    command = [sys.executable, "-m", "ebbmq.cli", "doctor", "--data", str(store)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "no record of the store" in ran.stdout
    assert "unusable" in ran.stdout


@pytest.mark.parametrize("written", range(0, HEADER_BYTES + 1, 5))
def test_a_store_whose_first_opening_was_cut_short_opens(tmp_path: Path, written: int) -> None:
    Broker.open(tmp_path / "other").close()
    link = (tmp_path / "other" / "journal" / name_of(1)).read_bytes()[:written]
    Broker.open(tmp_path / "data").close()
    for path in [*(tmp_path / "data").glob("checkpoints/*"), *(tmp_path / "data").glob("j*/*")]:
        path.unlink()
    (tmp_path / "data" / "journal" / name_of(1)).write_bytes(link.ljust(SEGMENT, b"\0"))
    set_identity(tmp_path / "data", decode((tmp_path / "data" / "store.json").read_bytes()).uuid)
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"first")])
    with Broker.open(tmp_path / "data") as broker:
        assert [lease.body for lease in broker.lease("q")] == [b"first"]


def test_a_record_torn_behind_the_first_link_does_not_make_a_log_anothers(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    log = Log.open(disk, UUID, segment_bytes=SEGMENT, threaded=False)
    log.close()
    disk.open(name_of(1)).write(HEADER_BYTES, [b"half of a record " * 9])
    belonging.check(disk, UUID, has_log=True)
    with pytest.raises(StorageFailed):
        belonging.check(disk, UUID[::-1].replace(b"u", b"v"), has_log=True)


def test_one_record_anywhere_shows_whose_a_log_is() -> None:
    disk = MemoryDisk()
    log = Log.open(disk, UUID, segment_bytes=SEGMENT, threaded=False)
    for number in range(30):
        log.append(1, 1, 1, number, [bytes(500)])
    log.close()
    segments = [name for name in disk.names() if disk.open(name).read(0, 1) != b"\0"]
    assert len(segments) > 2
    for name in segments:
        disk.flip(name, 4, 1)
    belonging.check(disk, UUID, has_log=True)


def delete(store: Path) -> None:
    shutil.rmtree(store / "journal")


def delete_with_checkpoints(store: Path) -> None:
    shutil.rmtree(store / "journal")
    shutil.rmtree(store / "checkpoints")


def empty(store: Path) -> None:
    for part in ("journal", "checkpoints"):
        for path in (store / part).iterdir():
            path.unlink()


def cut_to_nothing(store: Path) -> None:
    for path in (store / "journal").iterdir():
        path.write_bytes(b"")


def overwrite_with_zeros(store: Path) -> None:
    for path in (store / "journal").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "damage", [delete, delete_with_checkpoints, empty, cut_to_nothing, overwrite_with_zeros]
)
def test_a_store_whose_log_is_gone_is_refused_until_it_is_put_back(
    store: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(store, tmp_path / "kept")
    damage(store)
    before = contents(store)
    report = doctor.examine(store)
    assert report.unusable
    assert "holds no log" in report.problems[0]
    assert contents(store) == before
    for _ in range(2):
        with pytest.raises(StorageFailed, match="restore a backup"):
            Broker.open(store)
    after = contents(store)
    assert {name: after[name] for name in before} == before
    for part in ("journal", "checkpoints"):
        shutil.rmtree(store / part)
        shutil.copytree(tmp_path / "kept" / part, store / part)
    with Broker.open(store) as broker:
        assert len(broker.lease("q", COUNT)) == COUNT


def test_copies_on_a_device_outlive_the_log_of_their_store(tmp_path: Path) -> None:
    directory, kept = tmp_path / "data", tmp_path / "kept"
    config = {"devices": {"hdd": {"kind": "file", "capacity_bytes": 1 << 24}}}
    with Broker.open(directory, config) as broker:
        broker.declare(QueueSpec("q", min_copies=2))
        broker.publish("q", [Message(b"%d" % number) for number in range(COUNT)])
    shutil.copytree(directory, kept)
    empty(directory)
    with pytest.raises(StorageFailed, match="holds no log"):
        Broker.open(directory, config)
    for part in ("journal", "checkpoints"):
        shutil.copytree(kept / part, directory / part, dirs_exist_ok=True)
    with Broker.open(directory, config) as broker:
        assert len(broker.lease("q", COUNT)) == COUNT
        assert {each.name: each.copies for each in broker.devices()}["hdd"] == COUNT


def test_a_store_without_checkpoints_opens(store: Path) -> None:
    shutil.rmtree(store / "checkpoints")
    assert doctor.examine(store).clean
    with Broker.open(store) as broker:
        assert len(broker.lease("q", COUNT)) == COUNT


def test_checkpoints_without_identity_and_journal_are_no_new_store(store: Path) -> None:
    Broker.open(store).close()
    delete(store)
    (store / "store.json").unlink()
    with pytest.raises(StorageFailed, match=r"store\.json is missing"):
        Broker.open(store)


@pytest.mark.parametrize("operation", ["create", "write", "sync"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_store_whose_first_opening_failed_opens_as_new(
    tmp_path: Path, operation: Operation, moment: Moment
) -> None:
    fault = Fault(operation, moment, "young-", error=errno.EIO)
    with pytest.raises(StorageFailed):
        Broker.open(tmp_path, disk=FaultyDisk.real(tmp_path, fault))
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"first")])


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_store_whose_first_openings_failed_one_after_the_other_opens_as_new(
    tmp_path: Path, nth: int
) -> None:
    """The second one erases the LINK that is all there is, and may not come to write another."""
    for number in (2, nth, nth):
        fault = Fault("write", "before", "young-", number, errno.EIO)
        with pytest.raises(StorageFailed):
            Broker.open(tmp_path, disk=FaultyDisk.real(tmp_path, fault))
    Broker.open(tmp_path).close()


def test_a_backup_of_an_empty_store_opens(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.backup(tmp_path / "backup")
    assert doctor.examine(tmp_path / "backup").clean
    with Broker.open(tmp_path / "backup") as broker:
        assert broker.queues() == []


def test_a_store_is_told_from_others_and_stays_the_same_without_its_uuid(tmp_path: Path) -> None:
    def told(name: str) -> str:
        with Broker.open(tmp_path / name) as broker:
            broker.declare(QueueSpec("q"))
            found: str = broker.stats("q")["store_id"]
            assert broker.engine.directory.identity.uuid.hex()[:8] not in found
        return found

    assert told("a") == told("a") != told("b")
