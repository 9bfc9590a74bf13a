"""Who reads what: access rates of messages and queues, hours of the day, the hot set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import ACCESS_MEMORY_DAYS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HOUR_MS = 3_600_000
#: Steps in which a rate doubles.
_DEGREES = 6


def message_access(events: DataFrame, now_ms: int) -> DataFrame:
    """How often messages are read, as of an instant: one row for each message that was.

    The sum of what `policy.decay.Access` credits one by one: a read counts fully when it happens
    and 1/e of that a day later; that of a lease that failed is taken back.

    Returns:
        node, queue, message_id, access_rate, reads, last_read_at_ms
    """
    is_read, failed = F.col("event").isin(*feed.READS), F.col("event").isin(*feed.FAILURES)
    granted_at_ms = F.col("at_ms") - F.coalesce(F.col("latency_ms"), F.lit(0))
    weight = (
        F.when(is_read, _weight(F.col("at_ms"), now_ms))
        .when(failed, -_weight(granted_at_ms, now_ms))
        .otherwise(F.lit(0.0))
    )
    return (
        events.where((is_read | failed) & (F.col("at_ms") <= now_ms))
        .groupBy("node", "queue", "message_id")
        .agg(
            F.greatest(F.sum(weight), F.lit(0.0)).alias("access_rate"),
            F.count_if(is_read).alias("reads"),
            F.max(F.when(is_read, F.col("at_ms"))).alias("last_read_at_ms"),
        )
        .where(F.col("reads") > 0)
    )


def _weight(at_ms: Column, now_ms: int) -> Column:
    return F.exp((at_ms - now_ms) / DAY_MS / ACCESS_MEMORY_DAYS) / ACCESS_MEMORY_DAYS


def queue_access(access: DataFrame) -> DataFrame:
    """How often the messages of each queue are read, from `message_access`.

    Returns:
        queue, messages, access_rate (of all of them together), reads
    """
    return access.groupBy("queue").agg(
        F.count("*").alias("messages"),
        F.sum("access_rate").alias("access_rate"),
        F.sum("reads").alias("reads"),
    )


def hourly_profile(events: DataFrame) -> DataFrame:
    """What happens in which hour of the day, in UTC, over all days told of.

    Returns:
        queue, hour (0 to 23), published, reads, done
    """
    hour = F.pmod(F.floor(F.col("at_ms") / _HOUR_MS), F.lit(24)).cast("int")
    event = F.col("event")
    return events.groupBy("queue", hour.alias("hour")).agg(
        F.count_if(event == "published").alias("published"),
        F.count_if(event.isin(*feed.READS)).alias("reads"),
        F.count_if(event == "acked").alias("done"),
    )


def heat(access: DataFrame) -> DataFrame:
    """How many messages of each queue are read how often: in steps, without a sort.

    Returns:
        queue, degree (hotter ones are higher), messages, access_rate (of all of them together)
    """
    degree = F.floor(F.log2("access_rate") * _DEGREES).cast("int")
    return (
        access.where(F.col("access_rate") > 0)
        .groupBy("queue", degree.alias("degree"))
        .agg(F.count("*").alias("messages"), F.sum("access_rate").alias("access_rate"))
    )


def hot_set(access: DataFrame, share: float) -> DataFrame:
    """The fewest messages of each queue that take this share of its reads, from `message_access`.

    Returns:
        the rows of `access` that are in the hot set
    """
    of_queue = Window.partitionBy("queue")
    ranked = of_queue.orderBy(F.col("access_rate").desc(), "node", "message_id")
    before = F.sum("access_rate").over(ranked.rowsBetween(Window.unboundedPreceding, -1))
    total = F.sum("access_rate").over(of_queue)
    return (
        access.withColumn("_before", F.coalesce(before, F.lit(0.0)))
        .withColumn("_total", total)
        .where(F.col("_before") < F.col("_total") * share)
        .select(*access.columns)
    )
