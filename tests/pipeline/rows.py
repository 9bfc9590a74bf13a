"""Rows of the catalog and the events with everything in them that a test does not care about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebbmq.feed.events import EVENTS
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Table

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000

STORED: dict[str, Any] = {
    "node": "a",
    "boot": 1,
    "at_ms": NOW_MS,
    "queue": "q",
    "partition": 0,
    "message_id": "m",
    "generation": 0,
    "state": "ready",
    "importance": 5,
    "decay_rate": 0.0,
    "bytes": 1_000,
    "attempts": 0,
    "failures": 0,
    "enqueued_at_ms": NOW_MS,
    "access_rate": 0.0,
    "access_at_ms": 0,
    "decay_score": 0.0,
    "durable": True,
    "replicas": 1,
    "replica_target": 1,
    "copies": 1,
    "devices": ["SSD"],
    "policy_version": 0,
}
TOLD: dict[str, Any] = {
    "node": "a",
    "boot": 1,
    "seq": 1,
    "at_ms": NOW_MS,
    "queue": "q",
    "partition": 0,
    "message_id": "m",
    "generation": 0,
    "event": "published",
}


def frame(
    spark: SparkSession, table: Table, base: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> DataFrame:
    full = [{**dict.fromkeys(table.names), **base, **row} for row in rows]
    values = [tuple(row[name] for name in table.names) for row in full]
    return spark.createDataFrame(values, schema_of(table))


def catalog(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return frame(spark, CATALOG, STORED, rows)


def events(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return frame(spark, EVENTS, TOLD, rows)
