"""A feed written by a real broker, read by Spark: nothing is missing, and nothing impossible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.events import EVENTS
from ebbmq.feed.snapshots import CATALOG
from ebbmq.testing import ManualClock
from ebbmq_spark.lake import read_table, visible
from ebbmq_spark.transforms.latency import latency_profile
from ebbmq_spark.transforms.quality import summary

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def work(broker: Broker, clock: ManualClock) -> None:
    """Every verb, a few times."""
    for number in range(6):
        broker.publish("q", [Message(b"x" * 20, importance=1 + number)] * 40)
        broker.publish("q", [Message(b"later", delay_ms=1_500, ttl_ms=2_000)])
        leases = broker.lease("q", count=30, name=f"worker-{number}")
        clock.advance(100)
        tokens = [lease.token for lease in leases]
        broker.ack("q", tokens[:20])
        broker.retry("q", tokens[20:25])
        broker.release("q", tokens[25:28])
        clock.advance(1_000)


def test_spark_reads_what_a_broker_told(tmp_path: Path, spark: SparkSession) -> None:
    clock, lake = ManualClock(), tmp_path / "lake"
    feed = {"lake": str(lake), "every_ms": 500, "snapshot_every_ms": 1_000}
    for _ in range(2):
        with Broker.open(tmp_path / "data", {"node": "n1", "feed": feed}, clock) as broker:
            broker.declare(
                QueueSpec("q", lease_timeout_ms=900, max_attempts=2, dead_queue="q.dead")
            )
            work(broker, clock)
            clock.advance(1_000)
    told = visible(lake, EVENTS)
    assert told.refused == []
    events = read_table(spark, EVENTS, told.files)
    (checked,) = summary(events).collect()
    assert (checked["rejected"], checked["duplicates"], checked["missing"]) == (0, 0, 0)
    assert checked["impossible"] == 0
    assert checked["rows"] == sum(part.rows for each in told.manifests for part in each.parts)
    by_event = {row["event"]: row["count"] for row in events.groupBy("event").count().collect()}
    assert by_event["acked"] == 240
    assert {"scheduled", "lease_expired", "dead_lettered", "retried", "released"} <= set(by_event)
    acked = latency_profile(events.where(F.col("event") == "acked")).collect()
    assert {(row["queue"], row["p50_ms"]) for row in acked} == {("q", 100)}
    snapshots = visible(lake, CATALOG)
    catalog = read_table(spark, CATALOG, snapshots.files)
    last = catalog.agg(F.max("at_ms")).first()[0]
    rows = catalog.where(F.col("at_ms") == last)
    assert rows.count() > 0
    assert rows.select("devices", "copies").distinct().collect() == [(["log"], 1)]
