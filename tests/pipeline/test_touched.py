"""What happened to messages after the snapshot they are in counts for the plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.testing import assertDataFrameEqual

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.snapshots import CATALOG
from ebbmq.policy.decay import Access
from ebbmq.testing import ManualClock
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.transforms.parameters import parameters_of
from ebbmq_spark.transforms.plans import planned
from ebbmq_spark.transforms.touched import as_now, since, touched
from tests.feeds import manifests_of
from tests.pipeline.lakes import DAY_MS, DEVICES, FADING, rows
from tests.pipeline.rows import NOW_MS, catalog, events
from tests.pipeline.test_plans import OLD, SPEC

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
BEGUN_MS = NOW_MS - 600_000
ENDED_MS = BEGUN_MS + 60_000


def changes(spark: SparkSession, *told: dict[str, Any]) -> DataFrame:
    snapshots = spark.createDataFrame(
        [("a", 1, BEGUN_MS, ENDED_MS, NOW_MS)],
        "node string, boot long, at_ms long, ended_ms long, now_ms long",
    )
    numbered = [{"at_ms": BEGUN_MS + n, "seq": n, **each} for n, each in enumerate(told, 1)]
    return touched(since(events(spark, *numbered), snapshots))


def test_what_became_of_messages_is_a_row_for_each_that_was_used(spark: SparkSession) -> None:
    told = [
        {"message_id": "acked", "event": "acked", "generation": 3},
        {"message_id": "leased", "event": "peeked", "generation": 1},
        {"message_id": "leased", "event": "leased", "generation": 2},
        {"message_id": "failed", "event": "retried", "generation": 1, "latency_ms": 0},
        {"message_id": "copied", "event": "copied"},
        {"message_id": "looked at", "event": "peeked"},
        {"message_id": "came", "event": "published"},
    ]
    # A read counts 1 for the day that follows it, which the milliseconds between do not change.
    assertDataFrameEqual(
        changes(spark, *told),
        spark.createDataFrame(
            [
                ("a", "q", "acked", "gone", 3, None, None, None),
                ("a", "q", "leased", "leased", 2, BEGUN_MS + 2, BEGUN_MS + 3, 2.0),
                ("a", "q", "failed", "ready", 1, BEGUN_MS + 4, BEGUN_MS + 4, -1.0),
                ("a", "q", "looked at", None, 0, BEGUN_MS + 6, BEGUN_MS + 6, 1.0),
            ],
            "node string, queue string, message_id string, now_state string, now_generation int, "
            "read_from_ms long, read_to_ms long, gained double",
        ),
    )


def test_messages_are_as_the_last_event_leaves_them(spark: SparkSession) -> None:
    stories = {
        "acked": [("leased", 1, {}), ("acked", 1, {})],
        "leased": [("leased", 1, {})],
        "released": [(event, n, {}) for n in (1, 2) for event in ("leased", "released")],
        "rests": [("leased", 1, {}), ("retried", 1, {"delay_ms": HOUR_MS})],
        "rested": [("leased", 1, {}), ("lease_expired", 1, {"delay_ms": 1_000})],
        "stale": [("stale", 0, {})],
        "copied": [("copied", 0, {}), ("moved", 0, {})],
        "before": [("acked", 0, {"at_ms": BEGUN_MS - 1})],
        "of the next boot": [("acked", 0, {"at_ms": BEGUN_MS - 1, "boot": 2})],
    }
    told = [
        {"message_id": key, "event": event, "generation": generation, **more}
        for key, story in stories.items()
        for event, generation, more in story
    ]
    told += [{"node": "b", "message_id": "leased", "event": "acked"}]
    stored = catalog(spark, *({"message_id": key} for key in (*stories, "untouched")))
    got = as_now(stored, changes(spark, *told))
    assert got.columns == stored.columns
    assert {row.message_id: (row.state, row.generation) for row in got.collect()} == {
        "leased": ("leased", 1),
        "released": ("ready", 2),
        "rests": ("scheduled", 1),
        "rested": ("ready", 1),
        "copied": ("ready", 0),
        "before": ("ready", 0),
        "untouched": ("ready", 0),
    }


def test_what_came_after_the_snapshot_is_not_looked_for_in_it(spark: SparkSession) -> None:
    late = {"at_ms": ENDED_MS + 1}
    told = [
        {"message_id": "came meanwhile", "event": "published"},
        {"message_id": "came meanwhile and went", "event": "published"},
        {"message_id": "came meanwhile and went", "event": "acked"},
        {"message_id": "came later", "event": "published", **late},
        {"message_id": "came later and went", "event": "scheduled", **late},
        {"message_id": "came later and went", "event": "acked", **late},
        {"message_id": "went later", "event": "acked", **late},
    ]
    got = {row.message_id: row.now_state for row in changes(spark, *told).collect()}
    assert got == {"came meanwhile and went": "gone", "went later": "gone"}


def test_reads_count_as_the_broker_counts_them(spark: SparkSession) -> None:
    day_ago = NOW_MS - DAY_MS
    stored = catalog(
        spark,
        {"message_id": "read", "access_rate": 2.0, "access_at_ms": day_ago},
        {"message_id": "failed", "access_rate": 2.0, "access_at_ms": day_ago},
        {"message_id": "read while it was taken", "access_rate": 3.0, "access_at_ms": NOW_MS - 8},
    )
    told = [
        *({"message_id": "read", "event": "peeked", "at_ms": NOW_MS - n} for n in (9, 7, 5)),
        {"message_id": "failed", "event": "retried", "at_ms": NOW_MS - 5, "latency_ms": DAY_MS - 5},
        *(
            {"message_id": "read while it was taken", "event": "peeked", "at_ms": NOW_MS - n}
            for n in (9, 8, 5)
        ),
    ]
    got = {row.message_id: row for row in as_now(stored, changes(spark, *told)).collect()}
    read = Access(2.0, day_ago)
    for at_ms in (NOW_MS - 9, NOW_MS - 7, NOW_MS - 5):
        read = read.credited(at_ms)
    failed = Access(2.0, day_ago).reversed(day_ago, NOW_MS - 5)
    for key, expected in (("read", read), ("failed", failed)):
        now = Access(got[key].access_rate, got[key].access_at_ms)
        assert now.rate_at(NOW_MS) == pytest.approx(expected.rate_at(NOW_MS))
    taken = got["read while it was taken"]
    assert (taken.access_rate, taken.access_at_ms) == (3.0, NOW_MS - 8)


def test_what_had_faded_and_is_read_again_is_promoted(spark: SparkSession) -> None:
    stored = catalog(
        spark,
        *({"message_id": key, "tier": "s3", "enqueued_at_ms": OLD} for key in ("hot", "cold")),
    )
    told = [{"message_id": "hot", "event": "peeked"} for _ in range(180)]
    now = as_now(stored, changes(spark, *told))
    plan = planned(now, parameters_of(spark, [SPEC]), now_ms=NOW_MS, until_ms=NOW_MS + 1)
    assert [(row.message_id, row.action) for row in plan.collect()] == [("hot", "promote")]


def test_a_run_looks_at_what_is_due_and_at_what_was_touched_since_the_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, clock = tmp_path / "lake", ManualClock(time.time_ns() // 1_000_000 - 25 * DAY_MS)
    feed = {"lake": str(lake), "every_ms": 10, "snapshot_every_ms": 30 * DAY_MS}
    spec = msgspec.structs.replace(FADING, score_access_bonus=1.0)
    config = {"node": "a", "feed": feed, "devices": DEVICES}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(spec)
        old = [each.id for each in broker.publish("orders", [Message(b"old")] * 6)]
        broker.declare(QueueSpec("plain"))
        broker.publish("plain", [Message(b"never due")] * 2)
        clock.advance(20 * DAY_MS)
        leases = broker.lease("orders", 3, lease_timeout_ms=DAY_MS)
        acked, leased, released = (lease.id for lease in leases)
        broker.ack("orders", [leases[0].token])
        broker.release("orders", [leases[2].token])
        (lease,) = broker.lease("plain")
        broker.release("plain", [lease.token])
        for _ in range(300):
            broker.peek("orders", 2, counted=True)
        clock.advance(10)
    assert len(manifests_of(lake, CATALOG)) == 1
    assert [acked, leased, released] == old[:3]
    due = run_plan(spark, Arguments(lake, bounded=False))
    some = {row["message_id"]: (row["action"], row["generation"]) for row in rows(lake)}
    assert some == dict.fromkeys(old[4:], ("archive", 0))
    assert {released, old[3]}.isdisjoint(some), "they are read"
    full = run(spark, Arguments(lake, bounded=False, full=True))
    every = {row["message_id"]: (row["action"], row["generation"]) for row in rows(lake)}
    assert every == some
    # Five that are due and there, one that is not due and was touched.
    assert (due.messages, due.looked_at, full.looked_at) == (8, 6, 8)
