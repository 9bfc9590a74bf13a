"""Recommended decay factors: what is slow on one broker makes what others publish fade sooner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import AdaptSpec, Broker, Message, QueueSpec
from ebbmq.feed.events import EVENTS
from ebbmq.testing import ManualClock
from tests.advice import rate_row, write_rates
from tests.feeds import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SPEC = QueueSpec("q", decay_rate=0.1, adapt=AdaptSpec(raise_above_ms=1_000, lower_below_ms=100))


def opened(path: Path, node: str, clock: ManualClock | None, **feed: Any) -> Broker:
    lake = {"lake": str(path / "lake"), "plans_every_ms": 1_000, **feed}
    return Broker.open(path / node, {"node": node, "feed": lake}, clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with opened(tmp_path, "n1", clock) as broker:
        broker.declare(SPEC)
        yield broker


def rate(broker: Broker) -> float:
    """The rate of a message published now."""
    (receipt,) = broker.publish("q", [Message(b"x")])
    (seen,) = [each for each in broker.peek("q", 1_000) if each.id == receipt.id]
    return seen.decay_rate


def row(factor: float, at_ms: int = START_MS, **fields: Any) -> dict[str, Any]:
    times = {"decided_at_ms": at_ms, "until_ms": at_ms + HOUR_MS}
    return rate_row("q", factor, **{**times, **fields})


def test_slow_consumers_on_one_broker_raise_the_rates_on_another(
    tmp_path: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, "slow", clock) as slow:
        slow.declare(SPEC)
        slow.publish("q", [Message(b"x")] * 3)
        for _ in range(3):
            (lease,) = slow.lease("q", 1)
            clock.advance(5_000)
            slow.ack("q", [lease.token])
    latencies = [
        each["latency_ms"] for each in rows_of(tmp_path / "lake", EVENTS) if each["latency_ms"]
    ]
    assert latencies == [5_000] * 3
    with opened(tmp_path, "other", clock) as other:
        other.declare(SPEC)
        assert rate(other) == pytest.approx(0.1)
        # The step of the controller on what the lake tells; the pipeline writes it so.
        factor = SPEC.adapt.step if sum(latencies) / 3 > SPEC.adapt.raise_above_ms else 1.0
        told = row(factor, clock.wall_ms(), mean_ms=5_000.0, samples=3)
        write_rates(tmp_path / "lake", "r1", [told], clock.wall_ms())
        clock.advance(1_000)
        assert rate(other) == pytest.approx(0.1 * factor)
        (run,) = other.plans().runs
        assert (run.table, run.run, run.applied) == ("rates", "r1", 1)
        clock.advance(HOUR_MS)
        assert rate(other) == pytest.approx(0.1)


def test_two_brokers_on_threads_take_the_same_rates(tmp_path: Path) -> None:
    with opened(tmp_path, "a", None, plans_every_ms=50) as a:
        a.declare(SPEC)
        with opened(tmp_path, "b", None, plans_every_ms=50) as b:
            b.declare(SPEC)
            now_ms = time.time_ns() // 1_000_000
            write_rates(tmp_path / "lake", "r1", [row(3.0, now_ms)], now_ms)
            deadline = time.monotonic() + 30
            while not (a.plans().runs and b.plans().runs):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert rate(a) == rate(b) == pytest.approx(0.3)


def test_a_rate_survives_a_restart_and_is_not_applied_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, "n1", clock) as broker:
        broker.declare(SPEC)
        write_rates(tmp_path / "lake", "r1", [row(2.0)], START_MS)
        assert [each.applied for each in broker.apply_plans()] == [1]
    with opened(tmp_path, "n1", clock) as broker:
        assert rate(broker) == pytest.approx(0.2)
        assert broker.apply_plans() == []
        (told,) = broker.apply_plans("r1")
        assert (told.applied, told.in_force) == (0, 1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"queue": "nobody's"}, "unknown_queue"),
        ({"until_ms": START_MS}, "run_out"),
        ({"decided_at_ms": START_MS - HOUR_MS - 1}, "too_old"),
        ({"decided_at_ms": START_MS + 300_001}, "clock"),
        ({"factor": 0.0}, "invalid"),
        ({"factor": float("nan")}, "invalid"),
        ({"factor": 1e300}, "invalid"),
    ],
)
def test_a_rate_that_does_not_fit_is_refused_by_reason(
    tmp_path: Path, broker: Broker, changed: dict[str, Any], why: str
) -> None:
    write_rates(tmp_path / "lake", "r1", [row(2.0) | changed], START_MS)
    (told,) = broker.apply_plans("r1")
    assert (told.applied, told.refused) == (0, {why: 1})
    assert rate(broker) == pytest.approx(0.1)


def test_what_was_decided_later_counts_whichever_comes_first(
    tmp_path: Path, broker: Broker
) -> None:
    write_rates(tmp_path / "lake", "late", [row(3.0, START_MS)], START_MS)
    write_rates(tmp_path / "lake", "early", [row(2.0, START_MS - 60_000)], START_MS - 60_000)
    broker.apply_plans("late")
    (told,) = broker.apply_plans("early")
    assert told.refused == {"superseded": 1}
    assert rate(broker) == pytest.approx(0.3)
