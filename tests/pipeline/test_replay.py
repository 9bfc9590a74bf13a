"""A replay is what the broker would have done: against a textbook, against the broker itself."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbmq import Broker, Message, QueueSpec
from ebbmq.journal.disk import MemoryDisk
from ebbmq.limits import GIB
from ebbmq.model import REASON_TEXT, AdaptSpec, Reason
from ebbmq.testing import ManualClock
from ebbmq_spark.simulation.fleet import resolution_of
from ebbmq_spark.simulation.generate import generate
from ebbmq_spark.simulation.outcome import outcome_of
from ebbmq_spark.simulation.replay import ACKED, REJECTED, WAITING, replay
from tests.pipeline.loads import START_MS, random_traffic, traffic

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq_spark.simulation.traffic import Traffic

FADING = QueueSpec("q", decay_rate=1.0, decay_unit_ms=1_000, retry_delay_ms=50)
SPECS = {
    "fifo": QueueSpec("q", band_width=10.0, retry_delay_ms=50),
    "importance": QueueSpec("q", retry_delay_ms=50),
    "fading": FADING,
    "exact": QueueSpec("q", decay_rate=1.0, decay_unit_ms=1_000, band_width=0.0),
    "deadline": QueueSpec("q", default_ttl_ms=800, retry_delay_ms=0),
    "shared fairly": QueueSpec("q", fair_share=3, retry_delay_ms=50),
    "failing": QueueSpec("q", max_attempts=1),
    "kept briefly": QueueSpec("q", retention_ms=500, retry_delay_ms=50),
}


def test_waits_in_a_plain_queue_are_those_of_the_textbook() -> None:
    chance = np.random.default_rng(3)
    at = np.sort(chance.integers(0, 4_000, 400))
    service = chance.integers(1, 60, 400)
    load = traffic(at, consumers=3, service_ms=service)
    free = [0] * 3
    expected = []
    for arrival, work in zip(at.tolist(), service.tolist(), strict=True):
        begin = max(arrival, free[0])
        heapq.heapreplace(free, begin + work)
        expected.append(begin)
    fates = replay(load, QueueSpec("q", band_width=10.0), 1)
    assert (fates.started_ms - START_MS).tolist() == expected
    assert (fates.left_ms - fates.started_ms).tolist() == service.tolist()


@pytest.mark.parametrize("name", SPECS)
def test_a_replay_does_what_the_broker_does(name: str, tmp_path: Path) -> None:
    load = random_traffic(11, 80)
    fates = replay(load, SPECS[name], 1)
    told = {
        number: (int(fates.outcome[number]), int(fates.left_ms[number]) - START_MS)
        for number in range(len(load))
    }
    assert told == _of_the_broker(load, SPECS[name], tmp_path)


def _of_the_broker(load: Traffic, spec: QueueSpec, directory: Path) -> dict[int, tuple[int, int]]:
    """The fates of the traffic in a real broker on a clock that stands still between instants."""
    clock = ManualClock(START_MS)
    names = {text: int(reason) for reason, text in REASON_TEXT.items()}
    fates: dict[int, tuple[int, int]] = {}
    working: list[tuple[int, int, str, int]] = []
    with Broker.open(directory, clock=clock, disk=MemoryDisk(), threaded=False) as broker:
        broker.declare(spec)
        ids: dict[str, int] = {}
        coming = list(range(len(load)))
        now = 0
        while len(fates) < len(load):
            done = sorted(work for work in working if work[0] <= now)
            working = [work for work in working if work[0] > now]
            for finished, number, token, attempt in done:
                if attempt <= load.failures[number]:
                    broker.retry("q", [token])
                else:
                    broker.ack("q", [token])
                    fates[number] = (ACKED, finished)
            arrived = [number for number in coming if load.at_ms[number] - START_MS <= now]
            coming = coming[len(arrived) :]
            for batch in ([], arrived):
                messages = [
                    Message(
                        b"%d" % number,
                        importance=int(load.importance[number]),
                        delay_ms=int(load.delay_ms[number]),
                    )
                    for number in batch
                ]
                for number, receipt in zip(batch, broker.publish("q", messages), strict=True):
                    ids[receipt.id] = number
                idle = load.consumers - len(working)
                for lease in broker.lease("q", count=idle) if idle else ():
                    number = ids[lease.id]
                    until = now + int(load.service_ms[number])
                    working.append((until, number, lease.token, lease.attempt))
            for removal in broker.removals("q"):
                number = ids[removal.id]
                fates[number] = (names[removal.reason], removal.at_ms - START_MS)
            clock.advance(1)
            now += 1
    return fates


@hypothesis.settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    spec=st.sampled_from(list(SPECS.values())),
    resolution_ms=st.sampled_from([1, 7, 100, 5_000]),
    load=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_every_message_has_one_fate_and_none_before_it_came(
    seed: int, spec: QueueSpec, resolution_ms: int, load: float
) -> None:
    load = random_traffic(seed, 150, load=load)
    fates = replay(load, spec, resolution_ms)
    assert not (fates.outcome == WAITING).any()
    done = fates.outcome == ACKED
    assert (fates.started_ms[done] >= load.at_ms[done]).all()
    assert (fates.left_ms >= load.at_ms // resolution_ms * resolution_ms).all()
    told = outcome_of("p", spec, load, fates, resolution_ms=resolution_ms)
    assert told.done + sum(told.left.values()) == told.messages == len(load)
    assert sum(told.published_by_importance) == len(load)


@pytest.mark.parametrize("pattern", ["bursts", "diurnal", "overload"])
@pytest.mark.parametrize("name", ["importance", "fading", "exact"])
def test_a_coarser_clock_hardly_changes_the_shares(pattern: str, name: str) -> None:
    load = generate(pattern, 1_000)
    spec = SPECS[name]
    if spec.decay_rate:
        spec = QueueSpec("q", decay_rate=1.0, decay_unit_ms=int(load.useful_ms[0]),
                         band_width=spec.band_width)  # fmt: skip
    exact, coarse = (
        outcome_of("p", spec, load, replay(load, spec, step), resolution_ms=step)
        for step in (1, resolution_of(load))
    )
    assert coarse.resolution_ms > 1
    assert coarse.worth_on_time == pytest.approx(exact.worth_on_time, abs=0.02)
    assert coarse.let_go_share == pytest.approx(exact.let_go_share, abs=0.02)


BOUNDS = {
    "reject": {"max_messages": 100},
    "drop_lowest": {"max_messages": 100, "overflow": "drop_lowest"},
    "dead_letter": {"max_messages": 100, "overflow": "dead_letter", "dead_queue": "dead"},
    "reject bytes": {"max_bytes": 10_000},
    "drop_lowest bytes": {"max_bytes": 10_000, "overflow": "drop_lowest"},
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_queue_that_is_never_full_loses_nothing_however_coarse_the_clock(name: str) -> None:
    load = traffic(range(2_000), consumers=2, service_ms=[1.0] * 2_000)
    assert resolution_of(load) > 500
    fates = replay(load, QueueSpec("q", **BOUNDS[name]), resolution_of(load))
    assert (fates.outcome == ACKED).all()


@pytest.mark.parametrize("pattern", ["bursts", "overload"])
@pytest.mark.parametrize("overflow", ["reject", "drop_lowest"])
@pytest.mark.parametrize("bound", ["max_messages", "max_bytes"])
@pytest.mark.parametrize("room", [20])
def test_a_coarser_clock_hardly_changes_what_a_full_queue_takes(
    pattern: str, overflow: str, bound: str, room: int
) -> None:
    load = generate(pattern, 2_000)
    most = room if bound == "max_messages" else int(room * load.bytes.mean())
    spec = QueueSpec("q", overflow=overflow, **{bound: most})
    # As many come in a slice as in the longest ones, many times what the queue holds.
    steps = (1, 512 * load.span_ms() // len(load))
    exact, coarse = (
        outcome_of("p", spec, load, replay(load, spec, step), resolution_ms=step) for step in steps
    )
    assert exact.left["overflow"] > 300
    assert coarse.left["overflow"] == pytest.approx(exact.left["overflow"], abs=40)
    # Who of them gets in is chance, and 2,000 are not many.
    assert coarse.worth_on_time == pytest.approx(exact.worth_on_time, abs=0.03)
    assert coarse.on_time_share == pytest.approx(exact.on_time_share, abs=0.02)


@hypothesis.settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    most=st.sampled_from([1, 3, 20, 90]),
    overflow=st.sampled_from(["reject", "drop_lowest"]),
    resolution_ms=st.sampled_from([1, 7, 100, 5_000]),
    load=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_a_bounded_queue_never_holds_more_and_every_message_has_its_fate(
    seed: int, most: int, overflow: str, resolution_ms: int, load: float
) -> None:
    load = random_traffic(seed, 150, load=load)
    spec = QueueSpec("q", max_messages=most, overflow=overflow, retry_delay_ms=50)
    fates = replay(load, spec, resolution_ms)
    assert not (fates.outcome == WAITING).any()
    told = outcome_of("p", spec, load, fates, resolution_ms=resolution_ms)
    assert told.done + sum(told.left.values()) == len(load)
    # Only what is ready can be let go for another one; what is leased or waits for a retry stays.
    assert told.peak_messages <= most or overflow == "drop_lowest"


def test_a_full_queue_rejects_what_comes_and_takes_again_when_there_is_room() -> None:
    load = traffic([0, 0, 0, 0, 25], service_ms=[20] * 5)
    fates = replay(load, QueueSpec("q", max_messages=2), 1)
    assert fates.outcome.tolist() == [ACKED, ACKED, REJECTED, REJECTED, ACKED]


def test_a_queue_full_of_bytes_rejects_too() -> None:
    load = traffic([0, 0, 0, 0], bytes=[600, 600, 300, 300])
    fates = replay(load, QueueSpec("q", max_bytes=1_000), 1)
    # Each is published by itself: a smaller one may fit where a larger one did not.
    assert fates.outcome.tolist() == [ACKED, REJECTED, ACKED, REJECTED]


def test_a_message_larger_than_the_queue_is_rejected_and_lets_nobody_go() -> None:
    load = traffic([0, 1, 2], bytes=[400, 1_001, 400], service_ms=[50] * 3)
    fates = replay(load, QueueSpec("q", max_bytes=1_000, overflow="drop_lowest"), 1)
    assert fates.outcome.tolist() == [ACKED, REJECTED, ACKED]


def test_a_full_queue_can_let_the_least_important_go() -> None:
    load = traffic([0, 1, 2, 3], importance=[5, 2, 9, 7], service_ms=[50] * 4)
    fates = replay(load, QueueSpec("q", max_messages=3, overflow="drop_lowest"), 1)
    assert fates.outcome.tolist() == [ACKED, int(Reason.OVERFLOW), ACKED, ACKED]


def test_what_a_dead_queue_takes_is_told_apart() -> None:
    load = traffic([0, 0], service_ms=[500, 500], failures=[0, 0])
    fates = replay(load, QueueSpec("q", default_ttl_ms=100, dead_queue="dead"), 1)
    assert fates.outcome.tolist() == [ACKED, int(Reason.EXPIRED)]
    assert fates.is_dead_lettered.tolist() == [False, True]
    assert fates.left_ms[1] - START_MS == 100


@pytest.mark.parametrize("resolution_ms", [1, 40])
@pytest.mark.parametrize(
    ("reason", "drops", "moves"),
    [
        ("stale", {"decay_rate": 1.0, "decay_unit_ms": 400}, {"on_stale": "dead_letter"}),
        ("expired", {"default_ttl_ms": 400}, {}),
        ("failed", {"max_attempts": 1}, {}),
        ("overflow", {"max_messages": 5, "overflow": "drop_lowest"}, {"overflow": "dead_letter"}),
    ],
)
def test_what_leaves_for_a_reason_counts_for_it_wherever_it_went(
    reason: str, drops: dict[str, Any], moves: dict[str, Any], resolution_ms: int
) -> None:
    load = random_traffic(7, 200, load=3.0)
    gone, kept = (
        outcome_of("p", spec, load, replay(load, spec, resolution_ms), resolution_ms=resolution_ms)
        for spec in (QueueSpec("q", **drops), QueueSpec("q", **drops | moves, dead_queue="dead"))
    )
    assert gone.left[reason] > 10
    assert kept.left == gone.left
    assert (gone.dead_lettered, kept.dead_lettered) == (0, gone.left[reason])
    assert kept.stale_share == gone.stale_share == gone.left["stale"] / 200


def test_slow_work_makes_new_messages_fade_faster_where_the_queue_adapts() -> None:
    load = traffic(range(0, 60_000, 100), service_ms=[400] * 600, consumers=3)
    plain = QueueSpec("q", decay_rate=0.1, decay_unit_ms=10_000)
    adapting = QueueSpec(
        "q", decay_rate=0.1, decay_unit_ms=10_000,
        adapt=AdaptSpec(raise_above_ms=200, lower_below_ms=100, dwell_ms=1_000),
    )  # fmt: skip
    stale = [
        int((replay(load, spec, 10).outcome == Reason.STALE).sum()) for spec in (plain, adapting)
    ]
    assert stale[1] > stale[0]


PRICES = {"ssd": 30.0 * GIB, "hdd": 0.0, "s3": 0.0}


def test_bytes_are_counted_by_the_tier_of_their_age() -> None:
    day = 86_400_000
    load = traffic([0, 0], service_ms=[3 * day, 10], bytes=[1_000, 2_000])
    spec = QueueSpec(
        "q",
        score_per_day=30,
        score_medium=50,
        score_high=100,
        tiers=("ssd", "hdd", "s3"),
        default_importance=5,
    )
    fates = replay(load, spec, 1_000)
    told = outcome_of("p", spec, load, fates, resolution_ms=1_000, prices=PRICES)
    # Above 50 after 1 2/3 days, above 100 after 3 1/3.
    assert told.byte_days_by_tier["ssd"] == pytest.approx(3_000 * 5 / 3, rel=1e-3)
    assert told.byte_days_by_tier["hdd"] == pytest.approx(3_000 * 4 / 3, rel=1e-3)
    assert told.byte_days_by_tier["s3"] == pytest.approx(0, abs=1)
    assert told.cost == pytest.approx(5_000, rel=1e-3)


@pytest.mark.parametrize("tiers", [(), ("tape",)])
def test_what_is_kept_where_nobody_knows_the_price_has_no_cost(tiers: tuple[str, ...]) -> None:
    load = traffic([0, 0], service_ms=[1_000, 10])
    spec = QueueSpec("q", tiers=tiers)
    fates = replay(load, spec, 1_000)
    told = outcome_of("p", spec, load, fates, resolution_ms=1_000, prices=PRICES)
    assert told.cost is None
