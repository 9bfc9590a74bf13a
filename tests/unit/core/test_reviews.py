"""When stored messages are looked at again."""

from __future__ import annotations

import pytest

from ebbmq import Message, QueueSpec
from ebbmq.core import arrivals, grants, leases
from ebbmq.core.partition import Partition
from ebbmq.core.reviews import Reviews, ages_of
from ebbmq.core.tokens import TOKEN
from ebbmq.limits import DAY_MS
from ebbmq.node import intake
from ebbmq.policy.decay import Access
from ebbmq.policy.placement import Terms

SPEC = QueueSpec("q", score_per_day=10, score_medium=20, score_high=50, score_access_bonus=1)


def publish(partition: Partition, count: int, now_ms: int) -> list[int]:
    first = partition.index.next_seq
    runs = arrivals.publish(partition, intake.pack([Message(b"x")] * count), now_ms, 1, 0)
    partition.open_runs(runs)
    return list(range(first, first + count))


@pytest.fixture
def partition() -> Partition:
    return Partition(1, SPEC, 0)


def test_the_ages_are_those_at_which_a_threshold_is_passed():
    assert ages_of(Terms.of(SPEC)) == [2 * DAY_MS + 1, 5 * DAY_MS + 1]


def test_what_never_fades_is_never_looked_at():
    assert ages_of(Terms.of(QueueSpec("q"))) == []


def test_a_message_that_may_get_more_copies_is_looked_at_after_the_first_interval():
    terms = Terms.of(QueueSpec("q", max_replicas=3, evaluate_every_ms=5_000))
    assert ages_of(terms) == [5_000]


def test_nobody_is_looked_at_before_the_first_interval():
    spec = QueueSpec("q", score_per_day=1e9, evaluate_every_ms=7_000)
    assert ages_of(Terms.of(spec)) == [7_000]


def test_each_message_is_due_once_for_each_age_in_order(partition):
    reviews = Reviews(partition.index)
    reviews.adopt([100, 200])
    early, late = publish(partition, 5_000, 0), publish(partition, 10, 50)
    assert reviews.due(99, 10_000) == []
    assert reviews.due(100, 10_000) == early
    assert reviews.due(149, 10_000) == []
    assert reviews.due(150, 10_000) == late
    assert reviews.due(250, 10_000) == early + late
    assert reviews.due(10_000, 10_000) == []


def test_what_is_due_comes_in_parts_and_all_of_it(partition):
    reviews = Reviews(partition.index)
    reviews.adopt([100])
    seqs = publish(partition, 1_000, 0)
    found: list[int] = []
    while some := reviews.due(100, 64):
        assert len(some) <= 64
        found += some
    assert found == seqs


def test_messages_that_left_are_not_due_also_where_few_are_left_of_a_page(partition):
    reviews = Reviews(partition.index)
    reviews.adopt([100])
    seqs = publish(partition, 8_192, 0)
    granted = grants.lease(partition, 8_190, 1_000, 7, 10)
    tokens = [(1, seq, 1, 0, 7) for seq in granted.seqs]
    packed = b"".join(TOKEN.pack(*token) for token in tokens)
    assert leases.ack(partition, packed, 20) == []
    publish(partition, 3, 60)
    assert reviews.due(100, 10_000) == seqs[-2:]


def test_cursors_go_on_where_they_were(partition):
    reviews = Reviews(partition.index)
    reviews.adopt([100])
    publish(partition, 10, 0)
    reviews.due(100, 4)
    again = Reviews(partition.index)
    again.cursors = dict(reviews.cursors)
    again.adopt([100, 500])
    assert again.due(100, 100) == [5, 6, 7, 8, 9, 10]
    assert len(again.due(500, 100)) == 10


def test_a_single_message_is_due_at_its_own_instant(partition):
    reviews = Reviews(partition.index)
    (seq,) = publish(partition, 1, 0)
    reviews.look_at(seq, 70)
    assert reviews.due(69, 10) == []
    assert reviews.due(70, 10) == [seq]
    assert reviews.due(70, 10) == []


def test_a_lease_is_an_access_and_a_failed_one_is_none(partition):
    (seq,) = publish(partition, 1, 0)
    granted = grants.lease(partition, 1, 1_000, 7, 10)
    assert granted.seqs == [seq]
    assert partition.accesses.of(seq) == Access(1.0, 10)
    leases.retry(partition, [(1, seq, 1, 0, 7)], 0, 20)
    assert partition.accesses.of(seq).rate == pytest.approx(0.0, abs=1e-9)


def test_a_released_lease_stays_an_access_and_an_ack_forgets_it(partition):
    (seq,) = publish(partition, 1, 0)
    grants.lease(partition, 1, 1_000, 7, 10)
    leases.release(partition, [(1, seq, 1, 0, 7)], 20)
    assert partition.accesses.of(seq).rate == 1.0
    grants.lease(partition, 1, 1_000, 8, 30)
    assert leases.ack(partition, TOKEN.pack(1, seq, 2, 0, 8), 40) == []
    assert len(partition.accesses) == 0


def test_where_reads_do_not_count_nothing_is_kept_of_them():
    partition = Partition(1, QueueSpec("q"), 0)
    publish(partition, 3, 0)
    grants.lease(partition, 3, 1_000, 7, 10)
    assert len(partition.accesses) == 0
