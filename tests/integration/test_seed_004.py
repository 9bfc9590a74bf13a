"""Managing the life cycle of messages, sentence by sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from ebbmq.errors import LeaseLost, StorageFailed
from ebbmq.node import leasing
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLOOD = 10_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path, clock=clock) as broker:
        yield broker


def bodies(broker: Broker, queue: str = "q", count: int = 100) -> list[bytes]:
    return [lease.body for lease in broker.lease(queue, count=count)]


def test_a_lease_past_its_deadline_counts_a_failure_and_is_reset(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, retry_delay_ms=0))
    broker.publish("q", [Message(b"m")])
    (lease,) = broker.lease("q")
    clock.advance(999)
    assert broker.stats("q")["depth"]["leased"] == 1
    clock.advance(1)
    assert broker.stats("q")["depth"]["leased"] == 0
    (peeked,) = broker.peek("q", 1)
    assert (peeked.failures, peeked.deadline_ms, peeked.state) == (1, None, "ready")
    with pytest.raises(LeaseLost):
        broker.ack("q", [lease.token])


def test_a_message_that_reached_max_attempts_is_sent_to_the_dead_queue(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(
        QueueSpec("q", max_attempts=3, retry_delay_ms=0, lease_timeout_ms=10, dead_queue="q.dead")
    )
    broker.publish("q", [Message(b"poison", headers={"color": "red"})])
    for _ in range(3):
        assert bodies(broker) == [b"poison"]
        clock.advance(10)
    assert bodies(broker) == []
    (dead,) = broker.lease("q.dead")
    assert dead.body == b"poison"
    assert dead.headers["color"] == "red"
    (removal,) = broker.removals("q")
    assert removal.reason == "max_attempts"
    assert removal.failures == 3
    assert sum(broker.stats("q")["depth"].values()) == 0


def test_the_headers_of_a_dead_message_say_why_when_and_from_where(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead"))
    (receipt,) = broker.publish("q", [Message(b"poison")])
    (lease,) = broker.lease("q")
    clock.advance(77)
    broker.retry("q", [lease.token])
    (dead,) = broker.lease("q.dead")
    told = " ".join(f"{name}={value}" for name, value in dead.headers.items())
    assert "max_attempts" in told
    assert "q" in dead.headers.values()
    assert receipt.id in dead.headers.values()
    assert str(clock.wall_ms()) in told


def test_the_latency_history_goes_along_to_the_dead_queue(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead"))
    broker.publish("q", [Message(b"poison")])
    (lease,) = broker.lease("q")
    clock.advance(55)
    broker.retry("q", [lease.token])
    (dead,) = broker.lease("q.dead")
    assert [timing.duration_ms for timing in dead.latency_history] == [55]


def test_if_it_cannot_be_sent_it_stays_and_is_moved_at_a_later_time(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead", max_messages=1))
    broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead"))
    broker.publish("q.dead", [Message(b"in the way")])
    broker.publish("q", [Message(b"poison")])
    (lease,) = broker.lease("q")
    broker.retry("q", [lease.token])
    clock.advance(60_000)
    assert broker.stats("q")["depth"]["dying"] == 1
    assert bodies(broker) == []
    (blocker,) = broker.lease("q.dead")
    broker.ack("q.dead", [blocker.token])
    clock.advance(600_000)
    assert bodies(broker, "q.dead") == [b"poison"]
    assert broker.stats("q")["depth"]["dying"] == 0


def test_a_dying_message_is_still_moved_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q.dead", max_messages=1))
        broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead"))
        broker.publish("q.dead", [Message(b"in the way")])
        broker.publish("q", [Message(b"poison")])
        (lease,) = broker.lease("q")
        broker.retry("q", [lease.token])
        assert broker.stats("q")["depth"]["dying"] == 1
    with Broker.open(tmp_path, clock=clock) as broker:
        (blocker,) = broker.lease("q.dead")
        broker.ack("q.dead", [blocker.token])
        clock.advance(600_000)
        assert bodies(broker, "q.dead") == [b"poison"]
        assert bodies(broker) == []


def test_a_message_is_moved_to_the_dead_queue_exactly_once(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", max_attempts=1, lease_timeout_ms=10, dead_queue="q.dead"))
    broker.publish("q", [Message(b"%d" % i) for i in range(500)])
    broker.lease("q", count=500)
    clock.advance(10)
    clock.advance(600_000)
    assert sorted(bodies(broker, "q.dead", 1_000)) == sorted(b"%d" % i for i in range(500))


def test_declaring_a_queue_again_makes_its_dead_queue_again(broker: Broker) -> None:
    spec = QueueSpec("q", max_attempts=1, dead_queue="q.dead")
    broker.declare(spec)
    broker.delete("q.dead")
    broker.declare(spec)
    assert {queue.name for queue in broker.queues()} == {"q", "q.dead"}


def test_a_dead_queue_that_was_deleted_is_made_again_for_the_next_dead_message(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead"))
        broker.delete("q.dead")
        broker.publish("q", [Message(b"m"), Message(b"n")])
        for lease in broker.lease("q", count=2):
            broker.retry("q", [lease.token])
        assert sum(broker.stats("q")["depth"].values()) == 0
        assert caplog.text.count("dead_queue_made_again") == 1
    with Broker.open(tmp_path, clock=clock) as broker:
        assert bodies(broker, "q.dead") == [b"m", b"n"]


def test_without_a_dead_queue_an_exhausted_message_is_logged_and_deleted(broker: Broker) -> None:
    broker.declare(QueueSpec("q", max_attempts=1))
    (receipt,) = broker.publish("q", [Message(b"poison")])
    (lease,) = broker.lease("q")
    broker.retry("q", [lease.token])
    assert sum(broker.stats("q")["depth"].values()) == 0
    (removal,) = broker.removals("q")
    assert (removal.id, removal.reason, removal.moved_to) == (receipt.id, "max_attempts", None)


def test_without_a_dead_queue_a_message_is_retried_for_ever(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("plain"))
    broker.publish("plain", [Message(b"m")])
    for failures in range(100):
        (lease,) = broker.lease("plain")
        assert lease.failures == failures
        broker.retry("plain", [lease.token])
        assert broker.lease("plain") == []
        clock.advance(300_000)


def test_with_a_dead_queue_the_sixteenth_failure_is_the_last(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", dead_queue="q.dead"))
    broker.publish("q", [Message(b"m")])
    for _ in range(16):
        (lease,) = broker.lease("q")
        broker.retry("q", [lease.token])
        clock.advance(300_000)
    assert broker.lease("q") == []
    assert bodies(broker, "q.dead") == [b"m"]


def test_max_attempts_0_means_unlimited(broker: Broker) -> None:
    broker.declare(QueueSpec("q", max_attempts=0, retry_delay_ms=0))
    broker.publish("q", [Message(b"m")])
    for failures in range(100):
        (lease,) = broker.lease("q")
        assert lease.failures == failures
        broker.retry("q", [lease.token])


def test_a_message_past_its_dead_deadline_is_sent_to_the_dead_queue(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", dead_queue="q.dead"))
    broker.publish("q", [Message(b"m", ttl_ms=100)])
    clock.advance(100)
    assert bodies(broker) == []
    assert bodies(broker, "q.dead") == [b"m"]
    assert [removal.reason for removal in broker.removals("q")] == ["expired"]


def test_in_the_dead_queue_the_ttl_of_the_source_does_not_count(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", dead_queue="q.dead"))
    broker.publish("q", [Message(b"m", ttl_ms=100, decay_rate=1.0)])
    clock.advance(100)
    clock.advance(1_000_000)
    assert bodies(broker, "q.dead") == [b"m"]


def test_without_a_dead_queue_an_expired_message_is_logged_and_deleted(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    (receipt,) = broker.publish("q", [Message(b"m", ttl_ms=100)])
    clock.advance(100)
    assert sum(broker.stats("q")["depth"].values()) == 0
    (removal,) = broker.removals("q")
    assert (removal.id, removal.reason) == (receipt.id, "expired")


def test_a_scheduled_message_is_distributed_when_it_is_due(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"later", delay_ms=500)])
    assert broker.stats("q")["depth"]["scheduled"] == 1
    clock.advance(499)
    assert bodies(broker) == []
    clock.advance(1)
    assert broker.stats("q")["depth"]["ready"] == 1
    assert bodies(broker) == [b"later"]


def test_a_scheduled_message_survives_a_restart_and_keeps_its_instant(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"later", delay_ms=500)])
        clock.advance(200)
    with Broker.open(tmp_path, clock=clock) as broker:
        clock.advance(299)
        assert bodies(broker) == []
        clock.advance(1)
        assert bodies(broker) == [b"later"]


def test_a_starting_queue_acts_at_once_on_what_became_due_while_it_was_closed(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=1_000, retry_delay_ms=0))
        broker.publish("q", [Message(b"leased")])
        broker.lease("q")
        broker.publish("q", [Message(b"expires", ttl_ms=1_000), Message(b"due", delay_ms=1_000)])
    clock.advance(5_000)
    with Broker.open(tmp_path, clock=clock) as broker:
        depth = broker.stats("q")["depth"]
        assert (depth["ready"], depth["leased"], depth["scheduled"]) == (2, 0, 0)
        assert sorted(bodies(broker)) == [b"due", b"leased"]
        assert [removal.reason for removal in broker.removals("q")] == ["expired"]


def test_a_lease_that_is_still_live_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=1_000))
        broker.publish("q", [Message(b"m")])
        (lease,) = broker.lease("q")
    clock.advance(999)
    with Broker.open(tmp_path, clock=clock) as broker:
        assert bodies(broker) == []
        assert broker.stats("q")["depth"]["leased"] == 1
        broker.ack("q", [lease.token])
        assert sum(broker.stats("q")["depth"].values()) == 0


def test_an_expired_lease_goes_to_the_tail_so_that_what_waits_takes_precedence(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, retry_delay_ms=0))
    broker.publish("q", [Message(b"%d" % i) for i in range(4)])
    assert bodies(broker, count=1) == [b"0"]
    clock.advance(1_000)
    assert bodies(broker) == [b"1", b"2", b"3", b"0"]


def test_a_released_message_keeps_its_place_and_is_no_failure(broker: Broker) -> None:
    broker.declare(QueueSpec("q", max_attempts=1))
    broker.publish("q", [Message(b"%d" % i) for i in range(3)])
    for attempt in range(1, 6):
        (lease,) = broker.lease("q")
        assert (lease.attempt, lease.failures) == (attempt, 0)
        broker.release("q", [lease.token])
    assert bodies(broker) == [b"0", b"1", b"2"]


def test_a_message_whose_devices_are_away_rests_and_keeps_its_place(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"%d" % i) for i in range(3)])
    engine = broker.engine
    with engine.lock:
        ((shard, grants),) = leasing.lease_now(engine, engine.catalog.queue("q"), 2, None, None)
        leasing.give_back(engine, shard, grants, rest_ms=1_000)
    assert broker.stats("q")["depth"] | {"ready": 1, "scheduled": 2} == broker.stats("q")["depth"]
    clock.advance(1_000)
    assert bodies(broker) == [b"0", b"1", b"2"]


def test_requeue_original_preserves_the_order_of_operations(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, retry_delay_ms=0, requeue="original"))
    broker.publish("q", [Message(b"add"), Message(b"email"), Message(b"delete")])
    assert bodies(broker, count=1) == [b"add"]
    clock.advance(1_000)
    assert bodies(broker) == [b"add", b"email", b"delete"]


def test_the_retry_delay_doubles_from_one_second_to_five_minutes(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"m")])
    for failures in range(12):
        (lease,) = broker.lease("q")
        assert lease.failures == failures
        broker.retry("q", [lease.token])
        delay_ms = min(300_000, 1_000 << failures)
        clock.advance(delay_ms - 1)
        assert bodies(broker) == []
        clock.advance(1)


def test_a_flood_of_expired_leases_does_not_starve_the_messages_that_wait(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, retry_delay_ms=0))
    broker.publish("q", [Message(b"old") for _ in range(FLOOD)], confirm="written")
    assert len(broker.lease("q", count=FLOOD)) == FLOOD
    broker.publish("q", [Message(b"fresh") for _ in range(FLOOD)], confirm="written")
    clock.advance(1_000)
    assert broker.stats("q")["depth"]["ready"] == 2 * FLOOD
    assert set(bodies(broker, count=FLOOD)) == {b"fresh"}
    assert set(bodies(broker, count=FLOOD)) == {b"old"}


def test_failing_messages_of_higher_importance_do_not_saturate_the_consumers(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, max_attempts=0))
    failing = [Message(b"failing", importance=10) for _ in range(FLOOD)]
    broker.publish("q", failing, confirm="written")
    assert len(broker.lease("q", count=FLOOD)) == FLOOD
    fresh = [Message(b"fresh", importance=5) for _ in range(FLOOD)]
    broker.publish("q", fresh, confirm="written")
    clock.advance(1_000)
    served = 0
    for _ in range(10):
        leases = broker.lease("q", count=FLOOD // 10)
        assert {lease.body for lease in leases} == {b"fresh"}
        broker.ack("q", [lease.token for lease in leases])
        served += len(leases)
        clock.advance(90)
    assert served == FLOOD


def test_messages_that_always_fail_leave_most_of_the_time_to_the_others(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, max_attempts=0))
    broker.publish("q", [Message(b"failing", importance=10) for _ in range(100)])
    taken = {b"failing": 0, b"fresh": 0}
    for _ in range(600):
        broker.publish("q", [Message(b"fresh", importance=5) for _ in range(5)], confirm="memory")
        for lease in broker.lease("q", count=10):
            taken[lease.body] += 1
            if lease.body == b"fresh":
                broker.ack("q", [lease.token])
            else:
                broker.retry("q", [lease.token])
        clock.advance(1_000)
    assert taken[b"fresh"] > 2 * taken[b"failing"]


def test_no_failed_message_starves_under_a_steady_stream_of_new_ones(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", lease_timeout_ms=1_000, max_attempts=0))
    broker.publish("q", [Message(b"retried %d" % i) for i in range(50)])
    leases = broker.lease("q", count=50)
    broker.retry("q", [lease.token for lease in leases])
    waiting = {lease.body for lease in leases}
    for _ in range(100):
        broker.publish("q", [Message(b"new") for _ in range(10)], confirm="memory")
        for lease in broker.lease("q", count=10):
            waiting.discard(lease.body)
            broker.ack("q", [lease.token], confirm="memory")
        clock.advance(100)
    assert waiting == set()


def test_a_redriven_message_is_delivered_from_its_queue_again(broker: Broker) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead"))
    broker.publish("q", [Message(b"m", headers={"a": "b"})])
    (lease,) = broker.lease("q")
    broker.retry("q", [lease.token])
    broker.redrive("q.dead")
    (again,) = broker.lease("q")
    assert (again.body, again.failures, again.headers["a"]) == (b"m", 0, "b")
    assert len(again.latency_history) == 1
    assert sum(broker.stats("q.dead")["depth"].values()) == 0


@pytest.mark.parametrize("end", ["max_attempts", "expired"])
def test_a_redriven_message_fades_as_it_did_and_has_its_ttl_anew(
    broker: Broker, clock: ManualClock, end: str
) -> None:
    broker.declare(QueueSpec("q.deader"))
    broker.declare(QueueSpec("q.dead", max_attempts=1, dead_queue="q.deader"))
    broker.declare(QueueSpec("q", max_attempts=1, dead_queue="q.dead", decay_rate=0.25))
    broker.publish("q", [Message(b"m", importance=8, ttl_ms=60_000, decay_rate=0.5)])
    broker.publish("q", [Message(b"steady", importance=8, decay_rate=0.0)])
    if end == "expired":
        clock.advance(60_000)
    for lease in broker.lease("q", 9):
        broker.retry("q", [lease.token])
    for lease in broker.lease("q.dead", 9):
        broker.retry("q.dead", [lease.token])
    clock.advance(600_000)
    assert {(dead.ttl_ms, dead.decay_rate) for dead in broker.peek("q.deader")} == {(None, 0.0)}
    broker.redrive("q.deader", to="q.dead")
    assert broker.redrive("q.dead", to="q") == 2
    seen = {each.body: each for each in broker.peek("q")}
    assert (seen[b"m"].ttl_ms, seen[b"m"].decay_rate) == (60_000, 0.5)
    assert (seen[b"steady"].ttl_ms, seen[b"steady"].decay_rate) == (None, 0.0)
    clock.advance(30_000)
    assert {each.body: each.current_importance for each in broker.peek("q")}[b"m"] == 6.0
    clock.advance(30_000)
    assert [each.body for each in broker.peek("q")] == [b"steady"]


def test_a_redriven_message_of_a_queue_with_a_deadline_ends_with_it(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q.dead"))
    broker.declare(QueueSpec.deadline("q", ttl_ms=60_000, max_attempts=1, dead_queue="q.dead"))
    broker.publish("q", [Message(b"m", importance=10)])
    (lease,) = broker.lease("q")
    broker.retry("q", [lease.token])
    broker.redrive("q.dead")
    clock.advance(30_000)
    assert [each.current_importance for each in broker.peek("q")] == [5.0]
    clock.advance(30_000)
    assert broker.peek("q") == []


def test_a_decay_factor_counts_once_for_a_message_that_is_redriven(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", decay_rate=0.2, max_attempts=1, dead_queue="q.dead"))
    broker.set_decay_factor("q", 2.0, clock.wall_ms() + 3_600_000)
    broker.publish("q", [Message(b"usual"), Message(b"own", decay_rate=0.4)])
    published = {seen.body: seen.decay_rate for seen in broker.peek("q")}
    assert published == {b"usual": 0.4, b"own": 0.8}
    for _ in range(2):
        broker.retry("q", [lease.token for lease in broker.lease("q", count=2)])
        assert broker.redrive("q.dead") == 2
        assert {seen.body: seen.decay_rate for seen in broker.peek("q")} == published
    broker.publish("q", Message(b"new"))
    assert {seen.body: seen.decay_rate for seen in broker.peek("q")}[b"new"] == 0.4


def test_a_message_with_all_the_headers_there_may_be_goes_to_the_dead_queue_and_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    name = "\N{FOX FACE}" * limits.NAME_CHARS_MAX
    node = "n" * limits.NODE_NAME_BYTES_MAX
    headers = {"h": "x" * (limits.HEADERS_BYTES_MAX - 32)}
    with Broker.open(tmp_path, {"node": node}, clock) as broker:
        broker.declare(QueueSpec(name, max_attempts=8, retry_delay_ms=0, dead_queue="q.dead"))
        broker.publish(name, [Message(b"m", ttl_ms=600_000, decay_rate=0.3, headers=headers)])
        for _ in range(8):
            (lease,) = broker.lease(name)
            broker.retry(name, [lease.token])
        clock.advance(1_000)
        (dead,) = broker.peek("q.dead")
        assert dead.headers["x-ebbmq-source"] == name
        assert [timing.node for timing in dead.latency_history] == [node] * 8
        assert broker.redrive("q.dead") == 1
        assert [seen.headers for seen in broker.peek(name)] == [headers]


@pytest.mark.parametrize("told", ["", "fast", "-1", "nan", "2", "1" * 30])
def test_headers_that_look_like_those_of_a_dead_message_do_no_harm(
    broker: Broker, told: str
) -> None:
    broker.declare(QueueSpec("q", decay_rate=0.25))
    broker.declare(QueueSpec("q.dead"))
    headers = {"x-ebbmq-ttl-ms": told, "x-ebbmq-decay-rate": told, "x-ebbmq-source": "q"}
    broker.publish("q.dead", [Message(b"m", headers=headers)])
    broker.redrive("q.dead")
    (seen,) = broker.peek("q")
    assert seen.headers == {}
    assert (seen.decay_rate, seen.ttl_ms) == (0.25, 2 if told == "2" else None)


def _spoil(directory: Path, bodies: list[bytes]) -> None:
    """Make the pages of every checkpoint and the records of these bodies unreadable."""
    for path in (directory / "checkpoints").glob("*.pages"):
        path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
    for path in (directory / "journal").glob("*.seg"):
        data = path.read_bytes()
        for body in bodies:
            data = data.replace(body, bytes(len(body)))
        path.write_bytes(data)


@pytest.fixture
def half_spoiled(tmp_path: Path, clock: ManualClock) -> tuple[Path, str, str]:
    """A queue of two partitions, one of which cannot be read, and a key of each."""
    keys: dict[str, str] = {}
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", partitions=2))
        for number in range(40):
            key = f"key {number}"
            (receipt,) = broker.publish("q", [Message(f"the body of {key}.".encode(), key=key)])
            keys[receipt.id.partition("-")[0]] = key
    bad_key, good_key = (keys[pid] for pid in sorted(keys))
    _spoil(tmp_path, [f"the body of {bad_key}.".encode()])
    return tmp_path, bad_key, good_key


def test_a_partition_whose_first_read_fails_is_excluded_and_the_others_go_on(
    half_spoiled: tuple[Path, str, str], clock: ManualClock
) -> None:
    directory, bad_key, good_key = half_spoiled
    with Broker.open(directory, clock=clock) as broker:
        states = [partition["state"] for partition in broker.stats("q")["partitions"]]
        assert sorted(states) == ["faulty", "ok"]
        assert not broker.health()["ready"]
        with pytest.raises(StorageFailed) as caught:
            broker.publish("q", [Message(b"refused", key=bad_key)])
        assert caught.value.code == "partition_faulty"
        broker.publish("q", [Message(b"taken", key=good_key)])
        broker.publish("q", [Message(b"anywhere") for _ in range(10)])
        got = [lease.body for lease in broker.lease("q", count=100)]
        assert b"taken" in got
        assert got.count(b"anywhere") == 10
