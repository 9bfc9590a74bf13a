"""A disk that is full, read-only or broken: refusals by name, and nothing confirmed is lost."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from ebbmq.errors import EbbError, Overloaded, StorageFailed
from tests.crash.faults import DataDisk, Fault, FaultyDisk
from tests.crash.mounts import enlarge, run, tmpfs
from tests.crash.server import ROOT
from tests.crash.story import Story
from tests.crash.worker import CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq.journal.disk import File
    from tests.crash.faults import Operation
    from tests.crash.server import Server

pytestmark = pytest.mark.crash

Refusal = TypeVar("Refusal", bound=EbbError)

BODY = bytes(2_000)
PATIENCE_S = 30.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "mnt", 2 << 20) as mountpoint:
        yield mountpoint


def fill(broker: Broker, batch: int) -> list[bytes]:
    """Publish until the disk is full; returns what was confirmed."""
    confirmed, error = publish_until(broker, Overloaded, batch)
    assert error.code == "disk_full"
    assert error.action
    return confirmed


def publish_until(
    broker: Broker,
    expected: type[Refusal],
    batch: int,
    body: bytes = BODY,
    ttl_ms: int | None = None,
) -> tuple[list[bytes], Refusal]:
    confirmed: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        assert time.monotonic() < deadline, f"no {expected.__name__}"
        bodies = [b"%d.%d " % (number, i) + body for i in range(batch)]
        try:
            broker.publish("q", [Message(b, ttl_ms=ttl_ms) for b in bodies], confirm="synced")
        except expected as error:
            return confirmed, error
        confirmed += bodies
    raise AssertionError


def everything(broker: Broker) -> list[bytes]:
    return [lease.body for lease in broker.lease("q", count=10_000)]


@pytest.mark.parametrize("batch", [1, 20])
def test_on_a_full_disk_publishes_are_refused_and_leases_and_acks_go_on(
    small_disk: Path, batch: int
) -> None:
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        confirmed = fill(broker, batch)
        for _ in range(10):  # a checkpoint that found no room gives back what it had taken
            confirmed += fill(broker, batch)
        half = broker.lease("q", count=len(confirmed) // 2)
        assert [lease.body for lease in half] == confirmed[: len(half)]
        for lease in half:
            broker.ack("q", [lease.token], confirm="synced")
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        assert everything(broker) == confirmed[len(half) :]


def test_on_a_full_disk_every_message_can_be_acked_one_by_one(small_disk: Path) -> None:
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        broker.declare(QueueSpec("q", retry_delay_ms=0, max_attempts=0))
        small = [b"%d" % number for number in range(3_000)]
        broker.publish("q", [Message(body) for body in small], confirm="synced")
        confirmed = small + fill(broker, 1)
        for _ in confirmed:
            (lease,) = broker.lease("q")
            broker.ack("q", [lease.token])
        assert sum(broker.stats("q")["depth"].values()) == 0
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        assert everything(broker) == []


def test_a_batch_that_does_not_fit_leaves_nothing_behind(small_disk: Path) -> None:
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"before")])
        with pytest.raises(Overloaded):
            broker.publish("q", [Message(BODY) for _ in range(3_000)])
        assert everything(broker) == [b"before"]
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        assert broker.stats("q")["depth"]["leased"] == 1
        assert broker.stats("q")["depth"]["ready"] == 0


def test_on_a_full_disk_removals_wait_and_are_on_record_once_there_is_space(
    small_disk: Path,
) -> None:
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        broker.declare(QueueSpec("idle"))
        expiring = [Message(b"expires %d" % number, ttl_ms=400) for number in range(2_000)]
        receipts = broker.publish("q", expiring, confirm="synced")
        fill(broker, 1)
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(512)):
                pass
        deadline = time.monotonic() + PATIENCE_S
        while broker.stats("q")["totals"]["expired"] < len(receipts):
            assert time.monotonic() < deadline
            broker.lease("idle", wait_ms=10)
        with contextlib.suppress(EbbError):
            broker.removals("q")
        (lease,) = broker.lease("q")
        broker.ack("q", [lease.token], confirm="synced")
        ballast.unlink()
        while len(broker.removals("q")) < len(receipts):
            assert time.monotonic() < deadline, "the removals were never written"
            broker.lease("idle", wait_ms=10)
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        assert {r.id for r in broker.removals("q")} == {receipt.id for receipt in receipts}


def test_space_comes_back_when_consumers_catch_up(small_disk: Path) -> None:
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        broker.declare(QueueSpec("idle"))
        fill(broker, 10)
        leases = broker.lease("q", count=10_000)
        broker.ack("q", [lease.token for lease in leases], confirm="synced")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                broker.publish("q", [Message(BODY)] * 100)
                break
            except Overloaded:
                assert time.monotonic() < deadline
                broker.lease("idle", wait_ms=10)


def test_every_promise_holds_when_the_disk_fills_up_and_the_process_is_killed(
    tmp_path: Path, small_disk: Path, server: Server
) -> None:
    story = Story(tmp_path, server, 1, small_disk / "data", hands_back=False)
    for kill_after_s in (0.5, 0.8, 0.3):
        story.live(kill_after_s=kill_after_s, calls=100_000)
    enlarge(small_disk, 64 * limits.MIB)
    assert story.verdict() == []


def test_a_read_only_file_system_is_refused_by_name(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mnt", 2 << 20) as mountpoint:
        with Broker.open(mountpoint / "data", config=CONFIG) as broker:
            broker.declare(QueueSpec("q"))
            broker.publish("q", [Message(b"kept")])
        assert run("mount", "-o", "remount,ro", str(mountpoint)).returncode == 0
        for path in (mountpoint / "data", mountpoint / "other"):
            with pytest.raises(StorageFailed) as caught:
                Broker.open(path)
            assert str(path) in caught.value.detail
            assert caught.value.action
        assert run("mount", "-o", "remount,rw", str(mountpoint)).returncode == 0
        with Broker.open(mountpoint / "data", config=CONFIG) as broker:
            assert everything(broker) == [b"kept"]


@pytest.mark.parametrize("left_bytes", [0, 40_960])
def test_on_a_full_disk_a_new_directory_is_refused_by_name_until_there_is_space(
    small_disk: Path, left_bytes: int
) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4_096)):
            pass
    os.truncate(ballast, ballast.stat().st_size - left_bytes)
    for _ in range(2):
        with pytest.raises(Overloaded) as caught:
            Broker.open(small_disk / "data", config=CONFIG)
        assert caught.value.code == "disk_full"
        assert "cannot be opened" in caught.value.detail
        assert str(small_disk / "data") in caught.value.detail
        assert caught.value.action
    ballast.unlink()
    with Broker.open(small_disk / "data", config=CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"first")])
        assert everything(broker) == [b"first"]


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_failed_write_or_sync_stops_intake_and_is_never_tried_again(
    tmp_path: Path, operation: str
) -> None:
    fault = Fault(operation, "before", "young-", 12, errno.EIO)  # type: ignore[arg-type]  # a name
    disk = FaultyDisk.real(tmp_path, fault)
    broker = Broker.open(tmp_path, config=CONFIG, disk=disk)
    broker.declare(QueueSpec("q"))
    confirmed, error = publish_until(broker, StorageFailed, 1, b"")
    assert error.action
    done = disk.count
    for _ in range(3):
        with pytest.raises(StorageFailed):
            broker.publish("q", [Message(b"refused")], confirm="memory")
    with pytest.raises(StorageFailed):
        broker.close()
    assert disk.count == done
    with Broker.open(tmp_path, config=CONFIG) as broker:
        got = everything(broker)
        assert got[: len(confirmed)] == confirmed
        assert got[len(confirmed) :] in ([], [b"%d.0 " % len(confirmed)])


@pytest.mark.parametrize(
    ("operation", "error"),
    [("sync", errno.EIO), ("sync", errno.ENOSPC), ("write", errno.EIO)],
)
def test_a_removals_log_that_fails_stops_intake_and_is_never_tried_again(
    tmp_path: Path, operation: Operation, error: int
) -> None:
    disk = FaultyDisk.real(tmp_path, Fault(operation, "before", "removals.", 2, error))
    broker = Broker.open(tmp_path, config=CONFIG, disk=disk)
    broker.declare(QueueSpec("q"))
    confirmed, failure = publish_until(broker, StorageFailed, 10, b"", ttl_ms=1)
    assert "the removals log" in failure.detail
    told = broker.health()
    assert not told["ready"]
    assert "the removals log" in told["problems"][0]
    with pytest.raises(StorageFailed):
        broker.publish("q", [Message(b"refused")], confirm="memory")
    with pytest.raises(StorageFailed):
        broker.close()
    assert disk.count == 2
    with Broker.open(tmp_path, config=CONFIG) as broker:
        while sum(broker.stats("q")["depth"].values()):
            broker.lease("q", wait_ms=10)
        assert len(broker.removals("q", count=10_000)) >= len(confirmed)


class DefectiveDisk(DataDisk):
    """Fails in a way that no disk may."""

    def create(self, name: str, nbytes: int) -> File:
        if name.startswith("checkpoint-"):
            raise LookupError(name)
        return super().create(name, nbytes)


def test_a_thread_that_dies_stops_intake_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker.open(tmp_path, config=CONFIG, disk=DefectiveDisk(tmp_path))
    broker.declare(QueueSpec("q"))
    _, failure = publish_until(broker, StorageFailed, 1, b"")
    assert "ebbmq-upkeep died of LookupError" in failure.detail
    assert "ebbmq-upkeep" in broker.health()["problems"][0]
    (told,) = [record for record in caplog.records if "thread_died" in record.getMessage()]
    assert told.exc_info is not None
    with pytest.raises(StorageFailed):
        broker.close()


@pytest.mark.parametrize("when", [3, 9, 20])
def test_everything_confirmed_survives_an_eio_of_the_kernel_on_fdatasync(
    tmp_path: Path, server: Server, when: int
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    story = Story(tmp_path, server, seed=when)
    story.live(calls=40)
    job = msgspec.structs.replace(story.job(), calls=2_000)
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync",
         "-e", f"inject=fdatasync:error=EIO:when={when}+",
         sys.executable, "-m", "tests.crash.worker", msgspec.json.encode(job).decode()],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if "ptrace" in done.stderr and "not permitted" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert "StorageFailed" in done.stderr
    story.ended("kill")
    assert story.verdict() == []
