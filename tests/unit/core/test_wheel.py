import gc
import tracemalloc

import numpy as np
import pytest

from ebbmq import limits
from ebbmq.core.wheel import Wheel

NOW = 1_700_000_000_000


class Rows:
    """The caller's side: every row's deadline, 0 for none."""

    def __init__(self):
        self.deadlines = {}

    def deadline_of(self, seqs):
        return np.array([self.deadlines[seq] for seq in seqs.tolist()], dtype=np.uint64)

    def add(self, wheel, deadline_ms, seqs):
        for seq in seqs:
            self.deadlines[seq] = deadline_ms
        wheel.add_many(deadline_ms, seqs)


def drained(wheel, now_ms, deadline_of, budget=1 << 30):
    out = []
    while (next_ms := wheel.next_deadline_ms()) is not None and next_ms <= now_ms:
        part = wheel.due(now_ms, budget, deadline_of)
        assert len(part) <= budget
        assert part.dtype == np.uint64
        out += part.tolist()
    return out


@pytest.mark.parametrize(
    "away_ms", [0, 1, 255, 256, 257, 65_535, 65_536, 1 << 24, 1 << 32, limits.DURATION_MS_MAX]
)
def test_a_row_comes_out_at_its_deadline_and_not_a_millisecond_before(away_ms):
    wheel, rows = Wheel(NOW), Rows()
    rows.add(wheel, NOW + away_ms, [7])
    assert wheel.next_deadline_ms() <= NOW + away_ms
    assert drained(wheel, NOW + away_ms - 1, rows.deadline_of) == []
    assert len(wheel) == 1
    assert drained(wheel, NOW + away_ms, rows.deadline_of) == [7]
    assert (len(wheel), wheel.next_deadline_ms()) == (0, None)


def test_one_call_brings_out_rows_of_every_width():
    wheel, rows = Wheel(NOW), Rows()
    for seq in range(40):
        rows.add(wheel, NOW + 2**seq // 2, [seq])
    assert sorted(wheel.due(NOW + 2**38, 100, rows.deadline_of).tolist()) == list(range(40))


def test_following_the_next_deadline_finds_each_row_in_its_millisecond():
    wheel, rows = Wheel(NOW), Rows()
    for seq, away_ms in enumerate([3, 300, 301, 70_000, 70_000, 17_000_000, 5_000_000_000]):
        rows.add(wheel, NOW + away_ms, [seq])
    ticks = 0
    while (now_ms := wheel.next_deadline_ms()) is not None:
        ticks += 1
        for seq in wheel.due(now_ms, 100, rows.deadline_of).tolist():
            assert rows.deadlines[seq] == now_ms
    assert ticks < 20


def test_a_deadline_in_the_past_is_due_at_once():
    wheel, rows = Wheel(NOW), Rows()
    rows.add(wheel, NOW - 5_000, [1])
    assert drained(wheel, NOW, rows.deadline_of) == [1]


def test_a_wheel_that_was_never_told_the_time_is_exact_too():
    wheel, rows = Wheel(), Rows()
    rows.add(wheel, NOW + 500, [1])
    assert drained(wheel, NOW + 499, rows.deadline_of) == []
    assert drained(wheel, NOW + 500, rows.deadline_of) == [1]


def test_the_budget_bounds_the_rows_of_one_call():
    wheel, rows = Wheel(NOW), Rows()
    rows.add(wheel, NOW + 10, range(1, 101))
    out = wheel.due(NOW + 10, 64, rows.deadline_of).tolist()
    assert out == list(range(1, 65))
    assert wheel.next_deadline_ms() == NOW + 10
    assert wheel.due(NOW + 10, 64, rows.deadline_of).tolist() == list(range(65, 101))
    assert wheel.next_deadline_ms() is None


def test_the_budget_also_bounds_rows_that_only_move_closer():
    asked = []
    wheel, rows = Wheel(NOW), Rows()
    rows.add(wheel, NOW + 1_000, range(1, 101))

    def deadline_of(seqs):
        asked.append(len(seqs))
        return rows.deadline_of(seqs)

    begins_ms = wheel.next_deadline_ms()
    assert wheel.due(begins_ms, 64, deadline_of).tolist() == []
    assert asked == [64]
    assert wheel.next_deadline_ms() == begins_ms
    assert drained(wheel, NOW + 1_000, deadline_of, 64) == [*range(65, 101), *range(1, 65)]


def test_a_postponed_row_follows_its_new_deadline():
    wheel, rows = Wheel(NOW), Rows()
    rows.add(wheel, NOW + 1_000, [1])
    rows.deadlines[1] = NOW + 90_000
    assert drained(wheel, NOW + 89_999, rows.deadline_of) == []
    assert drained(wheel, NOW + 90_000, rows.deadline_of) == [1]


def test_a_row_without_a_deadline_is_let_go():
    wheel, rows = Wheel(NOW), Rows()
    rows.add(wheel, NOW + 1_000, [1, 2])
    rows.deadlines[1] = 0
    assert drained(wheel, NOW + 1_000, rows.deadline_of) == [2]
    assert len(wheel) == 0


def test_nothing_due_asks_for_no_deadline():
    wheel = Wheel(NOW)
    wheel.add_many(NOW + 100_000, range(1_000))
    assert wheel.due(NOW + 1, 100, lambda _: pytest.fail("asked")).tolist() == []


def test_no_rows_make_no_deadline():
    wheel = Wheel(NOW)
    wheel.add_many(NOW + 5, [])
    wheel.add_each(np.empty(0, np.uint64), np.empty(0, np.uint64))
    assert wheel.next_deadline_ms() is None


def test_a_row_added_alone_costs_about_four_bytes():
    tracemalloc.start()
    wheel = Wheel(NOW)
    for seq in range(30_000):
        wheel.add(NOW + 3_600_000 + seq, seq)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 5 * len(wheel) + 10_000
