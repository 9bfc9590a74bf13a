import gc
import random
import tracemalloc

import numpy as np
import pytest

from ebbmq.core.displaced import BUFFER_ROWS, RUN_ROWS_MAX, Displaced


def pairs_of(count, seed=1):
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return [(place, 1_000_000 + place) for place in places]


def test_the_smallest_place_leaves_first():
    rows = Displaced()
    rows.push(7, 1)
    rows.push(3, 9)
    rows.extend([5, 1], [2, 4])
    assert rows.head() == (1, 4)
    assert [rows.pop() for _ in range(4)] == [(1, 4), (3, 9), (5, 2), (7, 1)]


def test_an_empty_set_has_nothing_to_give():
    rows = Displaced()
    assert rows.head() is None
    assert rows.pop_many(3) == []
    assert rows.peek(3) == []
    rows.extend([], [])
    assert len(rows) == 0
    with pytest.raises(IndexError):
        rows.pop()
    with pytest.raises(IndexError):
        rows.pop_last()


@pytest.mark.parametrize("count", [BUFFER_ROWS, BUFFER_ROWS + 1, 20 * BUFFER_ROWS])
def test_rows_pushed_one_by_one_leave_in_order(count):
    rows = Displaced()
    for place, seq in pairs_of(count):
        rows.push(place, seq)
    assert len(rows) == count
    assert rows.pop_many(count) == sorted(pairs_of(count))


def test_a_batch_larger_than_a_run_leaves_in_order():
    pairs = pairs_of(2 * RUN_ROWS_MAX + 5)
    rows = Displaced()
    rows.extend(*(np.array(column, dtype=np.uint64) for column in zip(*pairs, strict=True)))
    rows.push(3, 1)
    assert rows.peek(5) == [(0, 1_000_000), (1, 1_000_001), (2, 1_000_002), (3, 1), (3, 1_000_003)]
    assert rows.pop_many(len(pairs) + 1) == sorted([*pairs, (3, 1)])
    assert len(rows) == 0


def test_rows_are_plain_integers_also_when_they_came_as_an_array():
    rows = Displaced()
    rows.extend(np.array([3], dtype=np.uint64), np.array([4], dtype=np.uint64))
    assert all(type(number) is int for number in rows.pop())


def test_the_last_row_is_found_in_the_buffer_and_in_runs():
    rows = Displaced()
    rows.extend(range(0, 4_000, 2), range(2_000))
    rows.push(3_999, 7)
    assert [rows.pop_last(), rows.pop_last()] == [(3_999, 7), (3_998, 1_999)]
    while rows:
        last = rows.pop_last()
    assert last == (0, 0)
    assert rows.head() is None


def test_a_large_set_costs_less_than_twenty_bytes_a_row():
    tracemalloc.start()
    rows = Displaced()
    for start in range(0, 100_000, 1_000):
        rows.extend(range(start, start + 1_000), range(start, start + 1_000))
    rows.pop_many(35_000)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 20 * len(rows) + 150 * BUFFER_ROWS


def test_stragglers_of_many_runs_do_not_keep_the_runs():
    tracemalloc.start()
    rows = Displaced()
    far = 1 << 40
    for turn in range(80):
        rows.extend([*range(BUFFER_ROWS - 1), far, far + 1], [turn] * (BUFFER_ROWS + 1))
        rows.pop_many(BUFFER_ROWS - 1)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 300_000
    assert rows.pop_last() == (far + 1, 79)
    assert rows.pop_many(200) == [
        *((far, turn) for turn in range(80)),
        *((far + 1, turn) for turn in range(79)),
    ]
