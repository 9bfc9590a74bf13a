"""Access patterns from events: what the broker counts one by one, summed over a feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.testing import assertDataFrameEqual

from ebbmq.policy.decay import Access
from ebbmq_spark.transforms.access import (
    heat,
    hot_set,
    hourly_profile,
    message_access,
    queue_access,
)
from tests.pipeline.rows import DAY_MS, NOW_MS, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


def test_a_read_counts_as_the_broker_counts_it(spark: SparkSession) -> None:
    reads = [NOW_MS - 3 * DAY_MS, NOW_MS - DAY_MS, NOW_MS - 5_000]
    told = events(
        spark,
        *({"seq": n, "event": "leased", "at_ms": at} for n, at in enumerate(reads, 2)),
        {"seq": 9, "event": "peeked", "message_id": "other", "at_ms": NOW_MS},
        {"seq": 10, "event": "leased", "at_ms": NOW_MS + 1},
    )
    expected = Access()
    for at in reads:
        expected = expected.credited(at)
    got = {row.message_id: row for row in message_access(told, NOW_MS).collect()}
    assert got["m"].access_rate == pytest.approx(expected.rate_at(NOW_MS), rel=1e-12)
    assert (got["m"].reads, got["m"].last_read_at_ms) == (3, NOW_MS - 5_000)
    assert got["other"].access_rate == 1.0


def test_a_lease_that_failed_was_no_read(spark: SparkSession) -> None:
    told = events(
        spark,
        {"seq": 2, "event": "leased", "at_ms": NOW_MS - DAY_MS},
        {"seq": 3, "event": "leased", "at_ms": NOW_MS - 9_000},
        {"seq": 4, "event": "retried", "at_ms": NOW_MS - 2_000, "latency_ms": 7_000},
    )
    (row,) = message_access(told, NOW_MS).collect()
    access = Access().credited(NOW_MS - DAY_MS).credited(NOW_MS - 9_000)
    expected = access.reversed(NOW_MS - 9_000, NOW_MS - 2_000).rate_at(NOW_MS)
    assert row.access_rate == pytest.approx(expected, rel=1e-9)


def test_messages_of_two_nodes_that_have_the_same_id_are_read_each_for_itself(
    spark: SparkSession,
) -> None:
    told = events(
        spark,
        {"node": "a", "seq": 1, "event": "leased"},
        {"node": "b", "seq": 1, "event": "leased", "at_ms": NOW_MS - DAY_MS},
        {"node": "b", "seq": 2, "event": "leased", "at_ms": NOW_MS},
        {"node": "b", "seq": 3, "event": "retried", "at_ms": NOW_MS, "latency_ms": 0},
    )
    got = {row.node: (row.message_id, row.reads) for row in message_access(told, NOW_MS).collect()}
    assert got == {"a": ("m", 1), "b": ("m", 2)}


def test_queues_hours_and_the_hot_set(spark: SparkSession) -> None:
    at_nine = NOW_MS // DAY_MS * DAY_MS + 9 * HOUR_MS
    told = events(
        spark,
        {"seq": 1, "event": "published", "at_ms": at_nine},
        {"seq": 2, "event": "published", "at_ms": at_nine - DAY_MS + 60_000},
        {"seq": 3, "event": "leased", "at_ms": at_nine + HOUR_MS},
        {"seq": 4, "event": "acked", "at_ms": at_nine + HOUR_MS + 1},
    )
    assertDataFrameEqual(
        hourly_profile(told),
        spark.createDataFrame(
            [("q", 9, 2, 0, 0), ("q", 10, 0, 1, 1)],
            "queue string, hour int, published long, reads long, done long",
        ),
    )
    access = spark.createDataFrame(
        [("n", "q", "a", 60.0, 6, 1), ("n", "q", "b", 30.0, 3, 1), ("n", "q", "c", 10.0, 1, 1),
         ("n", "r", "d", 1.0, 1, 1)],
        "node string, queue string, message_id string, access_rate double, reads long, "
        "last_read_at_ms long",
    )  # fmt: skip
    assert sorted(row.message_id for row in hot_set(access, 0.8).collect()) == ["a", "b", "d"]
    assertDataFrameEqual(
        queue_access(access),
        spark.createDataFrame(
            [("q", 3, 100.0, 10), ("r", 1, 1.0, 1)],
            "queue string, messages long, access_rate double, reads long",
        ),
    )


def test_heat_counts_messages_that_are_read_about_as_often(spark: SparkSession) -> None:
    rates = [64.0, 64.0, 60.0, 1.0, 0.0]
    access = spark.createDataFrame(
        [("q", rate) for rate in rates], "queue string, access_rate double"
    )
    assertDataFrameEqual(
        heat(access),
        spark.createDataFrame(
            [("q", 36, 2, 128.0), ("q", 35, 1, 60.0), ("q", 0, 1, 1.0)],
            "queue string, degree int, messages long, access_rate double",
        ),
    )


def test_hours_of_the_day_are_those_of_utc_wherever_spark_is(spark: SparkSession) -> None:
    told = events(
        spark,
        *({"seq": n + 1, "at_ms": NOW_MS + n * HOUR_MS // 4} for n in range(96)),
    )
    here = sorted(tuple(row) for row in hourly_profile(told).collect())
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        there = sorted(tuple(row) for row in hourly_profile(told).collect())
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert here == there == [("q", hour, 4, 0, 0) for hour in range(24)]
