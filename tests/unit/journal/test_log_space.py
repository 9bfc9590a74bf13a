"""Space for later facts is there before a message is admitted; a full disk is no failure."""

from __future__ import annotations

import pytest

from ebbmq.errors import Overloaded
from ebbmq.journal.disk import MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.scan import Found, scan
from ebbmq.journal.segment import FIRST_POSITION, name_of

UUID = bytes(range(16))
SEGMENT = 4_096


def opened(disk: MemoryDisk, end: int = FIRST_POSITION) -> Log:
    return Log.open(disk, UUID, end, segment_bytes=SEGMENT, threaded=False)


def test_admit_preallocates_the_reserve() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.admit(100, 0)
    assert disk.names() == [name_of(1)]
    log.admit(100, 3 * SEGMENT)
    assert len(disk.names()) == 4
    assert all(disk.open(name).size() == SEGMENT for name in disk.names())


def test_a_reserve_is_enough_for_that_many_bytes_of_facts_on_a_full_disk() -> None:
    for reserve in (500, SEGMENT, 3 * SEGMENT, 5 * SEGMENT):
        disk = MemoryDisk()
        log = opened(disk)
        published = 0
        while published < 20:
            log.admit(700, reserve)
            log.append(1, 0, 1, published, [bytes(700)])
            published += 1
        disk.capacity = 0
        left = reserve
        while left >= 64:
            log.append(2, 0, 1, 0, [bytes(24)])
            left -= 64
        log.commit()
        assert log.failed is None


def publish_for_ever(log: Log, published: list[int]) -> None:
    while True:
        log.admit(500, 200)
        published.append(log.append(1, 0, 1, 0, [bytes(500)]))
        log.commit()


def test_a_full_disk_refuses_publishes_and_nothing_else() -> None:
    disk = MemoryDisk(capacity=3 * SEGMENT)
    log = opened(disk)
    published: list[int] = []
    with pytest.raises(Overloaded) as raised:
        publish_for_ever(log, published)
    assert raised.value.code == "disk_full"
    assert "memory" in raised.value.detail
    assert "acks go on" in raised.value.detail
    assert raised.value.action
    assert log.failed is None
    log.append(2, 0, 1, 0, [b"an ack"])
    log.commit()
    assert log.synced_position == log.position
    found = [item for item in scan(disk, UUID) if type(item) is Found]
    assert [item.header.kind for item in found] == [1] * len(published) + [2]


def test_publishes_go_on_when_there_is_space_again() -> None:
    disk = MemoryDisk(capacity=SEGMENT)
    log = opened(disk)
    with pytest.raises(Overloaded):
        log.admit(100, 2 * SEGMENT)
    disk.capacity = 10 * SEGMENT
    log.admit(100, 2 * SEGMENT)


def test_an_append_nobody_admitted_is_refused_when_there_is_no_segment_for_it() -> None:
    disk = MemoryDisk(capacity=SEGMENT)
    log = opened(disk)
    log.append(1, 0, 1, 0, [bytes(3_000)])
    with pytest.raises(Overloaded, match="disk_full"):
        log.append(1, 0, 1, 1, [bytes(3_000)])
    log.append(1, 0, 1, 2, [bytes(300)])
    log.commit()
    assert [item.header.first for item in scan(disk, UUID) if type(item) is Found] == [0, 2]


def test_a_large_record_that_finds_no_space_leaves_the_spare_as_it_was() -> None:
    disk = MemoryDisk(capacity=2 * SEGMENT)
    log = opened(disk)
    log.admit(100, SEGMENT)
    with pytest.raises(Overloaded):
        log.append(1, 0, 1, 0, [bytes(2 * SEGMENT)])
    log.append(1, 0, 1, 1, [bytes(3_000)])
    log.append(1, 0, 1, 2, [bytes(3_000)])
    log.commit()
    assert [item.header.first for item in scan(disk, UUID) if type(item) is Found] == [1, 2]


def test_no_space_for_the_first_segment_is_a_named_error() -> None:
    with pytest.raises(Overloaded, match=r"disk_full.*cannot be opened") as raised:
        opened(MemoryDisk(capacity=100))
    assert "leases and acks go on" not in raised.value.detail


def test_the_next_segment_is_preallocated_before_it_is_needed() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 0, 1, 0, [bytes(1_000)])
    log.commit()
    assert disk.names() == [name_of(1)]
    log.append(1, 0, 1, 1, [bytes(2_300)])
    log.commit()
    assert disk.names() == [name_of(1), name_of(2)]


def test_a_full_disk_does_not_disturb_commits() -> None:
    disk = MemoryDisk(capacity=SEGMENT)
    log = opened(disk)
    log.append(1, 0, 1, 0, [bytes(3_500)])
    log.commit()
    assert log.failed is None
    assert disk.names() == [name_of(1)]


def test_spares_above_the_need_are_given_back() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.admit(0, 10 * SEGMENT)
    log.commit()
    most = len(disk.names())
    assert most * SEGMENT > 10 * SEGMENT
    log.admit(0, 2 * SEGMENT)
    log.commit()
    assert 3 <= len(disk.names()) < most - 5
    log.admit(0, 0)
    log.commit()
    assert disk.names() == [name_of(1)]


def test_the_reserve_outlives_the_process() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.admit(100, 3 * SEGMENT)
    end = log.append(1, 0, 1, 0, [bytes(100)])
    log.write()
    names = disk.names()
    disk.kill()
    disk.capacity = 0
    log = opened(disk, end)
    assert disk.names() == names
    for number in range(10):
        log.append(1, 0, 1, number, [bytes(1_000)])
    log.close()


def test_spares_of_another_size_are_replaced() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.admit(0, 2 * SEGMENT)
    end = log.append(1, 0, 1, 0, [b"x"])
    log.close()
    log = Log.open(disk, UUID, end, segment_bytes=2 * SEGMENT, threaded=False)
    assert disk.names() == [name_of(1)]
    log.append(1, 0, 1, 1, [bytes(5_000)])
    log.close()
    assert [item.header.first for item in scan(disk, UUID) if type(item) is Found] == [0, 1]
