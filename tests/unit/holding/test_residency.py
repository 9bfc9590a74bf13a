"""The RAM residency of bodies: what is kept, what goes first, what is read next."""

from __future__ import annotations

import pytest

from ebbmq import limits
from ebbmq.holding.residency import Residency
from ebbmq.holding.resident import DEPTH_AFTER_MISS, DEPTH_OF_UNKNOWN

COST = 1_000
BODY = bytes(COST - limits.CACHE_ENTRY_OVERHEAD_BYTES)


def fifo(entries, *, node=None, pid=1, **options):
    """A partition whose share holds exactly `entries` bodies of one size."""
    return (node or Residency()).open(pid, entries * COST, True, True, **options)


def publish(resident, seqs, importance=5):
    resident.admit_many(seqs[0], [importance] * len(seqs), [BODY] * len(seqs))


def kept(resident, seqs, importance=5):
    return [seq for seq in seqs if resident.get(seq, importance) is not None]


def test_a_published_body_is_handed_over_once_by_its_lease():
    node = Residency()
    resident = node.open(1, limits.QUEUE_CACHE_BYTES, True, True)
    resident.admit_many(1, [5, 9], [b"five", b""])
    assert resident.bytes == node.bytes == 4 + 2 * limits.CACHE_ENTRY_OVERHEAD_BYTES
    assert resident.take(1, 5) == b"five"
    assert resident.take(2, 9) == b""
    assert resident.take(1, 5) is None
    assert (resident.hits, resident.misses, resident.entries) == (2, 1, 0)
    assert resident.bytes == node.bytes == 0


def test_a_batch_of_leases_counts_and_returns_what_single_ones_do():
    resident = fifo(10)
    resident.admit_many(1, [5, 5, 7], [b"a", b"", b"c"])
    assert resident.take_many([3, 1, 9, 2], [7, 5, 5, 5]) == [b"c", b"a", None, b""]
    assert (resident.hits, resident.misses, resident.bytes) == (3, 1, 0)


def test_peek_neither_moves_nor_counts():
    resident = fifo(10)
    publish(resident, [1])
    assert resident.get(1, 5) == BODY
    assert resident.get(2, 5) is None
    assert (resident.hits, resident.misses, resident.entries) == (0, 0, 1)


def test_a_message_that_leaves_without_a_lease_frees_its_body():
    node = Residency()
    resident = fifo(10, node=node)
    publish(resident, [1, 2])
    resident.drop(1, 5)
    resident.drop(1, 5)
    assert (node.bytes, resident.bytes, resident.hits, resident.misses) == (COST, COST, 0, 0)


def test_in_a_full_fifo_the_head_stays_and_new_bodies_pass_by():
    resident = fifo(3)
    publish(resident, [1, 2])
    publish(resident, [3, 4, 5])
    assert kept(resident, range(1, 6)) == [1, 2, 3]
    assert resident.evicted == 0


def test_what_is_behind_a_gap_is_not_kept_until_read_ahead_has_closed_it():
    resident = fifo(3)
    publish(resident, [1, 2, 3, 4])
    resident.take(1, 5)
    publish(resident, [5])
    assert kept(resident, [4, 5]) == []
    resident.take(2, 5)
    assert resident.admit(4, 5, BODY)
    publish(resident, [6])
    assert kept(resident, [4, 5, 6]) == [4]
    resident.take(3, 5)
    assert resident.admit(5, 5, BODY)
    resident.take(4, 5)
    assert resident.admit(6, 5, BODY)
    publish(resident, [7])
    assert kept(resident, [5, 6, 7]) == [5, 6, 7]


def test_delivery_that_overtakes_the_gap_closes_it_too():
    resident = fifo(1)
    publish(resident, [1, 2])
    assert resident.take(1, 5) is not None
    assert resident.take(2, 5) is None
    publish(resident, [3])
    assert kept(resident, [3]) == [3]


def test_the_lowest_importance_goes_first_and_in_it_the_newest():
    resident = fifo(4)
    publish(resident, [1, 2], importance=2)
    publish(resident, [3, 4], importance=5)
    publish(resident, [5], importance=9)
    assert kept(resident, [1, 2], 2) == [1]
    publish(resident, [6, 7], importance=9)
    assert kept(resident, [1, 2], 2) == []
    assert kept(resident, [3, 4], 5) == [3]
    assert kept(resident, [5, 6, 7], 9) == [5, 6, 7]
    assert resident.evicted == 3


def test_a_body_that_would_itself_be_the_farthest_is_not_kept():
    resident = fifo(2)
    publish(resident, [1, 2], importance=5)
    publish(resident, [3], importance=4)
    assert kept(resident, [1, 2], 5) == [1, 2]
    assert kept(resident, [3], 4) == []
    assert not resident.admit(3, 4, BODY)


def test_one_batch_of_mixed_importance_keeps_the_most_important():
    resident = fifo(3)
    resident.admit_many(1, [1, 9, 2, 8, 7], [BODY] * 5)
    assert [kept(resident, [seq], imp) for seq, imp in [(2, 9), (4, 8), (5, 7)]] == [[2], [4], [5]]


def test_in_a_decaying_queue_the_oldest_goes_first():
    resident = fifo(3, decays=True)
    publish(resident, [1, 2, 3])
    publish(resident, [4, 5])
    assert kept(resident, range(1, 6)) == [3, 4, 5]


def test_in_a_decaying_queue_what_is_read_ahead_outlives_what_was_published():
    resident = fifo(3, decays=True)
    publish(resident, [2, 3, 4], importance=10)
    assert resident.admit(1, 1, BODY)
    publish(resident, [5, 6], importance=10)
    assert kept(resident, [1], 1) == [1]
    assert kept(resident, range(2, 7), 10) == [5, 6]


def test_a_retried_message_read_ahead_is_not_taken_for_the_tail():
    resident = fifo(3)
    publish(resident, [1, 2, 3])
    resident.take(1, 5)
    assert resident.admit(1, 5, BODY)
    publish(resident, [4], importance=9)
    assert kept(resident, [1, 2, 3]) == [1, 2]


def test_a_body_larger_than_the_share_costs_nobody_its_place():
    resident = fifo(2)
    publish(resident, [1, 2], importance=1)
    resident.admit_many(3, [10], [bytes(2 * COST)])
    assert not resident.admit(4, 10, bytes(2 * COST))
    assert kept(resident, [1, 2], 1) == [1, 2]


def test_admitting_again_counts_once():
    resident = fifo(4)
    publish(resident, [1])
    assert resident.admit(1, 5, BODY)
    assert resident.bytes == COST


def test_an_empty_batch_changes_nothing():
    resident = fifo(1)
    resident.admit_many(1, [], [])
    assert resident.entries == 0


def test_a_disabled_cache_keeps_nothing():
    resident = Residency().open(1, limits.QUEUE_CACHE_BYTES, False, True)
    publish(resident, [1])
    assert not resident.admit(1, 5, BODY)
    assert resident.take(1, 5) is None
    assert resident.entries == resident.bytes == resident.wanted(1) == 0
    assert resident.has_room(1 << 40)
    assert resident.state(0) == "normal"
    assert resident.state(1) == "paged"


def test_without_paging_to_disk_nothing_is_evicted_and_full_is_refused():
    node = Residency(10 * COST)
    pinned = node.open(1, 4 * COST, True, False)
    other = fifo(9, node=node, pid=2)
    publish(other, list(range(1, 9)))
    for seq in range(1, 5):
        assert pinned.has_room(len(BODY))
        publish(pinned, [seq])
    assert not pinned.has_room(len(BODY))
    publish(other, [9])
    assert kept(pinned, range(1, 5)) == [1, 2, 3, 4]
    assert pinned.evicted == 0
    pinned.take(1, 5)
    assert pinned.has_room(len(BODY))
    assert not pinned.has_room(2 * len(BODY), 2)


def test_the_node_refuses_what_may_not_be_paged_out_once_nothing_else_can_go():
    node = Residency(10 * COST)
    pinned = node.open(1, 100 * COST, True, False)
    publish(pinned, list(range(1, 10)))
    assert not pinned.has_room(len(BODY))


def test_the_node_takes_from_the_largest_until_low_water():
    node = Residency(100 * COST)
    large, small = fifo(90, node=node, pid=1), fifo(90, node=node, pid=2)
    publish(large, list(range(1, 71)))
    publish(small, list(range(1, 21)))
    assert node.bytes == node.high
    assert not node.is_paging
    publish(small, [21])
    assert node.is_paging
    assert (large.entries, small.entries) == (68, 21)
    for seq in range(22, 31):
        publish(small, [seq])
    assert node.bytes == node.low
    assert (large.entries, small.entries) == (50, 30)
    assert not node.is_paging
    publish(small, [31])
    assert large.entries == 50
    assert kept(large, range(1, 71)) == list(range(1, 51))


def test_the_global_bound_wins_over_the_shares():
    node = Residency(10 * COST)
    resident = fifo(1_000, node=node)
    for seq in range(1, 100):
        publish(resident, [seq])
        assert node.bytes <= node.high
    assert kept(resident, range(1, 100)) == list(range(1, resident.entries + 1))
    assert resident.entries >= 7


def test_closing_a_partition_frees_its_part_of_the_node():
    node = Residency()
    one, two = fifo(9, node=node, pid=1), fifo(9, node=node, pid=2)
    publish(one, [1, 2])
    publish(two, [1])
    node.close(1)
    assert (node.bytes, node.entries) == (COST, 1)
    fifo(9, node=node, pid=1)


def test_states_normal_paging_paged():
    resident = fifo(10)
    publish(resident, list(range(1, 11)))
    assert resident.state(10) == "normal"
    publish(resident, [11, 12])
    assert resident.state(12) == "paging"
    resident.take(1, 5)
    assert resident.state(11) == "paging"
    resident.take(2, 5)
    assert resident.state(10) == "paged"
    for seq in range(3, 11):
        resident.take(seq, 5)
    assert resident.admit(11, 5, BODY)
    assert resident.admit(12, 5, BODY)
    assert resident.state(2) == "normal"


def test_a_partition_within_its_share_is_paging_while_the_node_is():
    node = Residency(100 * COST)
    one, two = fifo(100, node=node, pid=1), fifo(100, node=node, pid=2)
    publish(one, list(range(1, 61)))
    publish(two, list(range(1, 31)))
    publish(two, [31])
    assert one.state(60) == "paging"
    assert two.state(31) == "normal"


def test_nothing_is_read_ahead_while_three_quarters_of_the_window_are_resident():
    resident = fifo(100)
    publish(resident, list(range(1, 101)))
    publish(resident, list(range(101, 200)))
    for seq in range(1, 63):
        resident.take(seq, 5)
    assert resident.wanted(137) == 0
    resident.take(63, 5)
    assert resident.wanted(136) == 50
    assert resident.missing([(seq, 5) for seq in range(64, 114)]) == [
        (seq, 5) for seq in range(101, 114)
    ]


def test_what_is_ready_bounds_what_is_read_ahead():
    resident = fifo(100)
    publish(resident, [1])
    resident.take(1, 5)
    assert resident.wanted(0) == 0
    publish(resident, [2, 3, 4])
    assert resident.wanted(4) == 0
    assert resident.wanted(5) == 5


def test_a_miss_looks_at_the_near_end_once():
    resident = fifo(20_000)
    publish(resident, list(range(1, 20_001)))
    assert resident.wanted(20_000) == 0
    assert resident.take(30_000, 5) is None
    assert resident.wanted(20_000) == DEPTH_AFTER_MISS
    assert resident.wanted(20_000) == 0


def test_after_a_restart_the_first_look_is_shallow_because_sizes_are_unknown():
    resident = fifo(100, stored_through=1_000)
    assert resident.wanted(1_000) == DEPTH_OF_UNKNOWN
    publish(resident, [1_001])
    assert kept(resident, [1_001]) == []
    assert resident.admit(1, 5, BODY)
    assert resident.wanted(1_000) == 50


def test_bodies_that_never_fit_are_not_read_again_and_again():
    resident = fifo(1)
    assert resident.wanted(9) == 9
    assert not resident.admit(1, 5, bytes(2 * COST))
    resident.take(1, 5)
    assert resident.wanted(8) == 0


def test_under_node_pressure_the_window_is_an_even_part():
    node = Residency(100 * COST)
    residents = [fifo(100, node=node, pid=pid) for pid in range(10)]
    for resident in residents:
        publish(resident, list(range(1, 10)))
    publish(residents[0], [10])
    assert node.is_paging
    for seq in range(1, 8):
        residents[1].take(seq, 5)
    assert node.is_paging
    assert residents[1].wanted(1_000) == 8


def test_a_decaying_queue_looks_again_when_half_of_what_it_saw_is_delivered():
    resident = fifo(100, decays=True)
    publish(resident, list(range(1, 1_001)))
    assert resident.is_low
    assert resident.wanted(1_000) == 50
    assert resident.admit_ahead([(seq, 5) for seq in range(1, 51)], [BODY] * 50)
    for seq in range(1, 25):
        resident.take(seq, 5)
    assert not resident.is_low
    assert resident.wanted(976) == 0
    resident.take(25, 5)
    assert resident.is_low
    assert resident.wanted(975) == 50


def test_what_is_read_ahead_together_takes_the_place_of_what_was_published():
    resident = fifo(100, decays=True)
    publish(resident, list(range(1_001, 1_101)))
    assert resident.admit_ahead([(seq, 5) for seq in range(1, 41)], [BODY] * 40)
    assert kept(resident, range(1, 41)) == list(range(1, 41))
    assert 95 <= resident.entries <= 100
    assert resident.state(1_000) == "paging"


@pytest.mark.parametrize(("decays", "newest_first"), [(False, False), (True, True), (True, False)])
def test_a_deep_backlog_is_drained_with_more_than_95_percent_hits(decays, newest_first):
    resident = fifo(1_000, decays=decays)
    for first in range(1, 20_001, 100):
        publish(resident, list(range(first, first + 100)))
    order = list(range(1, 20_001))
    if newest_first:
        order.reverse()
    for at in range(0, 20_000, 50):
        resident.take_many(order[at : at + 50], [5] * 50)
        ready = order[at + 50 :]
        for seq, importance in resident.missing(
            (s, 5) for s in ready[: resident.wanted(len(ready))]
        ):
            assert resident.admit(seq, importance, BODY)
    assert resident.hits + resident.misses == 20_000
    assert resident.hits > 0.95 * 20_000
    assert resident.entries == resident.bytes == 0
