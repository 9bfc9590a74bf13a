"""Both disks keep the same promises; the one in memory can also be crashed."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from ebbmq.journal.disk import Disk, FileDisk, MemoryDisk
from ebbmq.journal.sectors import SECTOR_BYTES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["file", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return FileDisk(tmp_path) if request.param == "file" else MemoryDisk()


def test_a_created_file_is_preallocated_zeros(disk: Disk) -> None:
    file = disk.create("a", 5_000)
    assert file.size() == 5_000
    assert file.read(0, 6_000) == bytes(5_000)
    assert disk.names() == ["a"]


@pytest.mark.parametrize("count", [1, 3, 2_500])
@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_chunks_are_written_back_to_back(disk: Disk, count: int, size: int) -> None:
    if count * size > 10_000_000:
        size = 100
    chunks = [bytes([number % 256]) * size for number in range(count)]
    file = disk.create("a", 100)
    assert file.write(50, chunks) == count * size
    assert disk.open("a").read(50, count * size + 50)[: count * size] == b"".join(chunks)


def test_a_read_behind_the_end_is_short(disk: Disk) -> None:
    file = disk.create("a", 0)
    file.write(0, [b"abc"])
    assert file.read(1, 10) == b"bc"
    assert file.read(3, 10) == b""


def test_what_is_read_without_waiting_is_all_that_was_asked_for_or_nothing(disk: Disk) -> None:
    file = disk.create("a", 0)
    file.write(0, [b"abcdef"])
    assert file.read_cached(1, 3) in {b"bcd", None}
    assert file.read_cached(4, 3) is None


def test_allocate_and_truncate_change_the_size(disk: Disk) -> None:
    file = disk.create("a", 10)
    file.write(0, [b"0123456789"])
    file.allocate(20)
    assert file.read(0, 30) == b"0123456789" + bytes(10)
    file.truncate(4)
    file.sync()
    assert file.size() == 4
    file.allocate(8)
    assert file.read(0, 8) == b"0123" + bytes(4)


def test_rename_replaces_and_delete_removes(disk: Disk) -> None:
    disk.create("a", 0).write(0, [b"new"])
    disk.create("b", 0).write(0, [b"old"])
    disk.rename("a", "b")
    assert disk.names() == ["b"]
    assert disk.open("b").read(0, 9) == b"new"
    disk.delete("b")
    assert disk.names() == []


def test_a_missing_file_is_not_found(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    with pytest.raises(FileNotFoundError):
        disk.delete("a")


def test_a_name_is_created_once(disk: Disk) -> None:
    disk.create("a", 0)
    with pytest.raises(FileExistsError):
        disk.create("a", 0)


def test_an_open_file_outlives_its_name(disk: Disk) -> None:
    file = disk.create("a", 0)
    file.write(0, [b"abc"])
    disk.delete("a")
    assert file.read(0, 3) == b"abc"


def test_there_is_free_space(disk: Disk) -> None:
    assert disk.free_bytes() > 0


def test_a_read_only_disk_refuses_writes(tmp_path: Path) -> None:
    FileDisk(tmp_path).create("a", 10)
    file = FileDisk(tmp_path, read_only=True).open("a")
    assert file.read(0, 10) == bytes(10)
    with pytest.raises(OSError, match="descriptor"):
        file.write(0, [b"x"])


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileDisk(tmp_path / "none")


def test_a_file_that_cannot_be_allocated_leaves_no_name(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    with pytest.raises(OSError, match=r"File too large|No space"):
        disk.create("a", 1 << 60)
    assert disk.names() == []


def test_a_crash_keeps_synced_bytes_and_some_of_the_others() -> None:
    outcomes = set()
    for seed in range(40):
        disk = MemoryDisk()
        file = disk.create("a", 4 * SECTOR_BYTES)
        file.write(0, [b"s" * SECTOR_BYTES])
        file.sync()
        file.write(SECTOR_BYTES, [b"u" * SECTOR_BYTES * 3])
        disk.crash(random.Random(seed))
        data = disk.open("a").read(0, 4 * SECTOR_BYTES)
        assert data[:SECTOR_BYTES] == b"s" * SECTOR_BYTES
        sectors = [data[at : at + SECTOR_BYTES] for at in range(SECTOR_BYTES, len(data), 512)]
        assert all(sector in (bytes(512), b"u" * 512) for sector in sectors)
        outcomes.add(tuple(sector[0] for sector in sectors))
    assert len(outcomes) == 8


def test_the_same_seed_crashes_to_the_same_bytes() -> None:
    def crashed() -> bytes:
        disk = MemoryDisk()
        disk.create("a", 50_000).write(0, [b"x" * 50_000])
        disk.crash(random.Random(7))
        return disk.open("a").read(0, 50_000)

    assert crashed() == crashed()


def test_an_overwrite_that_was_not_synced_may_be_undone() -> None:
    seen = set()
    for seed in range(20):
        disk = MemoryDisk()
        file = disk.create("a", 10)
        file.write(0, [b"before"])
        file.sync()
        file.write(0, [b"after!"])
        disk.crash(random.Random(seed))
        seen.add(disk.open("a").read(0, 6))
    assert seen == {b"before", b"after!"}


def test_a_cut_that_was_not_synced_is_there_or_not_as_a_whole() -> None:
    seen = set()
    for seed in range(20):
        disk = MemoryDisk()
        file = disk.create("a", 2_000)
        file.write(0, [b"x" * 2_000])
        file.sync()
        file.truncate(700)
        disk.crash(random.Random(seed))
        data = disk.open("a").read(0, 3_000)
        assert data == b"x" * len(data)
        seen.add(len(data))
    assert seen == {700, 2_000}


def test_a_kill_keeps_what_was_written_and_ends_open_files() -> None:
    disk = MemoryDisk()
    file = disk.create("a", 0)
    file.write(0, [b"abc"])
    disk.kill()
    assert disk.open("a").read(0, 3) == b"abc"
    with pytest.raises(OSError, match="descriptor"):
        file.read(0, 3)


def test_a_full_disk_refuses_to_grow() -> None:
    disk = MemoryDisk(capacity=100)
    file = disk.create("a", 60)
    for grow in (
        lambda: disk.create("b", 60),
        lambda: file.allocate(101),
        lambda: file.write(90, [bytes(20)]),
    ):
        with pytest.raises(OSError, match="space") as raised:
            grow()
        assert raised.value.errno == errno.ENOSPC
    assert disk.names() == ["a"]
    assert disk.free_bytes() == 40


def test_one_sync_fails_and_what_it_should_have_saved_stays_unsafe() -> None:
    survived = set()
    for seed in range(20):
        disk = MemoryDisk()
        file = disk.create("a", 10)
        disk.fail_sync_after(1)
        file.sync()
        file.write(0, [b"lost?"])
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        disk.crash(random.Random(seed))
        survived.add(disk.open("a").read(0, 5))
    assert survived == {bytes(5), b"lost?"}


def test_one_write_fails() -> None:
    disk = MemoryDisk()
    file = disk.create("a", 10)
    disk.fail_write_after(1)
    file.write(0, [b"a"])
    with pytest.raises(OSError, match="Input/output"):
        file.write(1, [b"b"])
    assert file.read(0, 2) == b"a\0"


def test_a_flipped_bit_is_flipped_for_good() -> None:
    disk = MemoryDisk()
    file = disk.create("a", 10)
    file.write(0, [b"a"])
    disk.flip("a", 0, 1)
    assert file.read(0, 1) == b"c"
    disk.crash(random.Random(0))
    assert disk.open("a").read(0, 1) in (b"c", b"\2")


def test_what_is_passed_over_as_blank_is_blank(disk: Disk) -> None:
    file = disk.create("a", 4 << 20)
    written = (0, 700_000, 3_000_000)
    for offset in written:
        file.write(offset, [b"data"])
    offset, seen = 0, b""
    while (at := file.data_from(offset)) < file.size():
        seen += bytes(at - offset) + file.read(at, 4_096)
        offset = len(seen)
    seen += bytes(file.size() - len(seen))
    assert seen == file.read(0, 4 << 20)


def test_nothing_is_looked_for_behind_the_end(disk: Disk) -> None:
    file = disk.create("a", 5_000)
    assert file.data_from(5_000) == 5_000
