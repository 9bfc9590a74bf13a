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
        "decay_rate": _given_rate(),
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
    """A value that a publisher gave; of a feed that does not say who did, the one that counted."""
    given = F.col("given")
    return F.when(given.isNull() | given.contains(name), F.col(name))


def _given_rate() -> Column:
    """The decay rate that a publisher gave.

    Where the feed does not say who gave it, 0 was hardly a publisher: it is what most queues give.
    """
    told = F.when(F.col("decay_rate") > 0, F.col("decay_rate"))
    return F.when(F.col("given").isNull(), told).otherwise(F.col("given_decay_rate"))


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
    """The most leases of a queue that were held at once: queue, consumers.

    A lease ends when it is settled, or its message leaves. Where neither is told of it, that was
    left out: it is taken to end before the first number that is missing after it, or with the last
    one of its boot. One whose begin was left out lasted as long as its end says.
    """
    leases = _leases(events)
    steps = leases.select("queue", F.col("from_ms").alias("at_ms"), F.lit(1).alias("step")).union(
        leases.select("queue", F.greatest("to_ms", "from_ms"), F.lit(-1))
    )
    # At one instant leases end before others begin.
    in_time = Window.partitionBy("queue").orderBy("at_ms", "step")
    held = F.sum("step").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return (
        steps.select("queue", held.alias("held"))
        .groupBy("queue")
        .agg(F.greatest(F.max("held"), F.lit(1)).cast("int").alias("consumers"))
    )


def _leases(events: DataFrame) -> DataFrame:
    """Every lease as far as it is known: queue, from_ms, to_ms."""
    event, at_ms, lease = F.col("event"), F.col("at_ms"), F.col("generation")
    is_lease, is_end = event == "leased", event.isin(*feed.SETTLES, *feed.LAST)
    of_message = Window.partitionBy(*_KEY).orderBy("boot", "seq")
    steps = events.where(is_lease | is_end).withColumns(
        {
            "_ends": F.lead(F.when(is_end, lease)).over(of_message),
            "_next_ms": F.lead("at_ms").over(of_message),
            "_began": F.lag(F.when(is_lease, lease)).over(of_message),
        }
    )
    has_begun = F.coalesce(F.col("_began") == lease, F.lit(False))
    is_alone = event.isin(*feed.SETTLES) & ~has_begun & F.col("latency_ms").isNotNull()
    known_to_ms = F.when(is_lease & (F.col("_ends") == lease), F.col("_next_ms"))
    leases = steps.where(is_lease | is_alone).select(
        *("node", "boot", "seq", "queue", "_next_ms"),
        F.when(is_lease, at_ms).otherwise(at_ms - F.col("latency_ms")).alias("from_ms"),
        F.when(is_lease, known_to_ms).otherwise(at_ms).alias("to_ms"),
    )
    # From the last on: the first break after a lease is the last that was looked at before it.
    back = Window.partitionBy("node", "boot").orderBy(
        F.desc("seq"), F.col("queue").asc_nulls_first()
    )
    # At the last instant that is known it was held; least leaves out what is null.
    until_ms = F.least("_next_ms", F.last("_break_ms", ignorenulls=True).over(back) + 1)
    return (
        leases.unionByName(_breaks(events), allowMissingColumns=True)
        .withColumn("to_ms", F.coalesce("to_ms", until_ms))
        .where(F.col("queue").isNotNull())
        .select("queue", "from_ms", "to_ms")
    )


def _breaks(events: DataFrame) -> DataFrame:
    """Numbers after which the next one is not told: node, boot, seq, _break_ms."""
    in_order = Window.partitionBy("node", "boot").orderBy("seq")
    is_whole = F.lead("seq").over(in_order) == F.col("seq") + 1
    return (
        events.select("node", "boot", "seq", "at_ms", is_whole.alias("_is_whole"))
        .where(~F.coalesce("_is_whole", F.lit(False)))
        .select("node", "boot", "seq", F.col("at_ms").alias("_break_ms"))
    )
