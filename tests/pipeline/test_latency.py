"""How long work takes, and what decay factor the whole fleet asks for."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

import msgspec
from pyspark.testing import assertDataFrameEqual

from ebbmq.feed.rates import RATES
from ebbmq.model import AdaptSpec, QueueSpec
from ebbmq.policy.adapt import AdaptiveDecay, AdaptState
from ebbmq_spark.transforms.latency import last_factors, latency_profile, recommended_factors
from tests.pipeline.rows import NOW_MS, events, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

HOUR_MS = 3_600_000
THIS_HOUR_MS = NOW_MS // HOUR_MS * HOUR_MS
BEFORE = "queue string, factor double, stepped_at_ms long"
ADAPT = AdaptSpec(raise_above_ms=1_000, lower_below_ms=500, step=1.5, dwell_ms=0, factor_max=4)


def test_latencies_are_told_by_queue_node_and_hour(spark: SparkSession) -> None:
    told = events(
        spark,
        *({"seq": n, "event": "acked", "at_ms": THIS_HOUR_MS, "latency_ms": n}
          for n in range(1, 101)),
        {"node": "b", "event": "retried", "at_ms": THIS_HOUR_MS, "latency_ms": 40},
        {"node": "b", "event": "acked", "at_ms": THIS_HOUR_MS + HOUR_MS, "latency_ms": 60},
        {"node": "b", "event": "released", "at_ms": THIS_HOUR_MS, "latency_ms": 9_999},
        {"node": "b", "event": "published", "at_ms": THIS_HOUR_MS},
    )  # fmt: skip
    assertDataFrameEqual(
        latency_profile(told),
        spark.createDataFrame(
            [
                ("q", "a", THIS_HOUR_MS, 100, 0, 50.5, 50, 95, 99),
                ("q", "b", THIS_HOUR_MS, 1, 1, 40.0, 40, 40, 40),
                ("q", "b", THIS_HOUR_MS + HOUR_MS, 1, 0, 60.0, 60, 60, 60),
            ],
            "queue string, node string, hour_ms long, leases long, failures long, mean_ms double, "
            "p50_ms long, p95_ms long, p99_ms long",
        ),
    )


def test_a_step_is_that_of_the_brokers_own_controller(spark: SparkSession) -> None:
    cases = {
        f"from {before} at {latency_ms} ms": (before, latency_ms)
        for before in (1.0, 2.0, 3.5)
        for latency_ms in (100, 700, 5_000)
    }
    expected = {}
    for queue, (before, latency_ms) in cases.items():
        controller = AdaptiveDecay(ADAPT)
        controller.restore(AdaptState(factor=before))
        controller.observe(latency_ms, NOW_MS)
        expected[queue] = (controller.factor(NOW_MS), latency_ms, 1, NOW_MS + HOUR_MS)
    told = events(
        spark,
        *(
            {"queue": queue, "event": "acked", "latency_ms": latency_ms, "node": "far away"}
            for queue, (_, latency_ms) in cases.items()
        ),
    )
    specs = [QueueSpec(queue, adapt=ADAPT) for queue in cases]
    got = recommended_factors(
        told,
        [*specs, QueueSpec("does not adapt")],
        spark.createDataFrame(
            [(queue, before, NOW_MS) for queue, (before, _) in cases.items()], BEFORE
        ),
        now_ms=NOW_MS,
        until_ms=NOW_MS + HOUR_MS,
    ).collect()
    assert {row.queue: tuple(row)[1:5] for row in got} == expected
    assert len({factor for factor, *_ in expected.values()}) > 5


def test_slow_consumers_anywhere_count_for_the_whole_fleet(spark: SparkSession) -> None:
    told = events(
        spark,
        *({"seq": n, "event": "acked", "latency_ms": 100} for n in range(1, 4)),
        *({"node": "slow", "seq": n, "event": "acked", "latency_ms": 9_000} for n in range(1, 4)),
    )
    queues = [QueueSpec("q", adapt=ADAPT), QueueSpec("quiet", adapt=ADAPT)]
    before = spark.createDataFrame([("quiet", 2.0, 0)], BEFORE)
    got = recommended_factors(told, queues, before, now_ms=NOW_MS, until_ms=NOW_MS + 1)
    assert {row.queue: (row.factor, row.mean_ms) for row in got.collect()} == {
        "q": (1.5, 4_550.0),
        "quiet": (2.0, None),
    }


def test_the_last_leases_count_as_many_as_the_window_of_the_broker_has(spark: SparkSession) -> None:
    adapt = msgspec.structs.replace(ADAPT, window=3)
    lasted_ms = [9_000, 9_000, 100, 200, 300]
    controller = AdaptiveDecay(adapt)
    controller.restore(AdaptState(factor=2.0))
    for latency_ms in lasted_ms:
        controller.observe(latency_ms, NOW_MS)
    assert controller.mean_ms() == 200.0
    told = events(
        spark,
        # In no order: what counts is the number within a boot, not the clock.
        *(
            {"boot": 2, "seq": n, "at_ms": NOW_MS - n, "event": "acked", "latency_ms": latency_ms}
            for n, latency_ms in reversed(list(enumerate(lasted_ms, 1)))
        ),
        *({"boot": 1, "seq": n, "event": "acked", "latency_ms": 9_000} for n in range(7, 10)),
    )
    (row,) = _factors(spark, told, adapt)
    assert (row.factor, row.mean_ms, row.leases) == (controller.factor(NOW_MS), 200.0, 3)


def test_every_partition_and_node_has_a_window_of_its_own(spark: SparkSession) -> None:
    adapt = msgspec.structs.replace(ADAPT, window=2)
    lasted_ms = {
        ("a", 0): [5_000] * 8 + [100, 300],
        ("a", 1): [9_000, 1_000, 1_000],
        ("b", 0): [2_600],
    }
    told = events(
        spark,
        *(
            {"node": node, "partition": partition, "seq": n, "event": "acked", "latency_ms": each}
            for (node, partition), some in lasted_ms.items()
            for n, each in enumerate(some, 1)
        ),
    )
    (row,) = _factors(spark, told, adapt)
    assert (row.factor, row.mean_ms, row.leases, row.p95_ms) == (2.0, 1_000.0, 5, 2_600.0)


def _factors(spark: SparkSession, told: DataFrame, adapt: AdaptSpec) -> list[Row]:
    """From a factor of 2."""
    before = spark.createDataFrame([("q", 2.0, 0)], BEFORE)
    queues = [QueueSpec("q", adapt=adapt)]
    return recommended_factors(told, queues, before, now_ms=NOW_MS, until_ms=NOW_MS + 1).collect()


def test_a_factor_that_ended_long_ago_counts_as_1(spark: SparkSession) -> None:
    ended_ms = {"holds": -HOUR_MS, "run was late": HOUR_MS - 1, "long ago": HOUR_MS}
    before = frame(
        spark,
        RATES,
        {"factor": 2.0, "reason": "", "samples": 1, "stepped_at_ms": 7},
        [
            {"queue": queue, "decided_at_ms": NOW_MS - ms - HOUR_MS, "until_ms": NOW_MS - ms}
            for queue, ms in ended_ms.items()
        ]
        + [{"queue": "earlier version", "decided_at_ms": 5, "until_ms": NOW_MS + 1,
            "stepped_at_ms": None}],
    )  # fmt: skip
    expected = [
        ("holds", 2.0, 7), ("run was late", 2.0, 7), ("long ago", 1.0, 7),
        ("earlier version", 2.0, 5),
    ]  # fmt: skip
    assertDataFrameEqual(last_factors(before, NOW_MS), spark.createDataFrame(expected, BEFORE))


def test_a_factor_outside_the_bounds_of_today_is_moved_to_the_nearest(spark: SparkSession) -> None:
    adapt = msgspec.structs.replace(ADAPT, dwell_ms=10_000, factor_min=0.5, factor_max=2.0)
    cases = {
        f"from {before} at {latency_ms} ms, {rested_ms} ms after": (before, latency_ms, rested_ms)
        for before in (0.1, 1.25, 8.0)
        for latency_ms in (None, 100, 700, 5_000)
        for rested_ms in (0, 10_000)
    }
    expected = {}
    for queue, (before, latency_ms, rested_ms) in cases.items():
        controller = AdaptiveDecay(adapt)
        controller.restore(AdaptState(factor=before, rested_from_ms=NOW_MS - rested_ms))
        if latency_ms is not None:
            controller.observe(latency_ms, NOW_MS)
        expected[queue] = controller.factor(NOW_MS)
    told = events(
        spark,
        *(
            {"queue": queue, "event": "acked", "latency_ms": latency_ms}
            for queue, (_, latency_ms, _) in cases.items()
        ),
    )
    before = spark.createDataFrame(
        [(queue, factor, NOW_MS - rested) for queue, (factor, _, rested) in cases.items()], BEFORE
    )
    queues = [QueueSpec(queue, adapt=adapt) for queue in cases]
    got = recommended_factors(told, queues, before, now_ms=NOW_MS, until_ms=NOW_MS + 1).collect()
    assert {row.queue: row.factor for row in got} == expected
    assert {*expected.values()} >= {0.5, 1.25, 2.0}


def test_leases_that_do_not_count_are_not_moved(spark: SparkSession) -> None:
    wide = QueueSpec("wide", adapt=msgspec.structs.replace(ADAPT, window=512))
    found = recommended_factors(
        events(spark, {"event": "acked", "latency_ms": 1}),
        [QueueSpec("q", adapt=ADAPT), wide],
        spark.createDataFrame([], BEFORE),
        now_ms=NOW_MS,
        until_ms=NOW_MS + 1,
    )
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        found.explain()
    assert "512, Partial" in shown.getvalue()


def test_a_factor_rests_between_steps_as_that_of_the_broker_does(spark: SparkSession) -> None:
    adapt = msgspec.structs.replace(ADAPT, dwell_ms=10_000)
    cases = {
        f"{latency_ms} ms, {rested_ms} ms after": (latency_ms, rested_ms)
        for latency_ms in (100, 700, 5_000)
        for rested_ms in (0, 9_999, 10_000)
    }
    expected = {}
    for queue, (latency_ms, rested_ms) in cases.items():
        controller = AdaptiveDecay(adapt)
        controller.restore(AdaptState(factor=2.0, rested_from_ms=NOW_MS - rested_ms))
        controller.observe(latency_ms, NOW_MS)
        expected[queue] = controller.factor(NOW_MS), controller.state().rested_from_ms
    told = events(
        spark,
        *(
            {"queue": queue, "event": "acked", "latency_ms": latency_ms}
            for queue, (latency_ms, _) in cases.items()
        ),
    )
    before = spark.createDataFrame(
        [(queue, 2.0, NOW_MS - rested_ms) for queue, (_, rested_ms) in cases.items()], BEFORE
    )
    queues = [QueueSpec(queue, adapt=adapt) for queue in cases]
    got = recommended_factors(told, queues, before, now_ms=NOW_MS, until_ms=NOW_MS + 1).collect()
    assert {row.queue: (row.factor, row.stepped_at_ms) for row in got} == expected
    assert sorted(factor for factor, _ in expected.values()).count(2.0) == 7
