"""From decay scores to a plan for the fleet: which copies to add, drop and move, within capacity.

Targets and tiers are those of `policy.advice`: what a broker would decide by itself when it is next
asked, for every message at once. What no single broker can see is the capacity of the whole: where
a tier has no room for everything, the most valuable goes first. Which those are is found by a
histogram of values, one pass over the rows and a few lines per tier, never by sorting all of them.

Messages are joined with the parameters of their queue once, by a broadcast: no row is ever moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from ebbmq.feed.plans import ACTIONS, PLANS, WRITING
from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import Phase, decay_score
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.transforms.importance import current_importance
from ebbmq_spark.transforms.scores import access_rate_at, phase_of, tier_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A repair comes before everything that is merely better.
REPAIR_VALUE: Final = 1_000.0
#: Values are told apart by this much; a tier is left unfilled by what one such step holds.
_VALUE_STEPS: Final = 64
NEEDED: Final = (
    "node", "queue", "partition", "message_id", "generation", "state", "importance", "decay_rate",
    "ttl_ms", "bytes", "enqueued_at_ms", "access_rate", "access_at_ms", "replicas",
    "replica_target", "copies", "tier", "review_at_ms", "policy_version",
)  # fmt: skip


def wanted_target(phase: Column) -> Column:
    """Copies a message should have, at a review; as `policy.advice` decides.

    Of the columns of a catalog joined with the parameters of its queue.
    """
    asked = F.greatest(F.col("replicas"), F.col("min_copies"))
    most = F.greatest(asked, F.coalesce("max_replicas", "replicas"))
    more = F.col("replica_target") + (phase == int(Phase.FRESH)).cast("int")
    kept = F.least(F.greatest(asked, more), most)
    return F.when(phase == int(Phase.FADED), F.lit(1)).otherwise(kept).cast("int")


def _once(column: Column) -> Column:
    """The same number, computed once.

    Spark would write out what it is computed by wherever it is used, time and again: the code for a
    row becomes so long that Java does not compile it, a hundred times as slow. It does not do so
    with what depends on the partition, though this only seems to.
    """
    return column + (F.spark_partition_id() < 0).cast("int")


def due(catalog: DataFrame, until_ms: int) -> DataFrame:
    """Messages about which there may be something to do by an instant; the others stay unread.

    Files have ranges of this column, and messages in its order, so that most of them are skipped.
    """
    return catalog.where(F.col("review_at_ms") <= until_ms)


def judged(catalog: DataFrame, parameters: DataFrame, now_ms: int) -> DataFrame:
    """Messages about which something is to be done, with what, and by what it was decided.

    At most one action a message: the most urgent; the next run sees what is left to do. Leased
    messages are left alone, for they are about to go. A queue without parameters is dropped: nobody
    can say what to do with it.

    Args:
        catalog: of the table CATALOG.
        parameters: one row a queue, of `parameters.schema()`; or one row a node and queue, with
            `now_ms`, what that node's clock says.
        now_ms: the instant, where the parameters have none.
    """
    keys: list[str] = [name for name in ("node", "queue") if name in parameters.columns]
    if "now_ms" not in parameters.columns:
        parameters = parameters.withColumn("now_ms", F.lit(now_ms).cast("long"))
    # Which tier is meant by a phase is known of a queue, not only of a message.
    tiers = [tier_of(F.col("tiers"), F.lit(int(phase))) for phase in Phase]
    known = parameters.select(
        *parameters.columns,
        *(tier.alias(f"_tier{number}") for number, tier in enumerate(tiers)),
        *(F.array_position("tiers", tier).alias(f"_at{n}") for n, tier in enumerate(tiers)),
    )
    now, enqueued = F.col("now_ms"), F.col("enqueued_at_ms")
    joined = (
        catalog.select(*NEEDED)
        .where(F.col("state") == "ready")
        .join(F.broadcast(known), on=keys, how="inner")
    )
    span_ms = F.coalesce(F.col("ttl_ms"), F.col("decay_unit_ms"))
    age_ms = F.greatest(now - enqueued, F.lit(0))
    worth = current_importance(F.col("importance"), F.col("decay_rate"), age_ms, span_ms)
    rate = access_rate_at(F.col("access_rate"), F.col("access_at_ms"), now)
    score = decay_score(
        (now - enqueued) / DAY_MS,
        F.col("access_rate"),
        F.col("score_base"),
        F.col("score_per_day"),
        F.col("score_access_bonus"),
    )
    phase = phase_of(F.col("decay_score"), F.col("score_medium"), F.col("score_high"))
    return (
        joined.withColumn("access_rate", rate)
        .withColumn("decay_score", score)
        .withColumn("phase", _once(phase))
        .withColumn("target", wanted_target(F.col("phase")))
        .withColumn("_there", _of_phase("_at"))
        .withColumn("_here", F.array_position("tiers", F.col("tier")))
        .withColumn("_code", _once(_action()))
        .where(F.col("_code") > 0)
        .withColumn("current_importance", worth)
        .withColumn("wanted_tier", _of_phase("_tier"))
        .withColumn("action", F.element_at(F.array(*map(F.lit, ACTIONS)), F.col("_code")))
    )


def _of_phase(name: str) -> Column:
    """What a queue has for the phase of a message."""
    fresh, kept, faded = (F.col(f"{name}{phase:d}") for phase in Phase)
    of = F.col("phase")
    return F.when(of == int(Phase.FRESH), fresh).when(of == int(Phase.KEPT), kept).otherwise(faded)


def as_plan(judged: DataFrame, hold_ms: int) -> DataFrame:
    """What was judged as the plan that brokers read: of the table PLANS."""
    columns = {
        "from_tier": F.col("tier"),
        "to_tier": F.coalesce("wanted_tier", "tier"),
        "bytes": F.when(F.col("action").isin(*WRITING), F.col("bytes")).otherwise(F.lit(0)),
        "freed_bytes": F.col("bytes") * _freed(),
        "value": _value(),
        "reason": F.concat(
            F.lit("decay score "), *_hundredths(F.col("decay_score")),
            F.lit(", copies "), "copies", F.lit(" of "), "target",
        ),
        "decided_at_ms": F.col("now_ms"),
        "until_ms": F.col("now_ms") + hold_ms,
    }  # fmt: skip
    return judged.select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in schema_of(PLANS)
        )
    )


def _hundredths(value: Column) -> tuple[Column, ...]:
    """A number with two digits after the point, as texts to be put together.

    Whole numbers all the way: by decimals a whole plan takes nearly a tenth longer.
    """
    hundredths = F.floor(F.abs(value) * 100 + 0.5)
    digits = F.split(F.lit(" ".join(f".{number:02d}" for number in range(100))), " ")
    return (
        F.when((value < 0) & (hundredths > 0), F.lit("-")).otherwise(F.lit("")),
        F.floor(hundredths / 100).cast("string"),
        F.get(digits, (hundredths % 100).cast("int")),
    )


def planned(catalog: DataFrame, parameters: DataFrame, *, now_ms: int, until_ms: int) -> DataFrame:
    """What should be done with each message, as if there were room for everything.

    Returns:
        of the table PLANS
    """
    return as_plan(judged(catalog, parameters, now_ms), until_ms - now_ms)


def _action() -> Column:
    """Which of ACTIONS, from 1 on; 0 for none."""
    here, there = F.col("_here"), F.col("_there")
    phase, copies, target = F.col("phase"), F.col("copies"), F.col("target")
    faded = phase == int(Phase.FADED)
    young = F.col("now_ms") - F.col("enqueued_at_ms") < F.col("evaluate_every_ms")
    # What a queue wants removed when it has faded, its broker removes.
    left_alone = young | (faded & (F.col("on_faded") != "archive"))
    # A fresh message stays where its publisher's rules put it, unless it had faded before.
    colder = (here > 0) & (there > here) & (phase != int(Phase.FRESH))
    warmer = (there > 0) & (there < here)
    code = {action: F.lit(number) for number, action in enumerate(ACTIONS, 1)}
    return (
        F.when(copies < F.least("replica_target", "target"), code["repair"])
        .when(left_alone, F.lit(0))
        .when(warmer, code["promote"])
        .when(copies < target, code["add_copy"])
        .when(colder & faded, code["archive"])
        .when(colder, code["move"])
        .when(copies > target, code["drop_copy"])
        .otherwise(F.lit(0))
    )


def _freed() -> Column:
    """Copies that go: all of a message that moves, those beyond the target else."""
    moves = F.col("action").isin("promote", "move", "archive")
    spare = F.greatest(F.col("copies") - F.col("target"), F.lit(0))
    return F.when(moves, F.col("copies")).otherwise(spare)


def _value() -> Column:
    """What an action is worth: what the message is worth now, and more if it is read."""
    worth = F.col("current_importance") + F.least(F.col("access_rate"), F.lit(100.0))
    return F.when(F.col("action") == "repair", worth + REPAIR_VALUE).otherwise(worth)


def within_capacity(plan: DataFrame, capacity: DataFrame) -> DataFrame:
    """The actions that there is room for, the most valuable of each tier first.

    Actions that write nothing are always in. A tier that `capacity` does not name has no bound.

    Args:
        plan: of the table PLANS.
        capacity: tier, free_bytes: what may be written to the devices of a tier in all; or node,
            tier, pool, free_bytes: what may be written to a pool of devices, which is a node's
            tier or, where nodes share devices, one of several nodes.

    Returns:
        of the table PLANS
    """
    names = [name for name in ("node", "tier") if name in capacity.columns]
    if "pool" not in capacity.columns:
        capacity = capacity.withColumn("pool", F.col("tier"))
    step = F.floor(F.col("value") * _VALUE_STEPS)
    pools = capacity.select(*(F.col(name).alias(f"_{name}") for name in (*names, "pool")))
    of_plan = {"node": F.col("node"), "tier": F.col("to_tier")}
    same = [of_plan[name] == F.col(f"_{name}") for name in names]
    writing = (
        plan.where(F.col("bytes") > 0)
        .join(F.broadcast(pools), same, how="inner")
        .groupBy("_pool", step.alias("_step"))
        .agg(F.sum("bytes").alias("_bytes"))
    )
    from_the_top = Window.partitionBy("_pool").orderBy(F.col("_step").desc())
    room = capacity.groupBy(F.col("pool").alias("_pool")).agg(F.max("free_bytes").alias("_free"))
    refused = (
        writing.withColumn("_filled", F.sum("_bytes").over(from_the_top))
        .join(F.broadcast(room), on="_pool", how="inner")
        .where(F.col("_filled") > F.col("_free"))
        .groupBy("_pool")
        .agg(F.max("_step").alias("_refused_from"))
        .join(F.broadcast(pools), on="_pool", how="inner")
    )
    fits = F.col("_refused_from").isNull() | (step > F.col("_refused_from"))
    return (
        plan.join(F.broadcast(refused), same, how="left")
        .where((F.col("bytes") == 0) | fits)
        .select(*plan.columns)
    )
