"""Counts by the hour: literal frames, parts that add up, and hours that are kept."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from pyspark.testing import assertDataFrameEqual

from ebbmq.feed.profiles import PROFILES
from ebbmq_spark.transforms.profiles import access_rates, latencies, merged, profile, recounted
from ebbmq_spark.transforms.streamed import counted, lean
from tests.pipeline.rows import DAY_MS, NOW_MS, events, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
HOUR = NOW_MS // HOUR_MS * HOUR_MS
KEEP_MS = 30 * DAY_MS
#: All but the sketch, which nobody can write down.
SHOWN = [name for name in PROFILES.names if name != "sketch"]
COUNTED: dict[str, Any] = {
    "queue": "q", "node": "a", "hour_ms": HOUR, "event": "published", "reason": "", "count": 1,
    "bytes": 0, "access": 0.0, "samples": 0, "counted_at_ms": NOW_MS,
}  # fmt: skip


def profiles(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return frame(spark, PROFILES, COUNTED, rows)


def assert_is(spark: SparkSession, found: DataFrame, *rows: dict[str, Any]) -> None:
    """A frame has exactly these rows, whatever their sketches."""
    assert found.schema.names == list(PROFILES.names)
    assertDataFrameEqual(found.select(*SHOWN), profiles(spark, *rows).select(*SHOWN))


def timed(*latencies_ms: int, first: int = 1) -> list[dict[str, Any]]:
    return [
        {"seq": seq, "event": "acked", "at_ms": HOUR + seq, "latency_ms": each, "bytes": 3}
        for seq, each in enumerate(latencies_ms, first)
    ]


def test_what_happened_is_counted_by_queue_node_hour_event_and_reason(spark: SparkSession) -> None:
    told = events(
        spark,
        *timed(*range(1, 101)),
        {"seq": 201, "event": "stale", "reason": "stale", "at_ms": HOUR, "bytes": 8},
        {"seq": 202, "event": "stale", "reason": "retention", "at_ms": HOUR},
        {"seq": 203, "event": "released", "at_ms": HOUR, "latency_ms": 9},
        # Of the hour that ends now, and of one that lies a day back in the memory of reads.
        {"seq": 204, "event": "leased", "at_ms": HOUR + HOUR_MS - 1},
        {"seq": 205, "event": "retried", "at_ms": HOUR + HOUR_MS - 1, "latency_ms": HOUR_MS - 1},
        {"seq": 1, "node": "b", "queue": "r", "at_ms": HOUR - 1},
    )
    back = -math.exp(-HOUR_MS / DAY_MS)
    assert_is(
        spark,
        profile(told, NOW_MS + 7),
        *(
            {**row, "counted_at_ms": NOW_MS + 7}
            for row in (
                {"event": "acked", "count": 100, "bytes": 300, "samples": 100, "mean_ms": 50.5,
                 "p50_ms": 50, "p95_ms": 95, "p99_ms": 99},
                {"event": "stale", "reason": "stale", "bytes": 8},
                {"event": "stale", "reason": "retention"},
                {"event": "released"},
                {"event": "leased", "access": 1.0},
                {"event": "retried", "access": back, "samples": 1, "mean_ms": 3_599_999.0,
                 "p50_ms": 3_599_999, "p95_ms": 3_599_999, "p99_ms": 3_599_999},
                {"node": "b", "queue": "r", "hour_ms": HOUR - HOUR_MS},
            )
        ),
    )  # fmt: skip


def test_a_reason_counts_without_what_is_of_one_message(spark: SparkSession) -> None:
    reasons = {
        ("pinned", "plan r: move, decay score 117.22, copies 1 of 1"): "plan r: move",
        ("pinned", "plan r: move, score 3.1"): "plan r: move",
        ("asked", "plan r: move, decay score 3.10, copies 1 of 2"): "plan r: move",
        ("asked", "fresh, score 0.1"): "fresh",
        ("asked", "fresh, score 0.2"): "fresh",
        ("asked", "repair"): "repair",
        ("archived", "faded, score 117.2"): "faded",
        ("dropped", "idle, score 9.9"): "idle",
        ("dropped", "rules applied"): "rules applied",
        ("copied", "plan r: move"): "plan r: move",
        ("unpinned", "plan r: a crossing or a lease is newer"): (
            "plan r: a crossing or a lease is newer"
        ),
        ("placed", "default, as ssd of rules cannot be used"): (
            "default, as ssd of rules cannot be used"
        ),
        ("gap", "7 events before this are missing"): "",
    }
    told = events(
        spark,
        *(
            {"seq": seq, "event": event, "reason": reason, "at_ms": HOUR}
            for seq, (event, reason) in enumerate(reasons, 1)
        ),
    )
    times = Counter((event, reason) for (event, _), reason in reasons.items())
    expected = [
        {"event": event, "reason": reason, "count": count}
        for (event, reason), count in times.items()
    ]
    assert_is(spark, profile(told, NOW_MS), *expected)
    # What an earlier version counted for each message becomes one when it is added to.
    known = profiles(spark, *({"event": event, "reason": reason} for event, reason in reasons))
    assert_is(spark, merged(known, NOW_MS, KEEP_MS), *expected)


def test_parts_of_an_hour_add_up_to_the_whole_of_it(spark: SparkSession) -> None:
    one = profile(events(spark, *timed(*range(1, 61))), NOW_MS - 5)
    two = profile(events(spark, *timed(*range(61, 101), first=61)), NOW_MS)
    whole = merged(one.unionByName(two), NOW_MS, KEEP_MS)
    acked = {
        "event": "acked", "count": 100, "bytes": 300, "samples": 100, "mean_ms": 50.5,
        "p50_ms": 50, "p95_ms": 95, "p99_ms": 99,
    }  # fmt: skip
    assert_is(spark, whole, acked)
    expired = events(
        spark, {"event": "lease_expired", "at_ms": HOUR, "latency_ms": 10_000, "node": "a"}
    )
    both = whole.unionByName(profile(expired, NOW_MS))
    assertDataFrameEqual(
        latencies(both),
        spark.createDataFrame(
            [("q", "a", HOUR, 101, 15_050 / 101, 51, 96, 100)],
            "queue string, node string, hour_ms long, samples long, mean_ms double, p50_ms long, "
            "p95_ms long, p99_ms long",
        ),
    )


def test_hours_are_old_by_the_clock_of_their_node(spark: SparkSession) -> None:
    def hour(node: str, days: int, counted_days: int = 0) -> dict[str, Any]:
        counted = NOW_MS + counted_days * DAY_MS
        return {"node": node, "hour_ms": HOUR + days * DAY_MS, "counted_at_ms": counted}

    stay = [
        hour("right", 0), hour("right", -29, -29),
        hour("behind", -60), hour("behind", -89, -29),
        hour("ahead", 9), hour("ahead", -20, -29),
        # One that had a wrong clock once is not forgotten for it.
        hour("was ahead", 900, -3), hour("was ahead", -1, -1), hour("was ahead", -9, -9),
        hour("glitch", 900), hour("glitch", -9),
        hour("is gone", -29, -29),
    ]  # fmt: skip
    go = [
        hour("right", -31, -31),
        hour("behind", -91, -29),
        hour("ahead", -22, -31),
        hour("was gone for long", -60, -40),
        # What an earlier version counted does not say when.
        {**hour("earlier", -31), "counted_at_ms": None},
    ]
    earlier = {**hour("earlier", -3), "counted_at_ms": None}
    found = merged(profiles(spark, *stay, *go, earlier), NOW_MS, KEEP_MS)
    assert_is(spark, found, *stay, {**earlier, "counted_at_ms": earlier["hour_ms"]})


def test_counted_anew_are_the_hours_of_which_events_are_there(spark: SparkSession) -> None:
    before = NOW_MS - 5 * DAY_MS

    def hour(hours: int, count: int, **more: Any) -> dict[str, Any]:
        return {"hour_ms": HOUR + hours * HOUR_MS, "count": count, **more}

    old = {"counted_at_ms": before}
    known = profiles(
        spark,
        hour(-9, 5, **old),
        # Some of its events are gone; of others there are more than were known.
        hour(-3, 5, **old),
        hour(-3, 1, event="leased", **old),
        hour(-3, 4, event="acked", **old),
        # It had been counted twice.
        hour(-2, 8, **old),
        hour(-2, 8, event="leased", **old),
        hour(-1, 6, **old),
        hour(-1, 7, node="is gone", **old),
    )
    anew = profiles(
        spark,
        hour(-3, 2),
        hour(-3, 2, event="leased"),
        hour(-2, 4),
        hour(-1, 6),
        hour(0, 3),
    )
    assert_is(
        spark,
        recounted(known, anew),
        hour(-9, 5, **old),
        hour(-3, 5, **old),
        hour(-3, 2, event="leased"),
        hour(-3, 4, event="acked", **old),
        hour(-2, 4),
        # As much as before: it was counted then.
        hour(-1, 6, **old),
        hour(-1, 7, node="is gone", **old),
        hour(0, 3),
    )


def test_reads_fade_by_the_clock_of_their_node(spark: SparkSession) -> None:
    told = profiles(
        spark,
        {"event": "leased", "access": 4.0, "hour_ms": HOUR - HOUR_MS},
        {"event": "peeked", "access": 1.0, "hour_ms": HOUR - HOUR_MS - DAY_MS},
        {"node": "ahead", "event": "leased", "access": 2.0, "hour_ms": HOUR + 9 * DAY_MS},
        {"node": "ahead", "queue": "r", "event": "retried", "access": -2.0},
        {"node": "unread"},
    )
    clocks = spark.createDataFrame(
        [("a", HOUR), ("ahead", HOUR + 10 * DAY_MS + HOUR_MS), ("unread", HOUR)],
        "node string, now_ms long",
    )
    assertDataFrameEqual(
        access_rates(told, clocks),
        spark.createDataFrame(
            [("q", "a", 4.0 + math.exp(-1)), ("q", "ahead", 2 * math.exp(-1)), ("r", "ahead", 0.0)],
            "queue string, node string, access_rate double",
        ),
    )


def test_of_a_stream_what_is_no_event_counts_as_rejected(spark: SparkSession) -> None:
    sound = events(
        spark,
        {"event": "acked", "at_ms": HOUR, "latency_ms": 40, "bytes": 7, "device": "SSD"},
    ).selectExpr("*", "cast(NULL AS string) AS fault")
    odd = events(spark, {"event": "eaten", "at_ms": -1, "latency_ms": 4, "bytes": 9, "device": "d"})
    none = odd.selectExpr(
        *("cast(NULL AS string) AS node" if name == "node" else name for name in odd.columns),
        "'no node' AS fault",
    )
    told = lean(sound.unionByName(none))
    assertDataFrameEqual(
        told.select("event", "device", "fault"),
        spark.createDataFrame(
            [("acked", None, None), ("eaten", "d", "no node")],
            "event string, device string, fault string",
        ),
    )
    assert_is(
        spark,
        counted(told, NOW_MS),
        {"event": "acked", "bytes": 7, "samples": 1, "mean_ms": 40.0, "p50_ms": 40, "p95_ms": 40,
         "p99_ms": 40},
        {"node": "", "event": "rejected", "reason": "no node"},
    )  # fmt: skip
