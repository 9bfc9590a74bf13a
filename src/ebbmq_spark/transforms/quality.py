"""Whether a feed can be believed: rows that are none, gaps, duplicates, what cannot have happened.

Each check is told by node, for it is a node that is wrong. What is not a row of the table is set
aside and counted; it is never silently dropped.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.feed.events import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column

#: What tells an event apart from every other one.
TOLD_ONCE: Final = ("node", "boot", "seq")
#: What changes where a message stands; the others happen to its copies, or leave it as it is.
STEPS = tuple(
    name for name in feed.NAMES if name not in feed.COPIES and name not in ("peeked", feed.GAP)
)
_BEFORE_LEASE = ("published", "scheduled", "retried", "released", "lease_expired")


def with_faults(events: DataFrame) -> DataFrame:
    """Events with a column `fault`: why a row cannot be used; null where it can."""
    missing = [F.when(F.col(name).isNull(), F.lit(f"no {name}")) for name in EVENTS.required]
    wrong = [
        F.when(~F.col("event").isin(*feed.NAMES), F.concat(F.lit("no such event: "), "event")),
        F.when(F.col("at_ms") < 0, F.lit("at_ms is below 0")),
        F.when(F.col("seq") < 1, F.lit("seq is below 1")),
        F.when(F.col("latency_ms") < 0, F.lit("latency_ms is below 0")),
        F.when(~F.col("importance").between(1, 10), F.lit("importance is not 1 to 10")),
    ]
    return events.withColumn("fault", F.coalesce(*missing, *wrong))


def usable(events: DataFrame) -> DataFrame:
    """The rows without a fault, each once: what a node told twice happened once."""
    sound = with_faults(events).where(F.col("fault").isNull()).drop("fault")
    return sound.dropDuplicates(list(TOLD_ONCE))


def rejected(events: DataFrame) -> DataFrame:
    """The rows with a fault, and why; to be kept aside."""
    return with_faults(events).where(F.col("fault").isNotNull())


def duplicates(events: DataFrame) -> DataFrame:
    """Numbers that were told more than once: node, boot, seq, times."""
    return events.groupBy(*TOLD_ONCE).agg(F.count("*").alias("times")).where(F.col("times") > 1)


def gaps(events: DataFrame) -> DataFrame:
    """Numbers that are missing between others of a boot: node, boot, after_seq, missing.

    What is missing before the first row may be older than the feed is kept, and is no gap.
    """
    in_order = Window.partitionBy("node", "boot").orderBy("seq")
    return (
        events.select(*TOLD_ONCE)
        .distinct()
        .withColumn("after_seq", F.lag("seq").over(in_order))
        .withColumn("missing", F.col("seq") - F.col("after_seq") - 1)
        .where(F.col("missing") > 0)
        .select("node", "boot", "after_seq", "missing")
    )


def impossible(events: DataFrame) -> DataFrame:
    """Events that cannot follow what was told of the same message before.

    Returns:
        node, boot, seq, queue, message_id, event, after (the event before it), fault
    """
    of_message = Window.partitionBy("node", "boot", "queue", "message_id").orderBy("seq")
    steps = events.where(F.col("event").isin(*STEPS)).withColumn(
        "after", F.lag("event").over(of_message)
    )
    event, after = F.col("event"), F.col("after")
    faults = [
        _fault(after.isin(*feed.LAST), "the message was gone"),
        _fault((event == "published") & after.isNotNull(), "published, but known before"),
        _fault((event == "leased") & (after == "leased"), "leased, but the lease before ran"),
        _fault(event.isin(*feed.SETTLES) & (after != "leased"), "settled, but not leased"),
        _fault((event == "leased") & ~after.isin(*_BEFORE_LEASE), "leased, but not ready"),
    ]
    return (
        steps.withColumn("fault", F.coalesce(*faults))
        .where(F.col("fault").isNotNull())
        .select(*TOLD_ONCE, "queue", "message_id", "event", "after", "fault")
    )


def _fault(holds: Column, text: str) -> Column:
    return F.when(holds, F.lit(text))


def counts(events: DataFrame) -> DataFrame:
    """All checks by node, a row each: node, what, times.

    `what` is rows, rejected, duplicates, missing or impossible.
    """
    judged = with_faults(events)
    sound = usable(events)
    twice = duplicates(judged.where(F.col("fault").isNull()))
    found = (
        ("rows", judged, F.count("*")),
        ("rejected", judged, F.count("fault")),
        ("duplicates", twice, F.sum(F.col("times") - 1)),
        ("missing", gaps(sound), F.sum("missing")),
        ("impossible", impossible(sound), F.count("*")),
    )
    parts = [
        rows.groupBy("node").agg(total.cast("long").alias("times")).withColumn("what", F.lit(what))
        for what, rows, total in found
    ]
    return functools.reduce(DataFrame.union, parts).select("node", "what", "times")


def summary(events: DataFrame) -> DataFrame:
    """All checks by node: node, rows, rejected, duplicates, missing, impossible."""
    names = ("rows", "rejected", "duplicates", "missing", "impossible")
    cells = (
        F.coalesce(F.sum(F.when(F.col("what") == name, F.col("times"))), F.lit(0)).alias(name)
        for name in names
    )
    return counts(events).groupBy("node").agg(*cells)
