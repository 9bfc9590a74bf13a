"""What happened by queue, node and hour, so that parts of an hour add up to the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.feed.profiles import PROFILES
from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import ACCESS_MEMORY_DAYS
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("queue", "node", "hour_ms", "event", "reason")
HOUR_MS: Final = 3_600_000
_RANKS: Final = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
#: What a lease took says how long the work takes, unless it was given back.
_TIMED: Final = feed.SETTLES - {"released"}


def keyed(events: DataFrame) -> DataFrame:
    """Events with the columns of the key, and what is summed up of each."""
    hour_ms = (F.floor(F.col("at_ms") / HOUR_MS) * HOUR_MS).cast("long")
    timed = F.when(F.col("event").isin(*_TIMED), F.col("latency_ms"))
    return events.select(
        "queue",
        "node",
        hour_ms.alias("hour_ms"),
        "event",
        _cause().alias("reason"),
        F.coalesce("bytes", F.lit(0)).alias("bytes"),
        _access(hour_ms + HOUR_MS).alias("access"),
        timed.alias("took_ms"),
    )


def _cause() -> Column:
    """A reason without what is of one message: there are few, however many messages there are."""
    reason = F.coalesce("reason", F.lit(""))
    return (
        F.when(F.col("event").isin(*feed.SCORED), F.substring_index(reason, ",", 1))
        .when(F.col("event") == feed.GAP, F.lit(""))
        .otherwise(reason)
    )


def _access(end_ms: Column) -> Column:
    """A read by its age at the end of the hour; that of a lease that failed is taken back."""
    granted_at_ms = F.col("at_ms") - F.coalesce(F.col("latency_ms"), F.lit(0))

    def weight(at_ms: Column) -> Column:
        return F.exp((at_ms - end_ms) / DAY_MS / ACCESS_MEMORY_DAYS) / ACCESS_MEMORY_DAYS

    return (
        F.when(F.col("event").isin(*feed.READS), weight(F.col("at_ms")))
        .when(F.col("event").isin(*feed.FAILURES), -weight(granted_at_ms))
        .otherwise(F.lit(0.0))
    )


def totals() -> list[Column]:
    """What is summed up of `keyed` rows of a key."""
    return [
        F.count("*").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.sum("access").alias("access"),
        F.count("took_ms").alias("samples"),
        F.avg("took_ms").alias("mean_ms"),
        F.kll_sketch_agg_bigint("took_ms").alias("sketch"),
    ]


def profile(events: DataFrame, now_ms: int) -> DataFrame:
    """What happened, counted at an instant: of the table PROFILES."""
    summed = keyed(events).groupBy(*KEY).agg(*totals())
    return ranked(summed.withColumn("counted_at_ms", F.lit(now_ms)))


def merged(parts: DataFrame, now_ms: int, keep_ms: int) -> DataFrame:
    """Parts of the same hours added up: of PROFILES.

    Hours are old by the clock of their node, as far as that is behind: its newest hour, of those
    that were counted last. What nobody added to for as long is left out, too, so that a node that
    is gone, or one whose clock is ahead, is not kept for ever.

    Args:
        parts: of the table PROFILES.
        now_ms: the clock of who counts.
        keep_ms: how long hours are kept.
    """
    summed = F.sum(F.col("mean_ms") * F.col("samples")) / F.sum("samples")
    # Rows of an earlier version do not say when they were counted.
    counted = F.coalesce("counted_at_ms", F.least("hour_ms", F.lit(now_ms)))
    # Rows of an earlier version have the whole reason.
    alike = parts.withColumn("reason", _cause())
    whole = alike.groupBy(*KEY).agg(
        F.sum("count").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.sum("access").alias("access"),
        F.when(F.sum("samples") > 0, summed).alias("mean_ms"),
        F.sum("samples").alias("samples"),
        F.kll_merge_agg_bigint("sketch").alias("sketch"),
        F.max(counted).alias("counted_at_ms"),
    )
    newest = F.max(F.struct("counted_at_ms", "hour_ms")).over(Window.partitionBy("node"))
    clock = F.least(newest["hour_ms"], F.lit(now_ms))
    return ranked(
        whole.withColumn("_clock", clock)
        .where(F.col("counted_at_ms") >= now_ms - keep_ms)
        .where(F.col("hour_ms") >= F.col("_clock") - keep_ms)
    )


def recounted(known: DataFrame, anew: DataFrame) -> DataFrame:
    """Profiles after all events that are still there were counted anew: of PROFILES.

    Hours of which events are there are as they were counted now, others as they were before. Of the
    first hour that a node has events of, some may be gone: what is more counts.

    Args:
        known: as they were before.
        anew: of all events that are there.
    """
    of_node = Window.partitionBy("node")
    first = F.min(F.when(F.col("_is_anew"), F.col("hour_ms"))).over(of_node)
    is_there = F.max("_is_anew").over(Window.partitionBy("node", "hour_ms"))
    of_key = Window.partitionBy(*KEY)
    # What is as much as before was counted then.
    same = F.min("count").over(of_key) == F.max("count").over(of_key)
    counted = F.when(same, F.min("counted_at_ms").over(of_key)).otherwise(F.col("counted_at_ms"))
    most = F.row_number().over(of_key.orderBy(F.desc("count"), F.desc("_is_anew")))
    both = known.withColumn("_is_anew", F.lit(False)).unionByName(
        anew.withColumn("_is_anew", F.lit(True))
    )
    is_first = F.col("hour_ms") == F.col("_first")
    return (
        both.withColumns({"_first": first, "_is_there": is_there, "counted_at_ms": counted})
        .where(F.col("_is_anew") | ~F.col("_is_there") | is_first)
        .withColumn("_most", most)
        .where("_most = 1")
        .select(*PROFILES.names)
    )


def ranked(summed: DataFrame) -> DataFrame:
    """With the ranks of the times taken: of the table PROFILES."""
    some = F.col("samples") > 0
    columns = {
        name: F.when(some, F.kll_sketch_get_quantile_bigint("sketch", F.lit(rank)))
        for name, rank in _RANKS.items()
    }
    columns["sketch"] = F.when(some, F.col("sketch"))
    return summed.select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in schema_of(PROFILES)
        )
    )


def latencies(profiles: DataFrame) -> DataFrame:
    """How long leases lasted, by queue, node and hour, from PROFILES.

    Returns:
        queue, node, hour_ms, samples, mean_ms, p50_ms, p95_ms, p99_ms
    """
    summed = F.sum(F.col("mean_ms") * F.col("samples")) / F.sum("samples")
    merged_sketch = (
        profiles.where(F.col("samples") > 0)
        .groupBy("queue", "node", "hour_ms")
        .agg(
            summed.alias("mean_ms"),
            F.sum("samples").alias("samples"),
            F.kll_merge_agg_bigint("sketch").alias("sketch"),
        )
    )
    ranks = (
        F.kll_sketch_get_quantile_bigint("sketch", F.lit(rank)).alias(name)
        for name, rank in _RANKS.items()
    )
    return merged_sketch.select("queue", "node", "hour_ms", "samples", "mean_ms", *ranks)


def access_rates(profiles: DataFrame, clocks: DataFrame) -> DataFrame:
    """Reads a day of the queues of each node, as its clock is, from PROFILES: queue, node, rate.

    Args:
        profiles: of the table PROFILES.
        clocks: node, now_ms: what its clock says; a row for each node.
    """
    faded = F.exp((F.col("hour_ms") + HOUR_MS - F.col("now_ms")) / DAY_MS / ACCESS_MEMORY_DAYS)
    rate = F.greatest(F.sum(F.col("access") * F.least(faded, F.lit(1.0))), F.lit(0.0))
    return (
        profiles.where(F.col("access") != 0)
        .join(F.broadcast(clocks.select("node", "now_ms")), on="node", how="inner")
        .groupBy("queue", "node")
        .agg(rate.alias("access_rate"))
        .select("queue", "node", "access_rate")
    )
