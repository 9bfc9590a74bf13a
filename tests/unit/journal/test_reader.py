"""Bodies are read by place, neighbours together, through few open files."""

from __future__ import annotations

import pytest

from ebbmq.errors import DamagedRecord
from ebbmq.journal.disk import File, MemoryDisk, MemoryFile
from ebbmq.journal.reader import OPEN_FILES_MAX, Reader
from ebbmq.journal.segment import OLD, name_of


class CountingFile(MemoryFile):
    reads: list[tuple[int, int]]

    def read(self, offset: int, nbytes: int) -> bytes:
        self.reads.append((offset, nbytes))
        return super().read(offset, nbytes)


class CountingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.opened: list[str] = []

    def open(self, name: str) -> CountingFile:
        self.opened.append(name)
        file = CountingFile(self, self._content(name))
        file.reads = self.reads
        return file


CONTENT = bytes(number * 7 % 256 for number in range(40_000))


def prepared(*numbers: int) -> CountingDisk:
    disk = CountingDisk()
    for number in numbers:
        file: File = disk.create(name_of(number), 0)
        file.write(0, [CONTENT])
    disk.opened.clear()
    return disk


def test_neighbours_are_read_with_one_call() -> None:
    disk = prepared(1)
    places = [(1, 100 + 50 * number, 50) for number in range(20)]
    found = Reader(disk).read_many(places)
    assert found == [CONTENT[offset : offset + length] for _, offset, length in places]
    assert disk.reads == [(100, 1_000)]


def test_results_come_in_the_order_asked_with_overlaps_and_repeats() -> None:
    disk = prepared(1, 2, OLD | 1)
    places = [(2, 500, 10), (1, 300, 5), (OLD | 1, 0, 3), (1, 290, 100), (1, 300, 5), (2, 0, 0)]
    found = Reader(disk).read_many(places)
    assert found == [CONTENT[offset : offset + length] for _, offset, length in places]


def test_a_place_that_ends_behind_the_last_one_is_read_to_its_end() -> None:
    disk = prepared(1)
    places = [(1, 0, 10), (1, 1_000, 500), (1, 1_200, 10)]
    found = Reader(disk).read_many(places)
    assert found == [CONTENT[offset : offset + length] for _, offset, length in places]


def test_a_wide_gap_is_not_read_over() -> None:
    disk = prepared(1)
    Reader(disk).read_many([(1, 0, 10), (1, 4_000, 10), (1, 20_000, 10), (1, 39_990, 10)])
    assert disk.reads == [(0, 4_010), (20_000, 10), (39_990, 10)]


def test_what_stands_between_neighbours_is_read_over() -> None:
    disk = prepared(1)
    places = [(1, 2_000 * number, 1_500) for number in range(20)]
    found = Reader(disk).read_many(places)
    assert found == [CONTENT[offset : offset + length] for _, offset, length in places]
    assert disk.reads == [(0, 39_500)]


def test_a_call_reads_a_bounded_stretch() -> None:
    disk = CountingDisk()
    disk.create(name_of(1), 0).write(0, [bytes(10 << 20)])
    places = [(1, 1_024 * number, 1_024) for number in range(10 << 10)]
    assert b"".join(Reader(disk).read_many(places)) == bytes(10 << 20)
    assert len(disk.reads) == 3
    assert sum(nbytes for _, nbytes in disk.reads) == 10 << 20


class SlowFile(MemoryFile):
    """Has only its first bytes in memory."""

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        return super().read_cached(offset, nbytes) if offset + nbytes <= 1_000 else None


class SlowDisk(MemoryDisk):
    def open(self, name: str) -> SlowFile:
        return SlowFile(self, self._content(name))


def test_who_must_not_wait_gets_what_is_in_memory_or_nothing() -> None:
    disk = SlowDisk()
    disk.create(name_of(1), 0).write(0, [CONTENT])
    reader = Reader(disk)
    here, there = [(1, 900, 50), (1, 10, 20)], [(1, 900, 50), (1, 990, 20)]
    assert reader.read_cached(here) == [CONTENT[900:950], CONTENT[10:30]]
    assert reader.read_cached(there) is None
    assert reader.read_many(there) == [CONTENT[900:950], CONTENT[990:1_010]]
    with pytest.raises(DamagedRecord):
        reader.read_cached([(2, 0, 10)])


def test_nothing_asked_reads_nothing() -> None:
    disk = prepared(1)
    assert Reader(disk).read_many([]) == []
    assert disk.reads == []


def test_a_short_read_is_damage_with_a_name() -> None:
    reader = Reader(prepared(1))
    with pytest.raises(DamagedRecord, match=r"young-0000000001\.seg") as raised:
        reader.read(1, 39_990, 20)
    assert "doctor" in raised.value.action
    with pytest.raises(DamagedRecord, match="only 0 bytes"):
        reader.read_many([(1, 40_000, 8)])


def test_a_missing_segment_is_damage_with_a_name() -> None:
    with pytest.raises(DamagedRecord, match=r"old-0000000003.seg.*No such file"):
        Reader(prepared()).read(OLD | 3, 0, 1)


def test_few_files_are_kept_open_and_the_least_used_go() -> None:
    numbers = range(1, OPEN_FILES_MAX + 2)
    disk = prepared(*numbers)
    reader = Reader(disk)
    for number in numbers[:-1]:
        reader.read(number, 0, 1)
    reader.read(1, 0, 1)
    assert len(disk.opened) == OPEN_FILES_MAX
    reader.read(numbers[-1], 0, 1)
    disk.opened.clear()
    reader.read(1, 0, 1)
    reader.read(2, 0, 1)
    assert disk.opened == [name_of(2)]


def test_a_forgotten_segment_is_opened_again() -> None:
    disk = prepared(1)
    reader = Reader(disk)
    reader.read(1, 0, 1)
    reader.forget(1)
    reader.forget(1)
    reader.read(1, 0, 1)
    assert disk.opened == [name_of(1)] * 2
