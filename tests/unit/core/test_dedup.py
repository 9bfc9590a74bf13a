"""Producers' ids are remembered for the window, in bounded memory."""

from __future__ import annotations

from ebbmq import limits
from ebbmq.core.dedup import Dedup

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


def test_old_tables_go_as_a_whole_when_time_has_passed() -> None:
    dedup = Dedup()
    for seq in range(1, 200_000):
        dedup.add(str(seq), seq, NOW_MS + seq * 10)
    assert len(dedup) <= 100_000
    assert dedup.find("199999", NOW_MS + 2_000_000) == 199_999


def test_a_checkpoint_brings_back_every_id() -> None:
    dedup = Dedup(b"key")
    for seq in range(1, 70_000):
        dedup.add(f"id-{seq}", seq, NOW_MS + seq)
    back = Dedup(b"key")
    back.restore(dedup.entries())
    assert len(back) == len(dedup)
    assert all(back.find(f"id-{seq}", NOW_MS) == seq for seq in range(1, 70_000, 997))
