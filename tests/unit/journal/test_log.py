"""Appending, the three levels of safety, rolling over, reading back."""

from __future__ import annotations

import pytest

from ebbmq import limits
from ebbmq.errors import ClosedBroker, DamagedRecord, Overloaded, StorageFailed
from ebbmq.journal import record, walk
from ebbmq.journal.disk import MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.record import HEADER_BYTES, LINK
from ebbmq.journal.scan import Damaged, Found, scan
from ebbmq.journal.segment import FIRST_POSITION, name_of

UUID = bytes(range(16))


def opened(disk: MemoryDisk, end: int = FIRST_POSITION, segment_bytes: int = 4_096) -> Log:
    return Log.open(disk, UUID, end, segment_bytes=segment_bytes, threaded=False)


def payloads(disk: MemoryDisk) -> list[bytes]:
    return [bytes(item.payload) for item in scan(disk, UUID) if type(item) is Found]


def test_append_touches_no_file() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    before = disk.open(name_of(1)).read(0, 4_096)
    position = log.append(1, 2, 3, 4, [b"abc", b"def"])
    assert position == log.position > log.written_position
    assert disk.open(name_of(1)).read(0, 4_096) == before


def test_write_covers_everything_appended_before() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(5):
        log.append(1, 0, 1, number, [b"x" * number])
    log.write()
    assert log.written_position == log.position > log.synced_position
    disk.kill()
    assert payloads(disk) == [b"x" * number for number in range(5)]


def test_write_covers_what_was_appended_to_segments_before_the_last() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(10):
        log.append(1, 0, 1, number, [bytes([number]) * 1_000])
    log.write()
    assert log.written_position == log.position
    disk.kill()
    assert payloads(disk) == [bytes([number]) * 1_000 for number in range(10)]


def test_a_failed_log_refuses_to_write_even_nothing() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append_written(1, 0, 1, 0, b"x")
    disk.fail_sync_after(0)
    with pytest.raises(StorageFailed):
        log.commit()
    with pytest.raises(StorageFailed):
        log.write()


def test_commit_covers_everything_appended_before() -> None:
    log = opened(MemoryDisk())
    position = log.append(1, 0, 1, 0, [b"x"])
    log.commit()
    assert log.synced_position == log.written_position == position


def test_place_says_where_the_payload_will_be() -> None:
    log = opened(MemoryDisk())
    for size in (0, 1, 8, 1_000, 1_500, 2_000, 3_000):
        body = bytes([size % 251]) * size
        segment, offset = log.place(size)
        position = log.append(1, 0, 1, 0, [body])
        assert position == segment << 32 | offset + (size + 7) // 8 * 8
        assert log.read(segment, offset, size) == body


def test_callbacks_come_at_once_for_memory_and_written() -> None:
    log = opened(MemoryDisk())
    position = log.append(1, 0, 1, 0, [b"x"])
    called: list[StorageFailed | None] = []
    log.when("memory", position, called.append)
    assert log.written_position < position
    log.when("written", position, called.append)
    assert log.written_position == position
    assert called == [None, None]


def test_synced_callbacks_come_in_order_with_the_commit() -> None:
    log = opened(MemoryDisk())
    called: list[int] = []
    for number in range(3):
        position = log.append(1, 0, 1, number, [b"x"])
        log.when("synced", position, lambda _, number=number: called.append(number))  # type: ignore[misc]
    assert called == []
    log.commit()
    assert called == [0, 1, 2]
    log.when("synced", log.position, lambda _: called.append(3))
    assert called == [0, 1, 2, 3]


def test_one_sync_serves_every_waiting_batch() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    called: list[StorageFailed | None] = []
    for number in range(10):
        log.when("synced", log.append(1, 0, 1, number, [b"x"]), called.append)
    before = disk.syncs
    log.commit()
    assert len(called) == 10
    assert disk.syncs == before + 1


def test_a_commit_with_nothing_to_do_syncs_nothing() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    before = disk.syncs
    log.commit()
    assert disk.syncs == before


def test_the_commit_hook_sees_positions_before_the_waiters_do() -> None:
    log = opened(MemoryDisk())
    seen: list[object] = []
    log.on_commit = lambda written, synced: seen.append((written, synced))
    position = log.append(1, 0, 1, 0, [b"x"])
    log.when("synced", position, seen.append)
    log.commit()
    assert seen == [(position, position), None]


def test_a_callback_may_append_and_wait_for_the_next_commit() -> None:
    log = opened(MemoryDisk())
    called: list[str] = []

    def again(_: object) -> None:
        called.append("first")
        log.when("synced", log.append(1, 0, 1, 1, [b"y"]), lambda _: called.append("second"))

    log.when("synced", log.append(1, 0, 1, 0, [b"x"]), again)
    log.commit()
    assert called == ["first"]
    log.commit()
    assert called == ["first", "second"]


def test_waiting_without_a_thread_commits() -> None:
    log = opened(MemoryDisk())
    position = log.append(1, 0, 1, 0, [b"x"])
    log.wait("memory", position)
    assert log.written_position < position
    log.wait("written", position)
    assert log.synced_position < position == log.written_position
    log.wait("synced", position)
    assert log.synced_position == position


def test_much_pending_is_written_by_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PENDING_BYTES_MAX", 1_000)
    log = opened(MemoryDisk())
    log.append(1, 0, 1, 0, [bytes(900)])
    assert log.written_position < log.position
    log.append(1, 0, 1, 0, [bytes(900)])
    assert log.written_position == log.position


def test_a_record_that_does_not_fit_goes_to_the_next_segment() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(10):
        log.append(1, 0, 1, number, [bytes([number]) * 1_500])
    log.commit()
    infos = log.segments()
    assert [info.number for info in infos] == [1, 2, 3, 4, 5]
    assert [info.sealed for info in infos] == [True] * 4 + [False]
    assert payloads(disk) == [bytes([number]) * 1_500 for number in range(10)]


def test_a_sealed_segment_takes_only_the_bytes_it_uses() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 0, 1, 0, [bytes(2_000)])
    log.append(1, 0, 1, 0, [bytes(3_000)])
    assert disk.open(name_of(1)).size() == 4_096
    log.commit()
    assert disk.open(name_of(1)).size() == log.segments()[0].used_bytes == 2_080


def test_a_record_larger_than_a_segment_gets_one_of_its_size() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 0, 1, 0, [b"small"])
    segment, offset = log.place(10_000)
    log.append(1, 0, 1, 1, [b"L" * 10_000])
    log.append(1, 0, 1, 2, [b"small again"])
    log.commit()
    assert log.read(segment, offset, 10_000) == b"L" * 10_000
    assert payloads(disk) == [b"small", b"L" * 10_000, b"small again"]


def test_a_group_over_several_segments_is_synced_in_all_of_them() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(6):
        log.append(1, 0, 1, number, [bytes(2_000)])
    before = disk.syncs
    log.commit()
    assert disk.syncs == before + 6
    assert log.synced_position == log.position


def test_pending_bytes_are_written_before_they_are_read() -> None:
    log = opened(MemoryDisk())
    places = []
    for number in range(8):
        segment, offset = log.place(900)
        log.append(1, 0, 1, number, [bytes([number]) * 900])
        places.append((segment, offset, 900))
    assert log.read(*places[0]) == bytes(900)
    log.append(1, 0, 1, 8, [b"x"])
    assert log.read_many(places) == [bytes([number]) * 900 for number in range(8)]
    segment, offset = log.place(3)
    log.append(1, 0, 1, 9, [b"end"])
    assert log.read_many([(segment, offset, 3)]) == [b"end"]


def test_a_dead_segment_is_deleted_and_its_number_not_used_again() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(4):
        log.append(1, 0, 1, number, [bytes(3_000)])
    log.commit()
    log.read(1, 40, 8)
    log.delete_segment(1)
    assert [info.number for info in log.segments()] == [2, 3, 4]
    assert name_of(1) not in disk.names()
    with pytest.raises(DamagedRecord, match="young-0000000001"):
        log.read(1, 40, 8)


def test_a_segment_that_is_not_sealed_is_never_deleted() -> None:
    log = opened(MemoryDisk())
    log.append(1, 0, 1, 0, [bytes(3_000)])
    log.append(1, 0, 1, 1, [bytes(3_000)])
    for number in (1, 2):
        with pytest.raises(AssertionError, match="not sealed"):
            log.delete_segment(number)


def test_a_closed_log_takes_nothing_more() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 0, 1, 0, [b"x"])
    log.close()
    log.close()
    assert log.synced_position == log.position
    with pytest.raises(ClosedBroker):
        log.append(1, 0, 1, 0, [b"y"])
    assert payloads(disk) == [b"x"]


@pytest.mark.parametrize("blow", ["close", "kill"])
def test_a_reopened_log_goes_on_where_it_ended(blow: str) -> None:
    disk = MemoryDisk()
    end = FIRST_POSITION
    for round_number in range(6):
        log = opened(disk, end)
        for number in range(3):
            end = log.append(1, 0, 1, 3 * round_number + number, [bytes([number]) * 700])
        if blow == "close":
            log.close()
        else:
            log.write()
            disk.kill()
    found = [item for item in scan(disk, UUID) if type(item) is Found]
    assert [item.header.first for item in found] == list(range(18))
    assert found[-1].end == end


def test_sealing_that_a_kill_interrupted_is_finished_on_opening() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 0, 1, 0, [bytes(2_000)])
    end = log.append(1, 0, 1, 1, [bytes(3_000)])
    log.write()
    disk.kill()
    assert disk.open(name_of(1)).size() == 4_096
    log = opened(disk, end)
    assert log.segments()[0] == (1, 2_080, True, False)
    assert disk.open(name_of(1)).size() == 2_080


def test_bytes_that_a_kill_left_in_the_kernel_are_synced_on_opening() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(3):
        end = log.append(1, 0, 1, number, [bytes([number]) * 3_000])
    log.write()
    disk.kill()
    log = opened(disk, end)
    assert log.synced_position == end

    class Loses:
        def random(self) -> float:
            return 0.0

    disk.crash(Loses())
    assert payloads(disk) == [bytes([number]) * 3_000 for number in range(3)]


def test_a_segment_that_is_gone_leaves_its_number_unused() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    end = log.append(1, 0, 1, 0, [b"x"])
    log.close()
    disk.delete(name_of(1))
    log = opened(disk, end)
    assert log.position == 2 << 32 | HEADER_BYTES


def test_a_small_record_can_be_appended_and_written_in_one_step() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    positions = [log.append_written(3, 7, 1, number, bytes([number])) for number in range(5)]
    assert log.written_position == log.position == positions[-1]
    log.append(4, 7, 1, 5, [b"waits"])
    position = log.append_written(3, 7, 1, 6, bytes(5_000))
    assert log.written_position == log.position == position
    log.commit()
    found = [item for item in scan(disk, UUID) if type(item) is Found]
    assert [item.header.first for item in found] == list(range(7))
    assert [bytes(item.payload) for item in found[:5]] == [bytes([n]) for n in range(5)]


def marks(disk: MemoryDisk) -> list[int]:
    """What the LINKs behind the first one prove to be synced."""
    place = walk.Place(record.seed(UUID), disk.open(name_of(1)), FIRST_POSITION)
    found = walk.windows(place, HEADER_BYTES, 4_096)
    return [item.header.synced for item in found if item.header.kind == LINK]


def test_an_idle_log_is_marked_once_and_no_mark_is_marked() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    end = log.append(1, 0, 1, 0, [b"x"])
    log.commit()
    for _ in range(5):
        log.mark()
        log.commit()
    assert marks(disk) == [end]


def test_a_log_to_which_something_is_appended_all_the_time_is_not_marked() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(5):
        log.append(1, 0, 1, number, [b"x"])
        log.commit()
        log.mark()
    assert marks(disk) == []


def test_what_was_synced_before_the_end_is_proven_without_waiting_for_it() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    synced = log.append(1, 0, 1, 0, [b"x"])
    log.commit()
    end = log.append_written(1, 0, 1, 1, b"written only")
    for _ in range(5):
        log.mark()
    assert marks(disk) == [synced]
    log.commit()
    for _ in range(5):
        log.mark()
        log.commit()
    assert marks(disk) == [synced, end + HEADER_BYTES]


def test_what_was_marked_is_never_taken_for_torn() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 2, 3, 4, [b"payload"])
    log.commit()
    log.mark()
    log.mark()
    disk.kill()
    disk.flip(name_of(1), 2 * HEADER_BYTES, 1)
    (damaged,) = scan(disk, UUID)
    assert type(damaged) is Damaged
    assert damaged.header is not None
    assert (damaged.header.pid, damaged.header.count, damaged.header.first) == (2, 3, 4)


def test_a_full_segment_is_marked_by_the_next_one() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(1, 0, 1, 0, [bytes(4_096 - 2 * HEADER_BYTES)])
    log.commit()
    log.mark()
    log.mark()
    disk.kill()
    disk.flip(name_of(1), 2 * HEADER_BYTES, 1)
    assert [type(item) for item in scan(disk, UUID)] == [Damaged]


def test_a_mark_takes_no_space_that_is_reserved_for_facts() -> None:
    disk = MemoryDisk(capacity=4_096)
    log = opened(disk)
    log.admit(0, 3_600)
    log.append(1, 0, 1, 0, [bytes(200)])
    log.commit()
    before = log.position
    log.mark()
    with pytest.raises(Overloaded):
        log.mark()
    assert log.position == before
