"""Messages that something happened to after the snapshot they are in: as they are by now.

A snapshot is minutes old when it is planned for. What was told since says which of its messages
left or are leased, so that no room is planned for them; which were leased and came back, so that
the plan is for their generation; and which were read, so that one that had faded is seen to be hot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import ACCESS_MEMORY_DAYS
from ebbmq_spark.transforms.codegen import apart
from ebbmq_spark.transforms.quality import STEPS
from ebbmq_spark.transforms.scores import access_rate_at

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("node", "queue", "message_id")
#: A message that is there no more.
GONE: Final = "gone"


def since(events: DataFrame, snapshots: DataFrame) -> DataFrame:
    """Events after the snapshot of their node began.

    Args:
        events: of the table EVENTS, each told once.
        snapshots: node, boot, at_ms, ended_ms, now_ms: which snapshot each node has, from when to
            when it was taken, what its clock says now.

    Returns:
        of the table EVENTS, and ended_ms, now_ms
    """
    known = snapshots.select(
        "node", F.col("boot").alias("_boot"), F.col("at_ms").alias("_at_ms"), "ended_ms", "now_ms"
    )
    later = (F.col("boot") > F.col("_boot")) | (F.col("at_ms") >= F.col("_at_ms"))
    return (
        events.join(F.broadcast(known), on="node", how="inner").where(later).drop("_boot", "_at_ms")
    )


def touched(events: DataFrame) -> DataFrame:
    """What became of messages, from `since`: a row for each that was used, wherever its copies are.

    One that came after the snapshot was complete is not in it; and that one arrived meanwhile,
    without anything more, says nothing of it.

    Returns:
        node, queue, message_id, now_state (null: as it was), now_generation, read_from_ms,
        read_to_ms (null: not read), gained: by how much its access rate rose, as of read_to_ms
    """
    is_step = F.col("event").isin(*STEPS)
    is_read, failed = F.col("event").isin(*feed.READS), F.col("event").isin(*feed.FAILURES)
    counts = is_read | failed
    arrives = F.col("event").isin(*feed.ARRIVALS)
    last = F.max_by(F.when(is_step, _state()), F.when(is_step, F.struct("boot", "seq")))
    to_ms = F.max(F.when(counts, F.col("at_ms")))
    granted_ms = F.col("at_ms") - F.coalesce(F.col("latency_ms"), F.lit(0))
    # Weights as of a fixed instant, which the sum is taken to `read_to_ms` from.
    weight = F.when(is_read, _weight(F.col("at_ms"))).when(failed, -_weight(granted_ms))
    return (
        events.where(is_step | is_read)
        .groupBy(*KEY)
        .agg(
            last.alias("now_state"),
            F.max("generation").alias("now_generation"),
            F.min(F.when(counts, F.col("at_ms"))).alias("read_from_ms"),
            to_ms.alias("read_to_ms"),
            F.sum(weight).alias("_sum"),
            F.max("now_ms").alias("_now_ms"),
            F.bool_or(~arrives).alias("_is_used"),
            F.bool_or(arrives & (F.col("at_ms") > F.col("ended_ms"))).alias("_is_new"),
        )
        .where("_is_used AND NOT _is_new")
        .withColumn("gained", F.col("_sum") * _faded(F.col("_now_ms") - F.col("read_to_ms"), 1))
        .drop("_sum", "_now_ms", "_is_used", "_is_new")
    )


def _state() -> Column:
    """What an event leaves a message as."""
    event, rests = F.col("event"), F.coalesce("delay_ms", F.lit(0))
    return (
        F.when(event.isin(*feed.LAST), F.lit(GONE))
        .when(event == "leased", F.lit("leased"))
        .when(F.col("at_ms") + rests > F.col("now_ms"), F.lit("scheduled"))
        .otherwise(F.lit("ready"))
    )


def _weight(at_ms: Column) -> Column:
    return _faded(F.col("now_ms") - at_ms, -1) / ACCESS_MEMORY_DAYS


def _faded(span_ms: Column, sign: int) -> Column:
    return F.exp(sign * span_ms / DAY_MS / ACCESS_MEMORY_DAYS)


def as_now(catalog: DataFrame, changes: DataFrame) -> DataFrame:
    """Messages of a catalog as they are by now, without those that are gone.

    A message that was read while its snapshot was taken is as hot as that says: which of its reads
    are in it cannot be told.

    Args:
        catalog: of the table CATALOG, or columns of it.
        changes: as `touched` makes them.

    Returns:
        the columns of `catalog`
    """
    read = (F.col("read_to_ms") > F.col("access_at_ms")) & (
        F.col("read_from_ms") > F.col("access_at_ms")
    )
    before = access_rate_at(F.col("access_rate"), F.col("access_at_ms"), F.col("read_to_ms"))
    columns = {
        "state": F.coalesce("now_state", "state"),
        "generation": F.greatest(F.col("generation"), F.col("now_generation")),
        "access_rate": F.when(read, F.greatest(before + F.col("gained"), F.lit(0.0))).otherwise(
            F.col("access_rate")
        ),
        "access_at_ms": F.when(read, F.col("read_to_ms")).otherwise(F.col("access_at_ms")),
    }
    now = (
        catalog.join(changes, on=list(KEY), how="left")
        .where(F.coalesce("now_state", F.lit("")) != GONE)
        .select(*(columns.get(name, F.col(name)).alias(name) for name in catalog.columns))
    )
    return apart(now)
