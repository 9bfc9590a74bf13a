"""Torn tails end a log, damage in the middle does not, and nothing is ever invented."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from ebbmq.errors import StorageFailed
from ebbmq.journal import record
from ebbmq.journal.disk import MemoryDisk
from ebbmq.journal.found import Begun, Damaged, Found, Torn
from ebbmq.journal.log import Log
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.scan import scan, truncate_tail, whole
from ebbmq.journal.segment import FIRST_POSITION, OFFSET_MASK, name_of

UUID = bytes(range(16))
SEGMENT = 4_096


def opened(disk: MemoryDisk, end: int = FIRST_POSITION) -> Log:
    return Log.open(disk, UUID, end, segment_bytes=SEGMENT, threaded=False)


def firsts(disk: MemoryDisk, **options: int) -> list[int]:
    return [item.header.first for item in scan(disk, UUID, **options) if type(item) is Found]


def corrupt(disk: MemoryDisk, position: int, nbytes: int, byte: bytes = b"\xff") -> None:
    file = disk.open(name_of(position >> 32))
    file.write(position & OFFSET_MASK, [byte * nbytes])
    file.sync()


def filled(disk: MemoryDisk, count: int, size: int = 600, *, close: bool = True) -> list[int]:
    """Append records, each group of three in one commit; returns where each starts."""
    log = opened(disk)
    starts = []
    for number in range(count):
        segment, offset = log.place(size)
        starts.append((segment << 32 | offset) - HEADER_BYTES)
        log.append(1, 5, 1, number, [bytes([number + 1]) * size])
        if number % 3 == 2:
            log.commit()
    if close:
        log.close()
    else:
        log.write()
        disk.kill()
    return starts


def test_an_empty_disk_has_nothing() -> None:
    assert list(scan(MemoryDisk(), UUID)) == []
    assert list(scan(MemoryDisk(), UUID, FIRST_POSITION)) == []


def test_a_fresh_log_has_nothing() -> None:
    disk = MemoryDisk()
    opened(disk).close()
    assert list(scan(disk, UUID)) == []


def test_records_are_found_with_their_headers_and_payloads() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 10)
    items = list(scan(disk, UUID))
    assert [item.position for item in items] == starts
    for number, item in enumerate(items):
        assert type(item) is Found
        assert (item.header.kind, item.header.pid, item.header.count) == (1, 5, 1)
        assert item.payload == bytes([number + 1]) * 600
        assert item.end == item.header.end == starts[number] + 640


def test_scanning_starts_at_any_record() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 12)
    for number in range(12):
        assert firsts(disk, from_position=starts[number]) == list(range(number, 12))


def test_a_damaged_payload_is_named_and_skipped_exactly() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 9)
    corrupt(disk, starts[4] + HEADER_BYTES + 100, 1)
    items = list(scan(disk, UUID))
    damaged = items[4]
    assert type(damaged) is Damaged
    assert damaged.header is not None
    assert (damaged.position, damaged.nbytes) == (starts[4], 640)
    assert (damaged.header.pid, damaged.header.first, damaged.header.count) == (5, 4, 1)
    assert damaged.payload is not None
    assert bytes(damaged.payload[:100]) == bytes([5]) * 100
    assert firsts(disk) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_behind_a_damaged_header_the_next_record_is_found() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 9)
    corrupt(disk, starts[1] + 4, 4)
    items = list(scan(disk, UUID))
    assert items[1] == Damaged(starts[1], 640)
    assert firsts(disk) == [0, 2, 3, 4, 5, 6, 7, 8]


def test_several_damages_are_several_reports() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 15)
    for number in (0, 3, 4, 9, 14):
        corrupt(disk, starts[number] + 50, 8)
    items = list(scan(disk, UUID))
    damaged = [item for item in items if type(item) is Damaged]
    assert [item.position for item in damaged] == [starts[number] for number in (0, 3, 4, 9, 14)]
    assert firsts(disk) == [1, 2, 5, 6, 7, 8, 10, 11, 12, 13]


def test_synced_bytes_that_became_zeros_are_damage() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 9)
    corrupt(disk, starts[2], 640, b"\0")
    assert firsts(disk) == [0, 1, 3, 4, 5, 6, 7, 8]
    assert Damaged(starts[2], 640) in list(scan(disk, UUID))


def test_a_whole_segment_of_zeros_is_damage() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 18)
    size = disk.open(name_of(2)).size()
    corrupt(disk, 2 << 32, size, b"\0")
    lost = [number for number in range(18) if starts[number] >> 32 == 2]
    assert firsts(disk) == [number for number in range(18) if number not in lost]
    assert [item for item in scan(disk, UUID) if type(item) is Damaged] == [
        Damaged(2 << 32, size),
    ]


def test_the_end_of_a_segment_that_became_zeros_is_noticed() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 18)
    last = max(number for number in range(18) if starts[number] >> 32 == 1)
    corrupt(disk, starts[last], 640, b"\0")
    assert [item.position for item in scan(disk, UUID) if type(item) is Damaged] == [starts[last]]


def test_a_segment_that_was_cut_is_damage() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 18)
    last = max(number for number in range(18) if starts[number] >> 32 == 1)
    disk.open(name_of(1)).truncate((starts[last] & OFFSET_MASK) + 100)
    damaged = [item for item in scan(disk, UUID) if type(item) is Damaged]
    assert [(item.position, item.end) for item in damaged] == [(starts[last], starts[last] + 640)]
    assert damaged[0].header is not None
    assert firsts(disk) == [number for number in range(18) if number != last]


def test_a_missing_segment_is_damage_unless_it_may_be_gone() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 30)
    used = disk.open(name_of(3)).size()
    for number in (2, 3):
        disk.delete(name_of(number))
    kept = [number for number in range(30) if starts[number] >> 32 not in (2, 3)]
    damaged = [item for item in scan(disk, UUID) if type(item) is Damaged]
    assert damaged == [Damaged(2 << 32, 0), Damaged(3 << 32, used)]
    assert firsts(disk) == kept
    assert firsts(disk, required_from=4 << 32) == kept
    assert all(type(item) is Found for item in scan(disk, UUID, required_from=4 << 32))


def test_a_log_that_is_gone_as_a_whole_is_damage_for_who_knows_better() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 9)
    for name in disk.names():
        disk.delete(name)
    assert list(scan(disk, UUID)) == []
    segment = starts[8] >> 32
    assert list(scan(disk, UUID, starts[8])) == [Damaged(segment << 32, starts[8] & OFFSET_MASK)]
    assert list(scan(disk, UUID, FIRST_POSITION, known_synced=starts[1])) == [
        Damaged(FIRST_POSITION, starts[1] & OFFSET_MASK)
    ]


def test_an_unsynced_record_that_does_not_verify_ends_the_log() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 11, close=False)
    corrupt(disk, starts[9] + HEADER_BYTES, 1)
    items = list(scan(disk, UUID))
    torn = items[-1]
    assert type(torn) is Torn
    assert torn.position == torn.end == starts[9]
    assert torn.nbytes == 2 * 640
    assert [header.first for header in torn.headers] == [9, 10]
    assert firsts(disk) == list(range(9))


def test_the_caller_may_know_that_the_tail_was_synced() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 11, close=False)
    corrupt(disk, starts[9] + HEADER_BYTES, 1)
    assert firsts(disk, known_synced=starts[10]) == [*range(9), 10]
    corrupt(disk, starts[10], 640, b"\0")
    items = list(scan(disk, UUID, known_synced=starts[10] + 640))
    assert [type(item) for item in items[9:]] == [Damaged, Damaged]
    assert items[-1].end == starts[10] + 640


def test_a_gap_between_segments_that_was_never_synced_ends_the_log() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(3):
        log.append(1, 0, 1, number, [bytes([number]) * 1_500])
    log.write()
    disk.kill()
    corrupt(disk, FIRST_POSITION + 40 + 1_544, 1_544, b"\0")
    items = list(scan(disk, UUID))
    assert [item.header.first for item in items if type(item) is Found] == [0]
    torn = items[-1]
    assert type(torn) is Torn
    assert [header.first for header in torn.headers] == [2]
    assert torn.end == FIRST_POSITION + 40 + 1_544


def test_a_lost_start_of_the_next_segment_ends_the_log_before_it() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    ends = [log.append(1, 0, 1, number, [bytes([number]) * 1_500]) for number in range(4)]
    log.write()
    disk.kill()
    corrupt(disk, 2 << 32, 512, b"\0")
    items = list(scan(disk, UUID))
    assert [item.header.first for item in items if type(item) is Found] == [0, 1]
    assert items[-1].end == ends[1]


def test_what_was_torn_never_comes_back() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 11, close=False)
    corrupt(disk, starts[9], HEADER_BYTES)
    end = list(scan(disk, UUID))[-1].end
    log = opened(disk, end)
    log.append(1, 5, 1, 99, [bytes(600)])
    log.close()
    assert firsts(disk) == [*range(9), 99]
    assert all(type(item) is Found for item in scan(disk, UUID))


def test_truncating_erases_for_good_and_keeps_the_space() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 18)
    sizes = {name: disk.open(name).size() for name in disk.names()}
    assert truncate_tail(disk, starts[7]) > 0
    assert truncate_tail(disk, starts[7]) == 0
    assert {name: disk.open(name).size() for name in disk.names()} == sizes
    disk.crash(random.Random(1))
    assert firsts(disk) == list(range(7))
    assert all(type(item) is Found for item in scan(disk, UUID))


def test_a_message_that_contains_a_whole_log_is_not_mistaken_for_one() -> None:
    disk = MemoryDisk()
    filled(disk, 5, 200)
    copy = b"".join(disk.open(name).read(0, SEGMENT) for name in disk.names())
    other = MemoryDisk()
    log = Log.open(other, UUID, segment_bytes=1 << 20, threaded=False)
    starts = []
    for number in range(4):
        segment, offset = log.place(3 * len(copy))
        starts.append((segment << 32 | offset) - HEADER_BYTES)
        log.append(9, 9, 1, 100 + number, [copy, copy, copy])
        log.commit()
    log.close()
    assert firsts(other) == [100, 101, 102, 103]
    corrupt(other, starts[1], 8)
    assert firsts(other) == [100, 102, 103]
    damaged = [item for item in scan(other, UUID) if type(item) is not Found]
    assert [(item.position, item.end) for item in damaged] == [(starts[1], starts[2])]


def test_records_of_another_store_are_not_found() -> None:
    disk = MemoryDisk()
    filled(disk, 5)
    assert [type(item) for item in scan(disk, bytes(16))] == [Torn]


def test_a_record_of_a_later_version_is_refused_not_skipped() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 9)
    position = starts[4]
    file = disk.open(name_of(position >> 32))
    header = bytearray(file.read(position & OFFSET_MASK, HEADER_BYTES))
    header[2] = record.VERSION + 1
    crc = crc32c(UUID + position.to_bytes(8, "little") + bytes(header[:36]))
    header[36:] = crc.to_bytes(4, "little")
    file.write(position & OFFSET_MASK, [bytes(header)])
    with pytest.raises(StorageFailed, match="version 2"):
        list(scan(disk, UUID))


def test_foreign_files_are_left_alone() -> None:
    disk = MemoryDisk()
    for name in ("young-abc.seg", "young-0000000001.seg.bak", "notes", "old-.seg"):
        disk.create(name, 10)
    starts = filled(disk, 3)
    assert [item.position for item in scan(disk, UUID)] == starts


def test_of_what_was_synced_no_more_is_told_than_is_enough() -> None:
    disk = MemoryDisk()
    filled(disk, 8, close=False)
    items = list(scan(disk, UUID, enough=lambda header: header.first))
    assert [item.header.first for item in items] == list(range(8))
    # Of the last two no header says that they were synced.
    assert [type(item) for item in items] == [Begun] * 6 + [Found] * 2
    for number, item in enumerate(items[:6]):
        assert item.payload == bytes([number + 1]) * number
        assert whole(disk, item.header) == Found(item.header, bytes([number + 1]) * 600)


def test_what_may_be_torn_is_verified_however_little_is_enough() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 5, close=False)
    corrupt(disk, starts[4] + HEADER_BYTES + 300, 1)
    items = list(scan(disk, UUID, enough=lambda _: 0))
    assert [type(item) for item in items[:-1]] == [Begun] * 3 + [Found]
    assert type(items[-1]) is Torn
    assert items[-1].position == starts[4]


def test_a_damaged_payload_that_nobody_asked_for_is_found_when_all_of_it_is() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 6)
    corrupt(disk, starts[1] + HEADER_BYTES + 300, 1)
    items = list(scan(disk, UUID, enough=lambda _: 8))
    assert [type(item) for item in items] == [Begun] * 6
    assert type(whole(disk, items[0].header)) is Found
    assert type(whole(disk, items[1].header)) is Damaged


def test_a_damaged_header_is_damage_however_little_is_enough() -> None:
    disk = MemoryDisk()
    starts = filled(disk, 6)
    corrupt(disk, starts[1], 1)
    items = list(scan(disk, UUID, enough=lambda _: 0))
    assert [item.position for item in items if type(item) is Damaged] == [starts[1]]
    assert [item.position for item in items] == starts
