"""Adaptive message decay and prioritization, sentence by sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import InvalidMessage
from ebbmq.journal.disk import MemoryDisk
from ebbmq.model import AdaptSpec
from ebbmq.node import publishing
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path, clock=clock) as broker:
        yield broker


def bodies(broker: Broker, queue: str = "q", count: int = 100) -> list[bytes]:
    return [lease.body for lease in broker.lease(queue, count=count)]


def test_each_message_includes_importance_ttl_decay_rate_and_latency_history(
    broker: Broker,
) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"m", importance=7, ttl_ms=90_000, decay_rate=0.25)])
    (lease,) = broker.lease("q")
    assert (lease.importance, lease.ttl_ms, lease.decay_rate) == (7, 90_000, 0.25)
    assert lease.latency_history == ()


def test_the_importance_level_is_client_defined_from_1_to_10(broker: Broker) -> None:
    broker.declare(QueueSpec("q", default_importance=3))
    broker.publish("q", [Message(b"1", importance=1), Message(b"10", importance=10), Message(b"")])
    assert [lease.importance for lease in broker.lease("q", count=3)] == [10, 3, 1]
    for outside in (0, 11):
        with pytest.raises(InvalidMessage):
            Message(b"m", importance=outside)


def test_current_importance_is_importance_times_one_minus_rate_times_age(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("hour", decay_unit_ms=HOUR_MS))
    broker.declare(QueueSpec("ttl"))
    broker.publish("hour", [Message(b"m", importance=10, decay_rate=0.5)])
    broker.publish("ttl", [Message(b"m", importance=8, decay_rate=0.5, ttl_ms=100_000)])
    clock.advance(50_000)
    (by_ttl,) = broker.peek("ttl", 1)
    assert by_ttl.current_importance == pytest.approx(8 * (1 - 0.5 * 50_000 / 100_000))
    clock.advance(HOUR_MS - 50_000)
    (by_unit,) = broker.peek("hour", 1)
    assert by_unit.current_importance == pytest.approx(10 * (1 - 0.5 * 1))


def test_higher_rates_indicate_faster_decay(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q"))
    rates = [0.125, 0.25, 0.5]
    broker.publish("q", [Message(b"m", importance=10, decay_rate=rate) for rate in rates])
    clock.advance(HOUR_MS)
    left = {p.decay_rate: p.current_importance for p in broker.peek("q", 3)}
    assert left[0.125] > left[0.25] > left[0.5]


def test_a_rate_of_0_means_no_decay(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"m", importance=2)])
    clock.advance(1_000 * HOUR_MS)
    (lease,) = broker.lease("q")
    assert lease.current_importance == 2


def test_the_message_with_the_highest_current_importance_is_selected(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"fades", importance=9, decay_rate=0.5)])
    broker.publish("q", [Message(b"lasts", importance=6)])
    assert [p.body for p in broker.peek("q", 2)] == [b"fades", b"lasts"]
    clock.advance(HOUR_MS)
    assert bodies(broker) == [b"lasts", b"fades"]


def test_it_is_selected_among_those_whose_acknowledgements_are_complete(tmp_path: Path) -> None:
    with Broker.open(tmp_path, clock=ManualClock(), disk=MemoryDisk(), threaded=False) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"complete", importance=1)])
        waiting = [Message(b"waiting", importance=10)]
        _, _, position = publishing.publish(broker.engine, "q", waiting, "synced")
        assert bodies(broker) == [b"complete"]
        broker.engine.journal.wait("synced", position)
        assert bodies(broker) == [b"waiting"]


def test_the_band_that_is_shown_is_the_band_that_decides(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", stale_threshold=0))
    rates, ttls = (0.1, 0.3, 0.7, 1.0), (300, 350, 400, 1_000)
    fading = [Message(b"", decay_rate=rate, ttl_ms=ttl) for rate in rates for ttl in ttls]
    broker.publish("q", [*fading, Message(b"", importance=4), Message(b"", importance=3)])
    for _ in range(14):
        clock.advance(20)
        bands = [peeked.band for peeked in broker.peek("q", 100)]
        assert bands == sorted(bands, reverse=True)


def test_age_counts_from_the_first_publish_also_after_a_failure(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", retry_delay_ms=0))
    broker.publish("q", [Message(b"m", importance=10, decay_rate=0.5)])
    (lease,) = broker.lease("q")
    clock.advance(10_000)
    broker.retry("q", [lease.token])
    clock.advance(HOUR_MS - 10_000)
    (again,) = broker.lease("q")
    assert again.current_importance == pytest.approx(5)
    assert again.enqueued_at_ms == lease.enqueued_at_ms


def test_of_equal_current_importance_the_one_with_the_shortest_history_is_selected(
    broker: Broker,
) -> None:
    broker.declare(QueueSpec("q", retry_delay_ms=0))
    broker.publish("q", [Message(b"failed twice"), Message(b"failed once"), Message(b"fresh")])
    twice, once = broker.lease("q", count=2)
    broker.retry("q", [twice.token, once.token])
    fresh, twice, once = broker.lease("q", count=3)
    assert (fresh.body, twice.body) == (b"fresh", b"failed twice")
    broker.release("q", [fresh.token, once.token])
    broker.retry("q", [twice.token])
    assert bodies(broker) == [b"fresh", b"failed once", b"failed twice"]


@pytest.mark.parametrize("band_width", [0.0, 1.0])
def test_messages_that_have_been_retried_are_not_favoured(
    broker: Broker, band_width: float
) -> None:
    broker.declare(QueueSpec("q", retry_delay_ms=0, band_width=band_width))
    broker.publish("q", [Message(b"poison")])
    (lease,) = broker.lease("q")
    broker.publish("q", [Message(b"fresh")])
    broker.retry("q", [lease.token])
    assert bodies(broker) == [b"fresh", b"poison"]


def test_a_failure_penalty_lowers_the_band_of_what_keeps_failing(broker: Broker) -> None:
    broker.declare(QueueSpec("q", retry_delay_ms=0, failure_penalty=3))
    broker.publish("q", [Message(b"poison", importance=7), Message(b"plain", importance=5)])
    (lease,) = broker.lease("q")
    assert lease.body == b"poison"
    broker.retry("q", [lease.token])
    assert [(p.body, p.band) for p in broker.peek("q", 2)] == [(b"plain", 5), (b"poison", 4)]


def test_the_history_records_the_time_taken_to_process_the_message(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=5_000, retry_delay_ms=0))
    broker.publish("q", [Message(b"m")])
    (lease,) = broker.lease("q")
    clock.advance(120)
    broker.retry("q", [lease.token])
    broker.lease("q")
    clock.advance(5_000)
    (lease,) = broker.lease("q")
    first, second = lease.latency_history
    assert (first.attempt, first.duration_ms) == (1, 120)
    assert (second.attempt, second.duration_ms) == (2, 5_000)
    assert first.outcome != second.outcome


def test_the_history_keeps_the_last_8_and_survives_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", retry_delay_ms=0))
        broker.publish("q", [Message(b"m")])
        for number in range(1, 11):
            (lease,) = broker.lease("q")
            clock.advance(number)
            broker.retry("q", [lease.token])
    with Broker.open(tmp_path, clock=clock) as broker:
        (lease,) = broker.lease("q")
        assert [t.duration_ms for t in lease.latency_history] == [3, 4, 5, 6, 7, 8, 9, 10]
        assert [t.attempt for t in lease.latency_history] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_the_history_keeps_the_last_8_however_often_a_message_is_redriven(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", max_attempts=1, retry_delay_ms=0, dead_queue="q.dead"))
    broker.publish("q", [Message(b"m")])
    for number in range(1, 12):
        (lease,) = broker.lease("q")
        clock.advance(number)
        broker.retry("q", [lease.token])
        clock.advance(1)
        broker.redrive("q.dead")
    (seen,) = broker.peek("q")
    assert [t.duration_ms for t in seen.latency_history] == [4, 5, 6, 7, 8, 9, 10, 11]
    (lease,) = broker.lease("q")
    assert lease.latency_history == seen.latency_history


def test_a_message_is_only_removed_when_the_client_acknowledged_it(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, retry_delay_ms=0))
    broker.publish("q", [Message(b"m")])
    for attempt in (1, 2, 3):
        (lease,) = broker.lease("q")
        assert lease.attempt == attempt
        clock.advance(1_000)
    (lease,) = broker.lease("q")
    broker.ack("q", [lease.token])
    clock.advance(10 * HOUR_MS)
    assert bodies(broker) == []
    assert broker.removals("q") == []


def test_a_message_below_the_threshold_before_processing_is_stale_and_removed(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", stale_threshold=1.0))
    broker.publish("q", [Message(b"m", importance=10, decay_rate=1.0)])
    clock.advance(HOUR_MS * 9 // 10 - 1)
    assert broker.stats("q")["depth"]["ready"] == 1
    clock.advance(2)
    assert broker.stats("q")["depth"]["ready"] == 0
    assert bodies(broker) == []


def test_importance_1_is_not_stale_when_it_is_published(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"m", importance=1, decay_rate=1.0)])
    clock.advance(HOUR_MS // 2)
    assert broker.stats("q")["depth"]["ready"] == 1
    clock.advance(1)
    assert broker.stats("q")["depth"]["ready"] == 0


def test_a_message_being_processed_does_not_go_stale(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=2 * HOUR_MS))
    broker.publish("q", [Message(b"m", importance=10, decay_rate=1.0)])
    (lease,) = broker.lease("q")
    clock.advance(HOUR_MS + 1)
    broker.ack("q", [lease.token])
    assert broker.removals("q") == []


def test_a_stale_message_that_fails_is_removed_then(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=2 * HOUR_MS))
    broker.publish("q", [Message(b"m", importance=10, decay_rate=1.0)])
    (lease,) = broker.lease("q")
    clock.advance(HOUR_MS + 1)
    broker.retry("q", [lease.token], delay_ms=0)
    assert [removal.reason for removal in broker.removals("q")] == ["stale"]


def test_a_log_entry_is_created_for_each_removed_stale_message(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    fading = Message(b"m", importance=4, decay_rate=1.0)
    receipts = broker.publish("q", [fading] * 500)
    clock.advance(HOUR_MS)
    removals = broker.removals("q")
    assert [removal.id for removal in removals] == [receipt.id for receipt in receipts]
    assert {removal.reason for removal in removals} == {"stale"}
    assert all(removal.current_importance < 1 for removal in removals)
    assert broker.stats("q")["totals"]["stale"] == 500


def test_stale_messages_may_go_to_the_dead_queue_instead(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", on_stale="dead_letter", dead_queue="q.dead"))
    broker.publish("q", [Message(b"m", decay_rate=1.0)])
    clock.advance(HOUR_MS)
    assert bodies(broker, "q.dead") == [b"m"]


def test_the_queue_is_not_filled_with_obsolete_data_even_without_consumers(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", decay_rate=1.0))
    for _ in range(20):
        broker.publish("q", [Message(b"x" * 1_000) for _ in range(50)])
        clock.advance(HOUR_MS)
    assert broker.stats("q")["depth"]["ready"] == 0
    assert broker.stats("q")["bytes"] == 0


def test_critical_messages_are_processed_first_even_under_high_load(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", decay_rate=0.5))
    late: list[bytes] = []
    for tick in range(50):
        messages = [Message(b"bulk %d" % tick, importance=3) for _ in range(20)]
        broker.publish("q", [*messages, Message(b"critical %d" % tick, importance=10)])
        clock.advance(1_000)
        leases = broker.lease("q", count=2)
        if leases[0].body != b"critical %d" % tick:
            late.append(leases[0].body)
        broker.ack("q", [lease.token for lease in leases])
    assert late == []


SLOW = AdaptSpec(raise_above_ms=1_000, lower_below_ms=100, step=2.0, dwell_ms=10_000, window=4)


def process(broker: Broker, clock: ManualClock, took_ms: int, times: int) -> None:
    for _ in range(times):
        broker.publish("q", [Message(b"work", importance=10)])
        (lease,) = broker.lease("q")
        clock.advance(took_ms)
        broker.ack("q", [lease.token])


def test_latency_above_the_threshold_increases_the_rate_of_newly_published_messages(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", decay_rate=0.125, adapt=SLOW))
    broker.publish("q", [Message(b"before", importance=1)])
    process(broker, clock, took_ms=3_000, times=12)
    broker.publish("q", [Message(b"after", importance=1)])
    rates = {p.body: p.decay_rate for p in broker.peek("q", 10)}
    assert rates[b"before"] == 0.125
    assert rates[b"after"] > 0.125
    assert broker.stats("q")["decay_factor"] > 1


def test_when_latency_decreases_the_rate_is_reduced(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q", decay_rate=0.125, adapt=SLOW))
    process(broker, clock, took_ms=3_000, times=12)
    raised = broker.stats("q")["decay_factor"]
    for _ in range(20):
        process(broker, clock, took_ms=1, times=6)
        clock.advance(10_000)
    assert broker.stats("q")["decay_factor"] < raised


@pytest.mark.parametrize("same_queue", [True, False])
def test_a_decay_factor_that_was_set_outlives_a_restart_and_ends_with_its_queue(
    tmp_path: Path, clock: ManualClock, same_queue: bool
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.set_decay_factor("q", 2.0, clock.wall_ms() + HOUR_MS)
        if not same_queue:
            broker.delete("q")
            broker.declare(QueueSpec("q"))
    with Broker.open(tmp_path, clock=clock) as broker:
        assert broker.stats("q")["decay_factor"] == (2.0 if same_queue else 1.0)


def test_the_factor_of_a_queue_outlives_a_restart_and_a_changed_declaration(
    tmp_path: Path, clock: ManualClock
) -> None:
    spec = QueueSpec("q", decay_rate=0.125, adapt=SLOW, partitions=2)
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(spec)
        process(broker, clock, took_ms=3_000, times=24)
        raised = broker.stats("q")["decay_factor"]
        assert raised > 1
        broker.declare(replace(spec, lease_timeout_ms=60_000), change=True)
        assert broker.stats("q")["decay_factor"] == raised
    with Broker.open(tmp_path, clock=clock) as broker:
        assert broker.stats("q")["decay_factor"] == raised
        broker.publish("q", [Message(b"after", importance=1)])
        assert broker.peek("q", 1)[0].decay_rate > 0.125
        broker.declare(QueueSpec("q", decay_rate=0.125, partitions=2), change=True)
        assert broker.stats("q")["decay_factor"] == 1


def test_a_decay_factor_that_was_set_outlives_a_changed_declaration(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    broker.set_decay_factor("q", 2.0, clock.wall_ms() + HOUR_MS)
    broker.declare(QueueSpec("q", lease_timeout_ms=60_000), change=True)
    assert broker.stats("q")["decay_factor"] == 2.0


def test_a_rate_of_0_is_not_raised(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q", adapt=SLOW))
    process(broker, clock, took_ms=3_000, times=12)
    broker.publish("q", [Message(b"m")])
    assert broker.peek("q", 1)[0].decay_rate == 0


def test_of_a_ttl_the_end_is_the_end_of_the_message(broker: Broker, clock: ManualClock) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"m", ttl_ms=1_000)])
    clock.advance(999)
    assert len(broker.peek("q", 1)) == 1
    clock.advance(1)
    assert broker.peek("q", 1) == []
    assert [removal.reason for removal in broker.removals("q")] == ["expired"]


def test_a_fair_share_of_leases_goes_to_the_oldest_of_any_band(broker: Broker) -> None:
    broker.declare(QueueSpec("q", fair_share=5))
    broker.publish("q", [Message(b"old %d" % i, importance=1) for i in range(3)])
    broker.publish("q", [Message(b"new", importance=10) for _ in range(30)])
    got = [broker.lease("q")[0].body for _ in range(15)]
    assert got.count(b"old 0") == 1
    assert sum(body.startswith(b"old") for body in got) == 3


def test_fresh_first_delivers_the_newest_of_equal_importance_first(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec.fresh_first("q"))
    for number in range(5):
        broker.publish("q", [Message(b"%d" % number)])
        clock.advance(1_000)
    assert bodies(broker) == [b"4", b"3", b"2", b"1", b"0"]
