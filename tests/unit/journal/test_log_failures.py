"""A disk that fails ends the log for good; everybody is told, nothing is tried again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ebbmq.errors import ClosedBroker, StorageFailed
from ebbmq.journal.disk import Disk, FileDisk, MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.scan import Found, scan

if TYPE_CHECKING:
    from pathlib import Path

UUID = bytes(range(16))


def opened(disk: Disk, *, threaded: bool = False) -> Log:
    return Log.open(disk, UUID, segment_bytes=4_096, threaded=threaded)


def check_refusals(log: Log) -> None:
    for refused in (
        lambda: log.append(1, 0, 1, 0, [b"z"]),
        lambda: log.place(4_090),
        log.write,
        log.commit,
        lambda: log.append_old(1, 0, 1, 0, [b"z"]),
        log.sync_old,
        log.close,
    ):
        with pytest.raises(StorageFailed) as raised:
            refused()
        assert "young-0000000001.seg" in raised.value.detail
        assert "errno 5" in raised.value.detail
        assert "reopen" in raised.value.action


def test_a_failed_sync_is_final_and_told_to_every_waiter() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    safe = log.append(1, 0, 1, 0, [b"safe"])
    log.commit()
    told: list[StorageFailed | None] = []
    for number in range(3):
        log.when("synced", log.append(1, 0, 1, number, [b"x"]), told.append)
    disk.fail_sync_after(0)
    with pytest.raises(StorageFailed, match=r"syncing young-0000000001\.seg"):
        log.commit()
    assert [type(error) for error in told] == [StorageFailed] * 3
    log.when("synced", log.position, told.append)
    assert type(told[3]) is StorageFailed
    syncs = disk.syncs
    log.wait("synced", safe)
    check_refusals(log)
    assert log.failed is not None
    assert log.synced_position == safe
    assert disk.syncs == syncs, "a failed sync is never tried again"


def test_a_failed_write_is_final() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    position = log.append(1, 0, 1, 0, [b"x"])
    told: list[StorageFailed | None] = []
    log.when("synced", position, told.append)
    disk.fail_write_after(0)
    with pytest.raises(StorageFailed, match=r"writing young-0000000001\.seg"):
        log.wait("written", position)
    log.when("written", position, told.append)
    assert [type(error) for error in told] == [StorageFailed] * 2
    check_refusals(log)


def test_a_failed_sync_reaches_threads_that_wait() -> None:
    disk = MemoryDisk()
    log = opened(disk, threaded=True)
    disk.fail_sync_after(0)
    position = log.append(1, 0, 1, 0, [b"x"])
    with pytest.raises(StorageFailed, match="syncing"):
        log.wait("synced", position)
    with pytest.raises(StorageFailed, match="syncing"):
        log.wait("synced", position)
    check_refusals(log)


def test_a_reopened_log_has_everything_that_was_synced() -> None:
    for seed in range(10):
        disk = MemoryDisk()
        log = opened(disk)
        log.append(1, 0, 1, 0, [b"safe" * 200])
        log.commit()
        log.append(1, 0, 1, 1, [b"lost" * 200])
        disk.fail_sync_after(0)
        with pytest.raises(StorageFailed):
            log.commit()
        disk.crash(random.Random(seed))
        found = [item for item in scan(disk, UUID) if type(item) is Found]
        assert found[0].payload == b"safe" * 200
        log = Log.open(disk, UUID, found[-1].end, segment_bytes=4_096, threaded=False)
        log.append(1, 0, 1, 2, [b"next"])
        log.close()


def test_a_failed_sync_of_the_old_generation_is_final_too() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append_old(1, 0, 1, 0, [b"x"])
    disk.fail_sync_after(0)
    with pytest.raises(StorageFailed, match="old segment"):
        log.sync_old()
    with pytest.raises(StorageFailed):
        log.append(1, 0, 1, 0, [b"x"])


def test_a_disk_that_cannot_be_written_on_opening_has_a_named_error() -> None:
    disk = MemoryDisk()
    disk.fail_write_after(0)
    with pytest.raises(StorageFailed, match="Input/output"):
        opened(disk)


def append_and_wait_for_ever(log: Log) -> None:
    while True:
        log.wait("synced", log.append(1, 0, 1, 0, [b"x"]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_raises_leaves_nobody_waiting() -> None:
    log = opened(MemoryDisk(), threaded=True)

    def defect(_: object) -> None:
        raise ValueError("a defect")

    position = log.append(1, 0, 1, 0, [b"x"])
    log.when("synced", position, defect)
    with pytest.raises(StorageFailed, match="a defect"):
        append_and_wait_for_ever(log)
    with pytest.raises(StorageFailed, match="a defect"):
        log.close()


def test_a_failed_write_in_one_step_is_final_too() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    disk.fail_write_after(0)
    with pytest.raises(StorageFailed, match="writing"):
        log.append_written(1, 0, 1, 0, b"x")
    with pytest.raises(StorageFailed):
        log.append_written(1, 0, 1, 0, b"x")
    with pytest.raises(StorageFailed):
        log.append(1, 0, 1, 0, [b"x"])


def test_a_closed_log_takes_nothing_in_one_step() -> None:
    log = opened(MemoryDisk())
    log.close()
    with pytest.raises(ClosedBroker):
        log.append_written(1, 0, 1, 0, b"x")


def test_what_the_kernel_took_a_part_of_in_one_step_is_written_whole(
    tmp_path: Path,
) -> None:
    disk = FileDisk(tmp_path)
    log = opened(disk)
    file = log._active.file  # noqa: SLF001
    whole = file.put
    taken: list[int] = []

    def part(data: bytes, offset: int) -> int:
        taken.append(whole(data[:10], offset))
        return taken[-1]

    file.put = part  # type: ignore[method-assign]
    log.append_written(1, 0, 1, 0, b"x")
    assert taken == [10]
    log.close()
    assert len([item for item in scan(disk, UUID) if type(item) is Found]) == 1
