"""Whether a feed can be believed: rows that are none, gaps, duplicates, what cannot have happened.

Each check is told by node, for it is a node that is wrong. What is not a row of the table is set
aside and counted; it is never silently dropped.

Events come in parts. `stretches` of one, with those of the parts before it, say what is missing and
what is told again (`ebbmq.feed.heard`); from the last steps of messages in those before
`next_steps` finds what cannot have happened. Where numbers are missing between two events of a
message, what was left out may have been about it: nothing is said of the second one.

A row with a fault that has a number was told: it is not missing. What happened to its message is
not known, so that nothing is said of the event after it; nor, where it names no message, of any
event that has one before it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.feed.events import EVENTS
from ebbmq.feed.heard import STRETCHES_MAX
from ebbmq.feed.steps import STEPS as STEPS_TABLE

if TYPE_CHECKING:
    from pyspark.sql import Column

#: What tells an event apart from every other one.
TOLD_ONCE: Final = ("node", "boot", "seq")
#: What changes where a message stands; the others happen to its copies, or leave it as it is.
STEPS = tuple(
    name for name in feed.NAMES if name not in feed.COPIES and name not in ("peeked", feed.GAP)
)
_OF_MESSAGE: Final = ("node", "boot", "queue", "message_id")
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


def is_numbered() -> Column:
    """Whether a row, sound or not, says which event of its node it is."""
    return F.col("node").isNotNull() & F.col("boot").isNotNull() & (F.col("seq") >= 1)


def is_of_message() -> Column:
    """Whether a row, sound or not, says which message it is about."""
    return F.col("queue").isNotNull() & F.col("message_id").isNotNull()


def unknown_steps(events: DataFrame) -> DataFrame:
    """The rows with a fault that name their event and their message, each without `event`."""
    known = rejected(events).where(is_numbered() & is_of_message()).drop("fault")
    nothing = F.lit(None).cast("string")
    return known.dropDuplicates(list(TOLD_ONCE)).withColumn("event", nothing)


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


def stretches(events: DataFrame, most: int = STRETCHES_MAX) -> DataFrame:
    """Numbers of each boot without one missing between them.

    Args:
        events: of the table EVENTS.
        most: of each boot, so many; if there are more, the first ones are told as one.

    Returns:
        node, boot, first_seq, last_seq, numbers (told between the two), times (rows they are in)
    """
    in_order = Window.partitionBy("node", "boot").orderBy("seq")
    from_last = Window.partitionBy("node", "boot").orderBy(F.col("first_seq").desc())
    found = (
        events.select(*TOLD_ONCE)
        .withColumn("_rank", F.dense_rank().over(in_order))
        .groupBy("node", "boot", (F.col("seq") - F.col("_rank")).alias("_missing"))
        .agg(
            F.min("seq").alias("first_seq"),
            F.max("seq").alias("last_seq"),
            F.count("*").alias("times"),
        )
    )
    numbers = F.col("last_seq") - F.col("first_seq") + 1
    return (
        found.withColumn("_place", F.least(F.row_number().over(from_last), F.lit(most)))
        .groupBy("node", "boot", "_place")
        .agg(
            F.min("first_seq").alias("first_seq"),
            F.max("last_seq").alias("last_seq"),
            F.sum(numbers).alias("numbers"),
            F.sum("times").alias("times"),
        )
        .drop("_place")
    )


def without(events: DataFrame, places: DataFrame) -> DataFrame:
    """Events but for those of some numbers.

    Args:
        events: of the table EVENTS.
        places: node, boot, first, last: which; a few rows.
    """
    at = F.broadcast(places.select(*(F.col(name).alias(f"_{name}") for name in places.columns)))
    is_there = (
        (F.col("node") == F.col("_node"))
        & (F.col("boot") == F.col("_boot"))
        & F.col("seq").between(F.col("_first"), F.col("_last"))
    )
    return events.join(at, on=is_there, how="left_anti")


def impossible(events: DataFrame) -> DataFrame:
    """Events that cannot follow what was told of the same message before, with nothing missing.

    Args:
        events: of the table EVENTS, each told once; one without `event` is of `unknown_steps`.

    Returns:
        node, boot, seq, queue, message_id, event, after (the event before it), fault
    """
    in_order = Window.partitionBy("node", "boot").orderBy("seq")
    # What has the same number of others missing before it has none missing between.
    stretch = F.col("seq") - F.dense_rank().over(in_order)
    found = _with_step_faults(events.withColumn("_stretch", stretch)).where("fault IS NOT NULL")
    return found.select(*TOLD_ONCE, "queue", "message_id", "event", "after", "fault")


def next_steps(events: DataFrame, steps: DataFrame, boots: DataFrame) -> DataFrame:
    """The last step of each message, after earlier parts and this one, and what cannot have been.

    What comes late, with a number below the last one of its boot, is known to have happened and is
    not judged: of what was told around it only the last step is remembered.

    Args:
        events: of the table EVENTS, each told once, and not in earlier parts; one without `event`
            is of `unknown_steps`.
        steps: those of earlier parts, of the table STEPS.
        boots: node, boot, told_to (the last number in earlier parts; null: none), kept_from (the
            first number of which steps are to be kept; null: none is), stretches (of numbers told
            by now, in order: the first of each, and how many of it nobody knows); a row for each.

    Returns:
        of the table STEPS; impossible: how many events of the message, as `impossible` has them;
        is_kept
    """
    columns = (*STEPS_TABLE.names, "is_judged", "kept_from", "_stretch")
    is_late = F.coalesce(F.col("seq") <= F.col("told_to"), F.lit(False))
    told = events.select(*STEPS_TABLE.names, F.lit(True).alias("is_new")).unionByName(
        steps.select(*STEPS_TABLE.names, F.lit(False).alias("is_new"))
    )
    known = told.join(F.broadcast(boots), on=["node", "boot"], how="left")
    judged = (
        known.withColumn("is_judged", F.col("is_new") & ~is_late)
        .withColumn("_place", F.expr("size(filter(stretches, each -> each[0] <= seq))"))
        # Null, which is equal to nothing, where nobody knows which numbers are missing.
        .withColumn("_stretch", F.expr("if(get(stretches, _place - 1)[1] = 0, _place, NULL)"))
        .select(*columns)
    )
    is_fault = F.col("fault").isNotNull() & F.col("is_judged")
    is_late_enough = F.coalesce(F.max(F.col("seq") >= F.col("kept_from")), F.lit(False))
    last = F.max_by("event", F.struct("seq", F.col("event").isNull()))
    return (
        _with_step_faults(judged)
        .groupBy(*_OF_MESSAGE)
        .agg(
            F.max("seq").alias("seq"),
            last.alias("event"),
            F.count_if(is_fault).alias("impossible"),
            (is_late_enough & last.isNotNull()).alias("is_kept"),
        )
    )


def _with_step_faults(events: DataFrame) -> DataFrame:
    """Steps with the event before (`after`) and why they cannot follow it (`fault`).

    Args:
        events: of the table EVENTS, and `_stretch`, the same for numbers without one missing
            between them.
    """
    of_message = Window.partitionBy(*_OF_MESSAGE).orderBy("seq", F.col("event").asc_nulls_last())
    steps = events.where(F.col("event").isNull() | F.col("event").isin(*STEPS)).withColumns(
        {
            "after": F.lag("event").over(of_message),
            "_is_next": F.col("_stretch") == F.lag("_stretch").over(of_message),
        }
    )
    event, after = F.col("event"), F.col("after")
    faults = [
        _fault(after.isin(*feed.LAST), "the message was gone"),
        _fault((event == "published") & after.isNotNull(), "published, but known before"),
        _fault((event == "leased") & (after == "leased"), "leased, but the lease before ran"),
        _fault(event.isin(*feed.SETTLES) & (after != "leased"), "settled, but not leased"),
        _fault((event == "leased") & ~after.isin(*_BEFORE_LEASE), "leased, but not ready"),
    ]
    is_known = event.isNotNull() & after.isNotNull()
    return steps.withColumn("fault", F.when(is_known & F.col("_is_next"), F.coalesce(*faults)))


def _fault(holds: Column, text: str) -> Column:
    return F.when(holds, F.lit(text))


def counts(events: DataFrame) -> DataFrame:
    """All checks by node, a row each: node, what, times.

    `what` is rows, rejected, duplicates, missing or impossible.
    """
    judged = with_faults(events)
    numbered = judged.where(is_numbered())
    steps = usable(events).unionByName(unknown_steps(events))
    found = (
        ("rows", judged, F.count("*")),
        ("rejected", judged, F.count("fault")),
        ("duplicates", duplicates(numbered), F.sum(F.col("times") - 1)),
        ("missing", gaps(numbered), F.sum("missing")),
        ("impossible", impossible(steps), F.count("*")),
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
