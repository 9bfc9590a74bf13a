"""How long work takes, and the decay factor that asks for: the fleet's half of adaptive decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ebbmq.feed import events as feed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.settings import QueueParameters
    from ebbmq.model import AdaptSpec, QueueSpec

_HOUR_MS = 3_600_000
#: Of the sketch: its ranks are off by one in so many.
_ACCURACY = 1_000
_ADAPT = {
    "raise_above_ms": T.DoubleType(),
    "lower_below_ms": T.DoubleType(),
    "step": T.DoubleType(),
    "factor_min": T.DoubleType(),
    "factor_max": T.DoubleType(),
    "dwell_ms": T.DoubleType(),
    "window": T.DoubleType(),
}


def latency_profile(events: DataFrame) -> DataFrame:
    """How long leases lasted, by queue, node and hour; percentiles by a sketch.

    A lease that was released says nothing about the work and does not count.

    Returns:
        queue, node, hour_ms (the instant it begins), leases, failures, mean_ms, p50_ms, p95_ms,
        p99_ms
    """
    hour_ms = (F.floor(F.col("at_ms") / _HOUR_MS) * _HOUR_MS).cast("long")
    ranks = F.percentile_approx("latency_ms", [0.5, 0.95, 0.99], _ACCURACY)
    return (
        _settled(events)
        .groupBy("queue", "node", hour_ms.alias("hour_ms"))
        .agg(
            F.count("*").alias("leases"),
            F.count_if(F.col("event").isin(*feed.FAILURES)).alias("failures"),
            F.avg("latency_ms").alias("mean_ms"),
            ranks.alias("_ranks"),
        )
        .select(
            "queue",
            "node",
            "hour_ms",
            "leases",
            "failures",
            "mean_ms",
            *(F.get("_ranks", at).alias(f"p{p}_ms") for at, p in enumerate((50, 95, 99))),
        )
    )


def _settled(events: DataFrame) -> DataFrame:
    """Leases that ended, and say how long the work takes."""
    ends = feed.SETTLES - {"released"}
    return events.where(F.col("event").isin(*ends) & F.col("latency_ms").isNotNull())


def _controllers(spark: SparkSession, specs: Mapping[str, AdaptSpec]) -> DataFrame:
    """A row each, by the names of `AdaptSpec`."""
    fields = [T.StructField(name, kind) for name, kind in _ADAPT.items()]
    schema = T.StructType([T.StructField("queue", T.StringType(), nullable=False), *fields])
    rows = [
        (queue, *(float(getattr(spec, name)) for name in _ADAPT)) for queue, spec in specs.items()
    ]
    return spark.createDataFrame(rows, schema)


def last_factors(rates: DataFrame, now_ms: int) -> DataFrame:
    """What a run goes on from, of those before it: queue, factor, stepped_at_ms.

    A factor that ended longer ago than it held counts as 1, as it does for brokers. Where a run is
    merely late, as one an hour with factors that hold for an hour, it goes on from the last.

    Args:
        rates: of the table RATES, each queue once.
        now_ms: when that is, by the clock of who recommends.
    """
    over_at_ms = F.col("until_ms") + (F.col("until_ms") - F.col("decided_at_ms"))
    factor = F.when(over_at_ms <= now_ms, F.lit(1.0)).otherwise(F.col("factor"))
    # Rows of an earlier version do not say when the factor was stepped.
    stepped = F.coalesce("stepped_at_ms", "decided_at_ms")
    return rates.select("queue", factor.alias("factor"), stepped.alias("stepped_at_ms"))


def recommended_factors(
    events: DataFrame,
    queues: Iterable[QueueSpec | QueueParameters],
    before: DataFrame,
    *,
    now_ms: int,
    until_ms: int,
) -> DataFrame:
    """The decay factor for the new messages of each queue that adapts, from the whole fleet.

    One step of `policy.adapt.AdaptiveDecay` on the mean latency over all nodes: up where it is
    above the upper threshold, down where it is below the lower one, and neither before the last
    step is `dwell_ms` ago. What counts is what the brokers' own controllers judge by: of each
    partition on each node the last `window` leases. A queue of which nothing is told keeps its
    factor; one outside today's bounds is moved to the nearest.

    Args:
        events: of the table EVENTS, since the last run; those before are judged already.
        queues: those without a controller are left out.
        before: queue, factor, stepped_at_ms, as `last_factors` has them; a queue without it had 1,
            and rested long enough.
        now_ms: when that is, by the clock of who recommends.
        until_ms: how long the recommendation holds.

    Returns:
        queue, factor, mean_ms, leases, until_ms, p95_ms, stepped_at_ms; mean_ms, leases and p95_ms
        are of the leases that count
    """
    specs = {queue.name: queue.adapt for queue in queues if queue.adapt is not None}
    controllers = _controllers(events.sparkSession, specs)
    # A number that Spark knows beforehand: most leases are then left out before any is moved.
    most = max((spec.window for spec in specs.values()), default=0)
    # What a broker has a controller for, and the order that one observes in.
    of_one = Window.partitionBy("queue", "node", "partition")
    latest = F.row_number().over(of_one.orderBy(F.desc("boot"), F.desc("seq")))
    means = (
        _settled(events)
        .join(F.broadcast(controllers.select("queue", "window")), on="queue", how="inner")
        .withColumn("_latest", latest)
        .where((F.col("_latest") <= most) & (F.col("_latest") <= F.col("window")))
        .groupBy("queue")
        .agg(
            F.count("*").alias("leases"),
            F.avg("latency_ms").alias("mean_ms"),
            F.percentile_approx("latency_ms", 0.95, _ACCURACY).cast("double").alias("p95_ms"),
        )
    )
    # A queue may have other bounds since.
    last = F.least(
        F.greatest(F.coalesce("factor", F.lit(1.0)), F.col("factor_min")), F.col("factor_max")
    )
    stepped = F.coalesce(F.col("stepped_at_ms"), F.lit(0))
    rested = F.lit(now_ms) - stepped >= F.col("dwell_ms")
    up = rested & (F.col("mean_ms") > F.col("raise_above_ms"))
    down = rested & (F.col("mean_ms") < F.col("lower_below_ms"))
    factor = (
        F.when(up, F.least(last * F.col("step"), F.col("factor_max")))
        .when(down, F.greatest(last / F.col("step"), F.col("factor_min")))
        .otherwise(last)
    )
    return (
        controllers.join(means, on="queue", how="left")
        .join(before.select("queue", "factor", "stepped_at_ms"), on="queue", how="left")
        .select(
            "queue",
            factor.alias("factor"),
            "mean_ms",
            F.coalesce("leases", F.lit(0)).alias("leases"),
            F.lit(until_ms).cast("long").alias("until_ms"),
            "p95_ms",
            # Also at a bound, as the controller does.
            F.when(up | down, F.lit(now_ms)).otherwise(stepped).cast("long").alias("stepped_at_ms"),
        )
    )
