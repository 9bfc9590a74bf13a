import gc
import tracemalloc

import numpy as np
import pytest

from ebbmq.core.ring import CHUNK_ROWS, Ring

FAR = 1 << 40


@pytest.fixture(autouse=True, scope="module")
def _traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def filled(seqs):
    ring = Ring()
    ring.extend(seqs)
    return ring


def test_rows_leave_in_the_order_they_came():
    ring = Ring()
    for seq in (5, 3, 9):
        ring.push(seq)
    assert [ring.pop(), ring.pop(), ring.pop()] == [5, 3, 9]


def test_an_empty_ring_has_no_head_and_nothing_to_take():
    ring = Ring()
    assert (ring.head(), ring.newest(), len(ring)) == (-1, -1, 0)
    assert ring.pop_many(10) == []
    assert ring.take_while_below(10, 10) == []
    assert ring.peek(10) == []
    assert ring.to_numpy().tolist() == []
    with pytest.raises(IndexError):
        ring.pop()
    with pytest.raises(IndexError):
        ring.pop_newest()


def test_a_failed_take_leaves_the_ring_usable():
    ring = Ring()
    with pytest.raises(IndexError):
        ring.pop()
    ring.push(1)
    assert (len(ring), ring.pop()) == (1, 1)


@pytest.mark.parametrize("first", [1, (1 << 32) - 10, FAR])
def test_a_batch_may_span_chunks_and_the_end_of_32_bits(first):
    seqs = range(first, first + 3 * CHUNK_ROWS)
    for ring in (
        filled(seqs),
        filled(list(seqs)),
        Ring.from_numpy(np.arange(seqs.start, seqs.stop, dtype=np.uint64)),
    ):
        assert ring.to_numpy().tolist() == list(seqs)
        assert ring.pop_many(CHUNK_ROWS + 5) == list(seqs[: CHUNK_ROWS + 5])
        assert ring.head() == seqs[CHUNK_ROWS + 5]
        assert ring.pop_array(7).tolist() == list(seqs[CHUNK_ROWS + 5 : CHUNK_ROWS + 12])
        assert len(ring) == 2 * CHUNK_ROWS - 12


def test_rows_far_apart_share_a_ring():
    seqs = [1, FAR, 2, FAR + 1, 1 << 63, 3]
    assert filled(seqs).pop_many(10) == seqs
    assert Ring.from_numpy(np.array(seqs * 10, dtype=np.uint64)).pop_many(100) == seqs * 10


def test_old_rows_beside_new_ones_at_the_end_of_32_bits_share_a_chunk():
    ring = filled([(1 << 32) + 1])
    before = traced_bytes()
    for step in range(1_000):
        ring.push((1 << 32) - 1_000 + step)
        ring.push((1 << 32) + 2 + step)
    assert traced_bytes() - before < 5 * len(ring)


def test_a_gated_tail_stops_at_the_first_row_not_below_the_limit():
    ring = filled([4, 2, 8, 3])
    assert ring.take_while_below(8, 10) == [4, 2]
    assert ring.take_while_below(8, 10) == []
    assert ring.take_while_below(9, 1) == [8]
    assert ring.pop_many(10) == [3]


def test_the_newest_row_leaves_from_the_tail():
    ring = filled(range(1, CHUNK_ROWS + 2))
    assert ring.newest() == CHUNK_ROWS + 1
    assert [ring.pop_newest(), ring.pop_newest()] == [CHUNK_ROWS + 1, CHUNK_ROWS]
    ring.push(77)
    assert ring.newest() == 77
    assert len(ring) == CHUNK_ROWS


def test_head_and_tail_meet_in_one_chunk():
    ring = filled([1, 2, 3])
    assert (ring.pop(), ring.pop_newest(), ring.pop_newest()) == (1, 3, 2)
    assert len(ring) == 0
    ring.push(FAR)
    assert (ring.head(), ring.newest()) == (FAR, FAR)


def test_a_peek_changes_nothing():
    seqs = list(range(10, 10 + 2 * CHUNK_ROWS))
    ring = filled(seqs)
    ring.pop()
    assert ring.peek(3) == seqs[1:4]
    assert ring.peek(4, start=CHUNK_ROWS - 2) == seqs[CHUNK_ROWS - 1 : CHUNK_ROWS + 3]
    assert ring.peek(5, start=len(seqs)) == []
    assert ring.to_numpy().tolist() == seqs[1:]


def test_used_up_chunks_are_freed_at_once():
    ring = filled(range(20 * CHUNK_ROWS))
    before = traced_bytes()
    ring.pop_many(19 * CHUNK_ROWS)
    assert before - traced_bytes() > 19 * CHUNK_ROWS * 2
    ring.pop_many(CHUNK_ROWS)
    assert before - traced_bytes() > 20 * CHUNK_ROWS * 2


@pytest.mark.parametrize(
    ("step", "bytes_each"), [(1, 2), (100, 2), ((1 << 16) - 1, 2), (1 << 16, 4), (-1, 4)]
)
def test_a_long_ring_costs_two_bytes_an_entry_where_rows_rise_in_small_steps(step, bytes_each):
    seqs = range(FAR, FAR + 300_000 * step, step)
    before = traced_bytes()
    ring = Ring()
    for first in range(0, len(seqs), 100):
        ring.extend(list(seqs[first : first + 100]))
    assert traced_bytes() - before < (bytes_each + 0.3) * len(ring)
    assert ring.pop_many(len(seqs)) == list(seqs)


def test_a_ring_is_taken_from_both_ends_across_packed_chunks():
    seqs = range(FAR, FAR + 3 * 6 * CHUNK_ROWS, 3)
    ring = filled(list(seqs))
    assert ring.take_newest(2 * CHUNK_ROWS + 5) == list(seqs[: -2 * CHUNK_ROWS - 6 : -1])
    assert ring.pop_many(2 * CHUNK_ROWS + 5) == list(seqs[: 2 * CHUNK_ROWS + 5])
    ring.push(FAR)
    rest = [*seqs[2 * CHUNK_ROWS + 5 : -2 * CHUNK_ROWS - 5], FAR]
    assert ring.peek_newest(len(ring)) == rest[::-1]
    assert ring.to_numpy().tolist() == rest
