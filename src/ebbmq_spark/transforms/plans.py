"""From decay scores to a plan for the fleet: which copies to add, drop and move, within capacity.

Targets and tiers are those of `policy.placement`: what a broker would decide by itself when it is
next asked, for every message at once. What no single broker can see is the capacity of the whole:
where a tier has no room for everything, the most valuable goes first. Which those are is found by a
histogram of values, one pass over the rows and a few lines per tier, never by sorting all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from ebbmq.feed.plans import PLANS, WRITING
from ebbmq.policy.decay import Phase
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.transforms.importance import with_importance
from ebbmq_spark.transforms.scores import with_scores

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A repair comes before everything that is merely better.
REPAIR_VALUE: Final = 1_000.0
#: Values are told apart by this much; a tier is left unfilled by what one such step holds.
_VALUE_STEPS: Final = 64


def wanted_target(phase: Column) -> Column:
    """Copies a message should have, at a review; as `policy.placement` decides.

    Of the columns of a catalog joined with the parameters of its queue.
    """
    asked = F.greatest(F.col("replicas"), F.col("min_copies"))
    faded = phase == int(Phase.FADED)
    floor = F.when(faded, F.lit(1)).otherwise(asked)
    most = F.greatest(floor, F.coalesce("max_replicas", "replicas"))
    more = F.col("replica_target") + (phase == int(Phase.FRESH)).cast("int")
    return F.when(faded, floor).otherwise(F.least(F.greatest(floor, more), most)).cast("int")


def planned(catalog: DataFrame, parameters: DataFrame, *, now_ms: int, until_ms: int) -> DataFrame:
    """What should be done with each message, as if there were room for everything.

    At most one action a message: the most urgent; the next run sees what is left to do. Leased
    messages are left alone, for they are about to go.

    Returns:
        of the table PLANS
    """
    valued = with_importance(catalog, parameters, now_ms).drop("band", "stale")
    scored = with_scores(valued, parameters, now_ms)
    own = parameters.select("queue", "tiers", "min_copies", "max_replicas")
    joined = (
        scored.where(F.col("state") == "ready")
        .join(F.broadcast(own), on="queue", how="inner")
        .withColumn("target", wanted_target(F.col("phase")))
        .withColumn("_here", F.array_position("tiers", F.col("tier")))
        .withColumn("_there", F.array_position("tiers", F.col("wanted_tier")))
    )
    chosen = joined.withColumn("action", _action()).where(F.col("action").isNotNull())
    columns = {
        "from_tier": F.col("tier"),
        "to_tier": F.coalesce("wanted_tier", "tier"),
        "bytes": F.when(F.col("action").isin(*WRITING), F.col("bytes")).otherwise(F.lit(0)),
        "value": _value(),
        "reason": F.concat(
            F.lit("decay score "), F.format_number("decay_score", 2), F.lit(", copies "),
            "copies", F.lit(" of "), "target",
        ),
        "decided_at_ms": F.lit(now_ms),
        "until_ms": F.lit(until_ms),
    }  # fmt: skip
    return chosen.select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in schema_of(PLANS)
        )
    )


def _action() -> Column:
    here, there = F.col("_here"), F.col("_there")
    placed = (here > 0) & (there > 0)
    fresh = F.col("phase") == int(Phase.FRESH)
    # A fresh message stays where its publisher's rules put it, unless it had faded before.
    colder = placed & (there > here) & ~fresh
    warmer = placed & (there < here)
    return (
        F.when(F.col("copies") < F.least("replica_target", "target"), F.lit("repair"))
        .when(warmer, F.lit("promote"))
        .when(F.col("copies") < F.col("target"), F.lit("add_copy"))
        .when(colder & (F.col("phase") == int(Phase.FADED)), F.lit("archive"))
        .when(colder, F.lit("move"))
        .when(F.col("copies") > F.col("target"), F.lit("drop_copy"))
    )


def _value() -> Column:
    """What an action is worth: what the message is worth now, and more if it is read."""
    worth = F.col("current_importance") + F.least(F.col("access_rate"), F.lit(100.0))
    return F.when(F.col("action") == "repair", worth + REPAIR_VALUE).otherwise(worth)


def within_capacity(plan: DataFrame, capacity: DataFrame) -> DataFrame:
    """The actions that there is room for, the most valuable of each tier first.

    Actions that write nothing are always in. A tier that `capacity` does not name has no bound.

    Args:
        plan: of the table PLANS.
        capacity: tier, free_bytes: what may be written to the devices of a tier in all.

    Returns:
        of the table PLANS
    """
    step = F.floor(F.col("value") * _VALUE_STEPS)
    writing = (
        plan.where(F.col("bytes") > 0)
        .groupBy(F.col("to_tier").alias("_tier"), step.alias("_step"))
        .agg(F.sum("bytes").alias("_bytes"))
    )
    from_the_top = Window.partitionBy("_tier").orderBy(F.col("_step").desc())
    filled = (
        writing.withColumn("_filled", F.sum("_bytes").over(from_the_top))
        .join(F.broadcast(capacity), F.col("_tier") == F.col("tier"), how="inner")
        .where(F.col("_filled") > F.col("free_bytes"))
        .groupBy("_tier")
        .agg(F.max("_step").alias("_refused_from"))
    )
    fits = F.col("_refused_from").isNull() | (step > F.col("_refused_from"))
    return (
        plan.join(F.broadcast(filled), F.col("to_tier") == F.col("_tier"), how="left")
        .where((F.col("bytes") == 0) | fits)
        .select(*PLANS.names)
    )
