"""The old generation keeps what was relocated, and only grows by what it needs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq import limits
from ebbmq.errors import Overloaded
from ebbmq.journal.disk import MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.scan import Damaged, Found, Torn, scan, scan_old
from ebbmq.journal.segment import OFFSET_MASK, OLD, name_of

UUID = bytes(range(16))


def opened(disk: MemoryDisk, segment_bytes: int = 4_096) -> Log:
    return Log.open(disk, UUID, segment_bytes=segment_bytes, threaded=False)


def found(disk: MemoryDisk) -> list[bytes]:
    return [bytes(item.payload) for item in scan_old(disk, UUID) if type(item) is Found]


def test_a_relocated_record_is_read_where_it_was_put() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    places = [log.append_old(7, 1, 2, 3, [bytes([n]), bytes(n * 100)]) for n in range(30)]
    log.sync_old()
    for number, (segment, offset) in enumerate(places):
        assert segment & OLD
        assert log.read(segment, offset, 1 + number * 100) == bytes([number]) + bytes(number * 100)
    assert found(disk) == [bytes([number]) + bytes(number * 100) for number in range(30)]
    assert [item.header.first for item in scan(disk, UUID) if type(item) is Found] == []


def test_full_old_segments_are_sealed_and_can_be_deleted() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(7):
        log.append_old(7, 0, 1, number, [bytes(1_900)])
    infos = [info for info in log.segments() if info.old]
    assert [(info.number, info.sealed) for info in infos] == [
        (OLD | 1, True), (OLD | 2, True), (OLD | 3, True), (OLD | 4, False),
    ]  # fmt: skip
    assert disk.open(name_of(OLD | 1)).size() == infos[0].used_bytes
    log.delete_segment(OLD | 2)
    assert name_of(OLD | 2) not in disk.names()
    with pytest.raises(AssertionError, match="not sealed"):
        log.delete_segment(OLD | 4)
    assert len(found(disk)) == 5


def test_a_little_old_data_takes_little_space() -> None:
    disk = MemoryDisk()
    log = opened(disk, limits.SEGMENT_BYTES)
    log.append_old(7, 0, 1, 0, [bytes(100)])
    assert disk.open(name_of(OLD | 1)).size() <= 5 * limits.MIB
    log.close()
    assert disk.open(name_of(OLD | 1)).size() < 1_000


def test_a_record_larger_than_a_segment_is_relocated_too() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for size in (10, 10_000, 20):
        log.append_old(7, 0, 1, 0, [bytes(size)])
    log.sync_old()
    assert [len(payload) for payload in found(disk)] == [10, 10_000, 20]


def test_a_full_disk_refuses_relocation_and_nothing_else() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    disk.capacity = 4_096 + 2_000
    log.append_old(7, 0, 1, 0, [bytes(900)])
    with pytest.raises(Overloaded, match="disk_full"):
        log.append_old(7, 0, 1, 1, [bytes(1_900)])
    log.append(1, 0, 1, 0, [b"x"])
    log.commit()
    disk.capacity = 1 << 20
    log.append_old(7, 0, 1, 9, [b"again"])
    log.close()
    assert found(disk)[-1] == b"again"
    assert all(type(item) is Found for item in scan_old(disk, UUID))


def test_damage_in_the_middle_is_reported_and_the_end_is_torn() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    places = [log.append_old(7, 0, 1, number, [bytes([number]) * 500]) for number in range(5)]
    log.close()
    disk.flip(name_of(places[1][0]), places[1][1] + 5, 0)
    disk.flip(name_of(places[4][0]), places[4][1] + 5, 0)
    items = list(scan_old(disk, UUID))
    assert [type(item) for item in items] == [Found, Damaged, Found, Found, Torn]
    torn = items[4]
    assert type(torn) is Torn
    assert [header.first for header in torn.headers] == [4]


@given(st.lists(st.tuples(st.integers(0, 900), st.sampled_from("---skc")), max_size=30))
@settings(max_examples=150, deadline=None)
def test_everything_synced_is_there_after_any_crash(steps: list[tuple[int, str]]) -> None:
    disk = MemoryDisk()
    log = opened(disk, 2_048)
    safe: dict[tuple[int, int], bytes] = {}
    fresh: dict[tuple[int, int], bytes] = {}
    for number, (size, action) in enumerate(steps):
        payload = random.Random(number).randbytes(size)
        fresh[log.append_old(7, 0, 1, number, [payload])] = payload
        if action == "s":
            log.sync_old()
            safe |= fresh
        elif action in "kc":
            if action == "c":
                disk.crash(random.Random(size))
            else:
                disk.kill()
            log = opened(disk, 2_048)
            present = {
                (item.position >> 32, (item.position & OFFSET_MASK) + 40): bytes(item.payload)
                for item in scan_old(disk, UUID)
                if type(item) is Found
            }
            assert safe.items() <= present.items()
            assert present.items() <= (safe | fresh).items()
            fresh = present
    for (segment, offset), payload in safe.items():
        assert log.read(segment, offset, len(payload)) == payload


def test_records_before_a_position_are_not_read_again() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    assert log.old_position == 0
    log.append_old(7, 0, 1, 1, [b"before"])
    position = log.old_position
    for number in range(100):
        log.append_old(7, 0, 1, number, [bytes([number]) * 1_900])
    log.close()
    later = [bytes(item.payload) for item in scan_old(disk, UUID, position) if type(item) is Found]
    assert later == [bytes([number]) * 1_900 for number in range(100)]
