"""A store that cannot be opened is let go of: no thread, no file and no lock is left behind."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import EbbError, InvalidSpec, StorageFailed
from ebbmq.node.clock import SystemClock
from ebbmq.testing import ManualClock
from tests.crash.faults import Fault, FaultyDisk
from tests.crash.worker import CONFIG

if TYPE_CHECKING:
    from tests.crash.faults import Operation

pytestmark = pytest.mark.crash

DEVICES: dict[str, Any] = {"devices": {"second": {"kind": "file", "capacity_bytes": 1 << 26}}}
BODIES = [b"%d" % number for number in range(50)]
WITH_DEVICE: dict[str, Any] = {**CONFIG, **DEVICES}


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("ebbmq")}


def open_files(directory: Path) -> list[str]:
    """Files below a directory that this process has open; directories do not count."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            path = entry.readlink()
        except FileNotFoundError:
            continue
        if path.is_relative_to(directory) and not path.is_dir():
            found.append(str(path))
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it, with something to be put back, cut off and removed."""
    path, copy = tmp_path_factory.mktemp("alive"), tmp_path_factory.mktemp("killed") / "data"
    with Broker.open(path, config=WITH_DEVICE) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"gone", ttl_ms=1)])
        broker.publish("q", [Message(body, replicas=2) for body in BODIES])
        shutil.copytree(path, copy)
    return copy


def copied(killed: Path, path: Path) -> Path:
    shutil.copytree(killed, path)
    return path


def bodies(broker: Broker) -> list[bytes]:
    return [message.body for message in broker.peek("q", count=100) if message.body != b"gone"]


def assert_let_go(path: Path, threads_before: set[threading.Thread]) -> None:
    """Called with the error at hand: nothing is closed just because that is forgotten."""
    assert threads() == threads_before
    assert open_files(path) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["write", "sync", "create", "allocate", "truncate"])
def test_whatever_operation_fails_nothing_stays_open(
    tmp_path: Path, killed: Path, operation: Operation, code: int
) -> None:
    reached = nth = 1
    while nth <= reached:
        path = copied(killed, tmp_path / str(nth))
        disk = FaultyDisk.real(path, Fault(operation, "before", "", nth, code))
        before = threads()
        try:
            broker = Broker.open(path, config=WITH_DEVICE, disk=disk)
        except EbbError:
            assert_let_go(path, before)
            reached = nth + 1
        else:
            reached = max(reached, disk.count)
            with contextlib.suppress(EbbError):  # it may have failed since
                broker.close()
        with Broker.open(path, config=WITH_DEVICE) as again:
            assert bodies(again) == BODIES
        nth += 1


def test_a_feed_that_cannot_be_leaves_nothing_open(tmp_path: Path, killed: Path) -> None:
    path, before = copied(killed, tmp_path / "data"), threads()
    with pytest.raises(InvalidSpec, match=r"feed\.lake") as caught:
        Broker.open(path, config={**WITH_DEVICE, "feed": {"lake": "ftp://nowhere"}})
    assert_let_go(path, before)
    assert caught.value.code == "invalid_spec"
    with Broker.open(path, config=WITH_DEVICE) as again:
        assert bodies(again) == BODIES


def test_a_decisions_log_that_cannot_be_leaves_nothing_open(tmp_path: Path, killed: Path) -> None:
    path, before = copied(killed, tmp_path / "data"), threads()
    shutil.rmtree(path / "decisions")
    (path / "decisions").write_bytes(b"not a directory")
    clock = ManualClock(SystemClock().wall_ms())
    with pytest.raises(StorageFailed, match="cannot be opened") as caught:
        Broker.open(path, config=WITH_DEVICE, clock=clock)
    assert_let_go(path, before)
    assert "decisions" in caught.value.detail
    clock.advance(60_000)
    (path / "decisions").unlink()
    with Broker.open(path, config=WITH_DEVICE) as again:
        assert bodies(again) == BODIES


def test_what_fails_while_closing_does_not_hide_what_failed_first(
    tmp_path: Path, killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, writes = {**WITH_DEVICE, "feed": {"lake": "ftp://nowhere"}}, 1 << 30
    for name in ("counted", "faulty"):
        path, before = copied(killed, tmp_path / name), threads()
        # The last write of the first round, which closing made, fails in the second.
        disk = FaultyDisk.real(path, Fault("write", "before", "young-", writes, errno.EIO))
        with pytest.raises(InvalidSpec, match=r"feed\.lake"):
            Broker.open(path, config=config, disk=disk)
        assert_let_go(path, before)
        writes = disk.count
    assert "not_closed" in caplog.text
