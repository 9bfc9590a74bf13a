"""Producers' ids are remembered for the window, in bounded memory."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.core.dedup import Dedup

if TYPE_CHECKING:
    from types import FrameType

NOW_MS = 1_700_000_000_000


def test_an_id_is_found_under_its_message_number() -> None:
    dedup = Dedup(b"key")
    for seq in range(1, 2_000):
        dedup.add(f"id-{seq}", seq, NOW_MS)
    assert all(dedup.find(f"id-{seq}", NOW_MS) == seq for seq in range(1, 2_000))
    assert dedup.find("id-0", NOW_MS) == 0


def test_an_id_is_forgotten_at_the_end_of_the_window() -> None:
    dedup = Dedup()
    dedup.add("a", 1, NOW_MS)
    assert dedup.find("a", NOW_MS + limits.DEDUP_WINDOW_MS - 1) == 1
    assert dedup.find("a", NOW_MS + limits.DEDUP_WINDOW_MS) == 0


def test_an_id_used_again_after_the_window_belongs_to_the_later_message() -> None:
    dedup = Dedup()
    dedup.add("a", 1, NOW_MS)
    later_ms = NOW_MS + 2 * limits.DEDUP_WINDOW_MS
    dedup.add("a", 2, later_ms)
    assert dedup.find("a", later_ms) == 2


def test_ids_are_let_go_when_time_has_passed() -> None:
    dedup = Dedup()
    for seq in range(1, 200_000):
        dedup.add(str(seq), seq, NOW_MS + seq * 10)
    assert len(dedup) <= 100_000
    assert dedup.find("199999", NOW_MS + 2_000_000) == 199_999


def _lines_run_to_find(dedup: Dedup, names: list[str]) -> int:
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for name in names:
            dedup.find(name, NOW_MS)
    finally:
        sys.settrace(before)
    return lines


def test_looking_for_an_id_takes_no_more_steps_when_many_are_remembered() -> None:
    few, many = Dedup(), Dedup()
    for seq in range(1, 1_000):
        few.add(str(seq), seq, NOW_MS)
    for seq in range(1, 150_000):
        many.add(str(seq), seq, NOW_MS)
    names = [f"unknown-{number}" for number in range(200)]
    assert _lines_run_to_find(many, names) <= 1.5 * _lines_run_to_find(few, names)


def test_an_id_that_recovery_meets_again_is_remembered_once() -> None:
    dedup = Dedup()
    for _ in range(2):
        for seq in range(1, 1_000):
            dedup.add(str(seq), seq, NOW_MS + seq)
    assert len(dedup) == 999
    assert dedup.find("1", NOW_MS + limits.DEDUP_WINDOW_MS) == 1


def test_a_checkpoint_brings_back_every_id() -> None:
    dedup = Dedup(b"key")
    for seq in range(1, 70_000):
        dedup.add(f"id-{seq}", seq, NOW_MS + seq)
    back = Dedup(b"key")
    back.restore(b"".join(dedup.entries()))
    assert len(back) == len(dedup)
    assert all(back.find(f"id-{seq}", NOW_MS) == seq for seq in range(1, 70_000, 997))
    for seq in range(70_000, 80_000):
        back.add(f"id-{seq}", seq, NOW_MS + seq)
    assert all(back.find(f"id-{seq}", NOW_MS) == seq for seq in range(1, 80_000, 97))


def test_a_checkpoint_has_the_ids_that_were_there_when_it_was_begun() -> None:
    dedup = Dedup(b"key")
    for seq in range(1, 50_000):
        dedup.add(f"id-{seq}", seq, NOW_MS + seq)
    parts = dedup.entries()
    packed = [next(parts)]
    for seq in range(50_000, 150_000):
        dedup.add(f"id-{seq}", seq, NOW_MS + seq)
        if not seq % 1_000:
            packed.append(next(parts, b""))
    packed += parts
    back = Dedup(b"key")
    back.restore(b"".join(packed))
    assert len(back) == 49_999
    assert all(back.find(f"id-{seq}", NOW_MS) == seq for seq in range(1, 50_000))
    assert all(dedup.find(f"id-{seq}", NOW_MS) == seq for seq in range(1, 150_000))


def test_ids_take_no_longer_to_find_after_a_checkpoint_that_was_given_up() -> None:
    few, many = Dedup(), Dedup()
    parts = many.entries()
    next(parts)
    for dedup, count in ((few, 1_000), (many, 2_000)):
        for seq in range(1, count):
            dedup.add(str(seq), seq, NOW_MS)
    parts.close()
    for seq in range(2_000, 20_000):
        many.add(str(seq), seq, NOW_MS)
    names = [f"unknown-{number}" for number in range(200)]
    assert _lines_run_to_find(many, names) <= 1.5 * _lines_run_to_find(few, names)
    assert all(many.find(str(seq), NOW_MS) == seq for seq in range(1, 20_000))


def test_an_id_takes_at_most_40_bytes_also_while_a_checkpoint_is_written_and_read() -> None:
    count = 100_000
    dedup, back = Dedup(b"key"), Dedup(b"key")
    tracemalloc.start()
    try:
        for seq in range(1, count + 1):
            dedup.add(f"id-{seq}", seq, NOW_MS)
        size = sum(len(part) for part in dedup.entries())
        _, written = tracemalloc.get_traced_memory()
        packed = b"".join(dedup.entries())
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        back.restore(packed)
        _, read = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == len(packed) > 24 * count
    assert written <= 40 * count
    assert read - before <= 40 * count


def test_an_empty_checkpoint_brings_back_nothing() -> None:
    back = Dedup()
    back.restore(b"".join(Dedup().entries()))
    assert len(back) == 0
    back.add("a", 1, NOW_MS)
    assert back.find("a", NOW_MS) == 1
