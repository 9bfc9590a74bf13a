import tracemalloc
from itertools import chain

import numpy as np
import pytest

from ebbmq.core.classes import NEVER, Classes, class_key
from ebbmq.core.index import Index
from ebbmq.core.order import BandedOrder, ExactOrder
from ebbmq.core.row import HIGH, LOW48, RATE_UNIT, READY, ROW

HOUR_MS = 3_600_000


class Store:
    """Rows and their order, as a partition keeps them."""

    def __init__(self, band_width=1.0, penalty=0):
        self.index = Index()
        self.classes = Classes(band_width)
        self.order = (
            BandedOrder(self.index, self.classes, penalty)
            if band_width
            else ExactOrder(self.index, self.classes)
        )
        self.next_place = 1

    def publish(self, at_ms, importance=5, rate=0.0, count=1, span_ms=HOUR_MS):
        known = self.classes.of_key(class_key(importance, round(rate * RATE_UNIT), span_ms))
        first, place = self.index.next_seq, self.next_place
        self.next_place += count
        for i in range(count):
            self.write(first + i, known, place + i, at_ms)
        self.order.extend(known, first, count, place, at_ms)
        return first

    def write(self, seq, known, place, at_ms, failures=0):
        enqueued, dead = at_ms | failures << HIGH, known.number << HIGH
        self.index.write(
            seq,
            ROW.pack(READY, 0, known.importance, 0, 0, enqueued, dead, 0, place, 1, *[0] * 5),
        )

    def give_back(self, seq, now_ms, failures=1, keep_place=False):
        row = self.index.read(seq)
        place = row[8] & LOW48 if keep_place else self.next_place
        self.next_place += not keep_place
        self.write(seq, self.classes.all[row[6] >> HIGH], place, row[5] & LOW48, failures)
        self.order.enter(seq, place, now_ms)

    def free(self, *seqs):
        for seq in seqs:
            self.index.free(*self.index.locate(seq))


def grown_bytes(work):
    """How much more memory is in use after doing the work again than after the first time."""
    tracemalloc.start()
    work()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(4):
        work()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown


def test_higher_bands_come_first_and_inside_a_band_the_first_in():
    store = Store()
    low, high, low_again = store.publish(0, 2), store.publish(0, 9), store.publish(0, 2)
    assert store.order.pop(10, 0) == [high, low, low_again]


def test_a_row_that_fell_two_bands_does_not_overtake_older_ones_of_its_class():
    store = Store()
    old = store.publish(1_000, 10, 1.0)
    store.order.cross(1_000 + HOUR_MS // 8, NEVER)
    young = store.publish(1_000 + HOUR_MS // 8, 10, 1.0)
    first = store.publish(1_000 + HOUR_MS // 8, 1)
    # Both are in band 1 or below by the time anybody looks.
    now_ms = 1_000 + 2 * HOUR_MS
    assert store.order.pop(10, now_ms) == [first, old, young]


def publish_in_turn(store, kinds, turns, at_ms=0):
    """Publish one message of each (importance, rate) in turn; returns the rows of each kind."""
    rows = [[store.publish(at_ms, *kind) for kind in kinds] for _ in range(turns)]
    return [[turn[number] for turn in rows] for number in range(len(kinds))]


SLOW = [(5, rate / 256) for rate in range(1, 10)]


def test_rows_that_leave_the_band_while_they_wait_in_a_run_are_delivered_later():
    store = Store()
    fast, *slow = publish_in_turn(store, [(5, 1.0), *SLOW], 20)
    assert store.order.pop(1, 0) == fast[:1]
    assert store.order.pop(1_000, HOUR_MS // 2) == sorted(chain(*slow)) + fast[1:]


def test_rows_of_a_run_cross_before_the_younger_ones_of_their_class():
    store = Store()
    fast, *slow = publish_in_turn(store, [(5, 1.0), *SLOW], 20)
    assert store.order.pop(1, 0) == fast[:1]
    fast += [store.publish(1, 5, 1.0) for _ in range(10)]
    store.order.cross(HOUR_MS // 2, NEVER)
    assert store.order.pop(1_000, HOUR_MS // 2) == sorted(chain(*slow)) + fast[1:]


def test_rows_that_cross_into_a_band_are_merged_with_its_run():
    store = Store()
    fading, *steady = publish_in_turn(store, [(6, 0.5), *SLOW], 20)
    # Taking the least makes a run of the band below.
    assert store.order.pop_least(0) == steady[0][0]
    expected = sorted(chain(fading, *steady))
    expected.remove(steady[0][0])
    assert store.order.pop(7, HOUR_MS // 2) == expected[:7]
    assert store.order.pop(1_000, HOUR_MS // 2) == expected[7:]


def test_the_oldest_is_found_among_lines_and_run():
    store = Store()
    fading, *steady = publish_in_turn(store, [(6, 0.5), *SLOW], 20)
    assert store.order.pop_least(0) == steady[0][0]
    expected = sorted(chain(fading, *steady))
    expected.remove(steady[0][0])
    store.order.cross(HOUR_MS // 2, NEVER)
    assert [store.order.pop_oldest(HOUR_MS // 2) for _ in expected] == expected


def test_rows_of_a_run_cross_first_also_when_their_class_is_looked_at_early():
    store = Store()
    assert store.publish(0, 5, 1.0) == store.order.pop(1, 0)[0]
    fast, *_ = publish_in_turn(store, [(5, 1.0), *SLOW], 20, at_ms=100)
    assert store.order.pop_least(100) == fast[0]
    fast += [store.publish(200, 5, 1.0) for _ in range(10)]
    store.order.cross(HOUR_MS // 2, NEVER)
    assert store.order.pop(1_000, HOUR_MS // 2)[-29:] == fast[1:]


@pytest.mark.parametrize("count", [1, 3, 50])
def test_displaced_rows_fade_like_others(count):
    store = Store()
    fading = store.publish(0, 9, 1.0, count=count)
    store.order.pop(count, 0)
    for seq in range(fading, fading + count):
        store.give_back(seq, 0)
    steady = store.publish(0, 8, count=count)
    faded = [*range(fading, fading + count)]
    expected = [*range(steady, steady + count), *faded]
    assert store.order.peek(1_000, HOUR_MS // 2) == expected
    assert store.order.pop(count, HOUR_MS // 2) == expected[:count]
    assert store.order.pop(count, HOUR_MS // 2) == faded


def test_a_row_given_back_at_its_place_is_first_again():
    store = Store()
    first = store.publish(0, count=10)
    assert store.order.pop(3, 0) == [first, first + 1, first + 2]
    store.give_back(first + 1, 0, keep_place=True)
    assert store.order.pop(3, 0) == [first + 1, first + 3, first + 4]


def test_a_retried_row_waits_at_the_tail_of_its_band():
    store = Store()
    first = store.publish(0, count=3)
    store.order.pop(1, 0)
    store.give_back(first, 0)
    last = store.publish(0)
    assert store.order.pop(10, 0) == [first + 1, first + 2, first, last]


def test_failures_lower_the_band_but_not_below_the_lowest():
    store = Store(penalty=2)
    seqs = [store.publish(0, importance) for importance in (5, 4, 2, 1)]
    store.order.pop(1, 0)
    store.give_back(seqs[0], 0, failures=1)
    assert store.order.peek(10, 0) == [seqs[1], seqs[0], seqs[2], seqs[3]]
    store.order.pop(2, 0)
    store.give_back(seqs[0], 0, failures=100)
    assert store.order.pop(10, 0) == [seqs[2], seqs[3], seqs[0]]


def test_a_ghost_before_displaced_rows_does_not_block_them():
    store = Store()
    first = store.publish(0, count=6)
    store.order.pop(1, 0)
    store.give_back(first, 0, keep_place=True)
    store.free(first + 1)
    assert [seq for seq in store.order.pop(10, 0) if seq != first + 1] == [
        first, *range(first + 2, first + 6),
    ]  # fmt: skip


@pytest.mark.parametrize("band_width", [1.0, 0])
def test_the_oldest_may_be_a_displaced_row(band_width):
    store = Store(band_width)
    old = store.publish(1_000, 1)
    assert store.order.pop(1, 1_000) == [old]
    young = store.publish(2_000, 9)
    store.give_back(old, 2_000, keep_place=True)
    assert store.order.pop_oldest(2_000) == old
    assert store.order.pop_oldest(2_000) == young
    assert store.order.pop_oldest(2_000) == -1


@pytest.mark.parametrize("band_width", [1.0, 0])
def test_the_least_may_be_a_displaced_row(band_width):
    store = Store(band_width)
    least = store.publish(1_000, 1)
    assert store.order.pop(1, 1_000) == [least]
    store.publish(1_000, 5)
    store.give_back(least, 2_000)
    assert store.order.pop_least(2_000) == least


def test_the_oldest_is_found_also_when_it_crosses_while_bands_are_compared():
    store = Store()
    fading = store.publish(0, 2, 1.0)
    low = store.publish(0, 1)
    assert store.order.pop_oldest(HOUR_MS - 1) == fading
    assert store.order.pop_oldest(HOUR_MS - 1) == low


def test_the_least_counts_what_has_just_crossed():
    store = Store()
    steady, fading = store.publish(0, 2), store.publish(0, 9, 1.0)
    assert store.order.pop_least(HOUR_MS * 2) == fading
    assert store.order.pop_least(HOUR_MS * 2) == steady


def test_a_whole_quiet_hour_crosses_at_once_or_in_slices_with_the_same_result():
    results = []
    for sliced in (False, True):
        store = Store()
        for minute in range(60):
            store.publish(minute * 60_000, 10, 1.0, count=300)
            store.publish(minute * 60_000, 7, 0.5, count=300)
        now_ms = HOUR_MS + HOUR_MS // 2
        while sliced and store.order.next_crossing_ms() <= now_ms:
            assert store.order.cross(now_ms, 1_000) <= 1_000 + 4_096
        results.append(store.order.pop(40_000, now_ms))
    assert len(results[0]) == 36_000
    assert results[0] == results[1]


def test_a_publish_and_lease_steady_state_does_not_grow():
    store = Store()
    now_ms = 1_000

    def work():
        nonlocal now_ms
        for i in range(1_000):
            now_ms += 10
            seq = store.publish(now_ms, 1 + i % 10, (i % 7) / 8)
            assert store.order.pop(1, now_ms) == [seq]
            store.free(seq)

    assert grown_bytes(work) < 20_000


def test_classes_that_are_no_longer_used_cost_nothing():
    store = Store()
    now_ms = 1_000

    def work():
        nonlocal now_ms
        for i in range(200):
            store.publish(now_ms, 1 + i % 10, (1 + i // 10) / 256, count=3)
        now_ms += 300 * HOUR_MS
        store.order.cross(now_ms, NEVER)
        while seqs := store.order.pop(100, now_ms):
            store.free(*seqs)
        store.order.cross(now_ms + 300 * HOUR_MS, NEVER)

    assert grown_bytes(work) < 20_000


@pytest.mark.parametrize("band_width", [1.0, 0])
def test_ghosts_of_a_band_that_is_never_served_are_let_go(band_width):
    store = Store(band_width)
    store.publish(0, 1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(16):
        first = store.publish(0, 1, count=4_096)
        store.free(*range(first, first + 4_096))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 16 * 4_096 * 4 // 2
    assert store.order.peek(10, 0) == [1]


def test_many_ghosts_are_skipped_in_few_calls():
    for band_width in (1.0, 0):
        store = Store(band_width)
        alive = store.publish(0, 1)
        for importance in (5, 5, 6):
            first = store.publish(1, importance, count=5_000)
            store.free(*range(first, first + 5_000))
        calls = 0
        while alive not in store.order.pop(1, 1):
            calls += 1
        assert calls < 20


def test_an_order_is_loaded_from_rows_of_all_ages():
    for band_width in (1.0, 0.5, 0):
        store, other = Store(band_width), Store(band_width)
        for filled in (store, other):
            for minute in range(60):
                filled.publish(minute * 60_000, 10, 1.0, count=3)
                filled.publish(minute * 60_000, 3, 0.3, count=2)
        fresh = (
            BandedOrder(other.index, other.classes, 0)
            if band_width
            else ExactOrder(other.index, other.classes)
        )
        seqs = np.arange(1, 301, dtype=np.uint64)
        fresh.load(
            (other.index.column(seqs, "dead") >> np.uint64(HIGH)).astype(np.int64),
            seqs,
            other.index.column(seqs, "enqueued"),
            HOUR_MS,
        )
        assert fresh.pop(400, HOUR_MS) == store.order.pop(400, HOUR_MS)


def test_exact_order_takes_the_freshest_first_and_then_the_shortest_history():
    store = Store(0)
    first = store.publish(1_000, 5, 0.5, count=3)
    fresh = store.publish(2_000, 5, 0.5)
    assert store.order.pop(4, 2_000) == [fresh, first + 2, first + 1, first]
    for failures in (2, 0, 1):
        store.give_back(first + failures, 2_000, failures=failures)
    assert store.order.pop(3, 2_000) == [first, first + 1, first + 2]


def test_exact_order_follows_values_as_they_fade():
    store = Store(0)
    fading, steady = store.publish(0, 9, 1.0), store.publish(0, 5)
    assert store.order.peek(2, 0) == [fading, steady]
    assert store.order.peek(2, HOUR_MS // 2) == [steady, fading]
    assert store.order.pop(1, HOUR_MS // 2) == [steady]
