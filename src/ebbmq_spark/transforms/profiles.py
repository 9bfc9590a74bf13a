"""What happened by queue, node and hour, so that parts of an hour add up to the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
        F.coalesce("reason", F.lit("")).alias("reason"),
        F.coalesce("bytes", F.lit(0)).alias("bytes"),
        _access(hour_ms + HOUR_MS).alias("access"),
        timed.alias("took_ms"),
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


def profile(events: DataFrame) -> DataFrame:
    """What happened, counted: of the table PROFILES."""
    return ranked(keyed(events).groupBy(*KEY).agg(*totals()))


def merged(parts: DataFrame, since_ms: int) -> DataFrame:
    """Parts of the same hours added up, hours before an instant left out: of PROFILES."""
    summed = F.sum(F.col("mean_ms") * F.col("samples")) / F.sum("samples")
    return ranked(
        parts.where(F.col("hour_ms") >= since_ms)
        .groupBy(*KEY)
        .agg(
            F.sum("count").alias("count"),
            F.sum("bytes").alias("bytes"),
            F.sum("access").alias("access"),
            F.when(F.sum("samples") > 0, summed).alias("mean_ms"),
            F.sum("samples").alias("samples"),
            F.kll_merge_agg_bigint("sketch").alias("sketch"),
        )
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


def access_rates(profiles: DataFrame, now_ms: int) -> DataFrame:
    """Reads a day of the queues of each node at an instant, from PROFILES: queue, node, rate."""
    faded = F.exp((F.col("hour_ms") + HOUR_MS - now_ms) / DAY_MS / ACCESS_MEMORY_DAYS)
    rate = F.greatest(F.sum(F.col("access") * F.least(faded, F.lit(1.0))), F.lit(0.0))
    return (
        profiles.where(F.col("access") != 0)
        .groupBy("queue", "node")
        .agg(rate.alias("access_rate"))
        .select("queue", "node", "access_rate")
    )
