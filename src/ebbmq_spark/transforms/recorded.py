"""Recorded traffic as a trace: what was published, how long work took, by how many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.feed.traces import TRACE
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


#: Of a publish.
_SAID: Final = ("at_ms", "delay_ms", "bytes", "given", "given_decay_rate", *feed.GIVEN)
#: Ids are unique in a store, and a lake has the messages of several.
_KEY: Final = ("node", "queue", "message_id")


def trace_of(events: DataFrame) -> DataFrame:
    """The traffic in a feed, to be replayed: of the table TRACE, a row for each publish.

    Work that was done takes as long as it took; of what was never done nobody knows, and it takes
    the mean of its queue. Of a queue with nothing done `service_ms` is absent. `useful_ms` is the
    message's TTL, absent where it has none. What publishers did not say is absent: there a policy
    is to be tried, not the one the queue had.
    """
    mean_ms = F.avg("took_ms").over(Window.partitionBy("queue"))
    joined = (
        _messages(events)
        .withColumn("service_ms", F.coalesce("took_ms", mean_ms))
        .join(concurrency(events), on="queue", how="left")
    )
    columns = {
        "importance": _if_given("importance"),
        "ttl_ms": _if_given("ttl_ms"),
        "decay_rate": F.col("given_decay_rate"),
        "bytes": F.coalesce("bytes", F.lit(0)),
        "failures": F.col("failed"),
        "useful_ms": F.col("ttl_ms"),
    }
    return joined.select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in schema_of(TRACE)
        )
    )


def _if_given(name: str) -> Column:
    """A value that a publisher gave."""
    return F.when(F.col("given").contains(name), F.col(name))


def _messages(events: DataFrame) -> DataFrame:
    """What was told of each message when it was published, took_ms and failed.

    A power cut may take messages that were never on a disk, and their numbers are given anew. So
    what happens is about the last message that was published under an id.
    """
    event = F.col("event")
    is_published, is_failure = event == "published", event.isin(*feed.FAILURES)
    so_far = Window.partitionBy(*_KEY).orderBy("boot", "seq")
    return (
        events.where(is_published | is_failure | (event == "acked"))
        .withColumn("_born", F.max(F.when(is_published, F.col("boot"))).over(so_far))
        .where(F.col("_born").isNotNull())
        .groupBy(*_KEY, "_born")
        .agg(
            F.first(F.when(is_published, F.struct(*_SAID)), ignorenulls=True).alias("said"),
            F.max(F.when(event == "acked", F.col("latency_ms"))).alias("took_ms"),
            F.count_if(is_failure).alias("failed"),
        )
        .select("queue", "took_ms", "failed", "said.*")
    )


def concurrency(events: DataFrame) -> DataFrame:
    """The most leases of a queue at once, of those whose end is told: queue, consumers."""
    ends = events.where(F.col("event").isin(*feed.SETTLES) & F.col("latency_ms").isNotNull())
    begin_ms = (F.col("at_ms") - F.col("latency_ms")).alias("at_ms")
    steps = ends.select("queue", begin_ms, F.lit(1).alias("step")).union(
        ends.select("queue", "at_ms", F.lit(-1))
    )
    # At one instant leases end before others begin.
    in_time = Window.partitionBy("queue").orderBy("at_ms", "step")
    held = F.sum("step").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return (
        steps.select("queue", held.alias("held"))
        .groupBy("queue")
        .agg(F.greatest(F.max("held"), F.lit(1)).cast("int").alias("consumers"))
    )
