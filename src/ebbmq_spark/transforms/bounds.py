"""Which actions of a plan there is room and money for, the most valuable first.

Theory of operation. Room is bounded by pools of devices, money for the whole fleet. Which actions
are the most valuable that fit is found by a histogram: one pass over the plan adds up what actions
of about the same value ask for, and from then on only its few lines are looked at, never sorted
rows. It says from which value on downwards a pool takes nothing, and from which on no money is
left; a second pass over the plan leaves out what is below.

1. What is worth less never goes before what is worth more, though it would fit.
2. What saves money is not bounded by money, and what writes nothing not by room.
3. Money that is not there takes no room: see `bounded` of `jobs.bounding`, which puts it together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from ebbmq.limits import GIB
from ebbmq_spark.transforms.codegen import apart, once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

#: Values are told apart by this much, and messages of one such step by where their ids hash to:
#: many may be worth the same. A tier is left unfilled by what one of these parts holds.
_VALUE_STEPS: Final = 16
_STEP_PARTS: Final = 64
#: Sums that differ by less may be the same, added up in another order.
_SAME: Final = 1e-9
#: Parts of bytes are whole numbers of them, but for how they are added up.
_LESS_THAN_A_BYTE: Final = 0.5


def within_capacity(plan: DataFrame, capacity: DataFrame) -> DataFrame:
    """The actions that there is room for, the most valuable of each tier first.

    Actions that write nothing are always in. A tier that `capacity` does not name has no bound.

    Args:
        plan: of the table PLANS.
        capacity: tier, free_bytes: what may be written to the devices of a tier in all; or node,
            tier, pool, free_bytes: what may be written to a pool of devices; or, instead of
            free_bytes, rooms: sets of devices that bound a pool (room, free_bytes), and the part
            of what is written to it that counts there (part). A tier may be several, as
            `written_to` has them.

    Returns:
        of the table PLANS
    """
    return fitting(plan, capacity, overfull(histogram(plan, capacity), capacity))


def histogram(
    plan: DataFrame,
    capacity: DataFrame | None = None,
    prices: Mapping[str, float] | None = None,
) -> DataFrame:
    """What actions of about the same value ask for.

    Args:
        plan: of the table PLANS.
        capacity: as `within_capacity` takes it; without, there is room for everything.
        prices: of a GiB and month by tier, or several as a plan has them, "" where that is not
            known; without, nothing has one.

    Returns:
        pool (null where there is no bound), costs (whether it costs more than it saves), step (the
        value, as a number of its own), actions, bytes, cost (a month, below zero if it saves)
    """
    cost, how = (F.lit(0.0), "inner") if prices is None else (once(_cost(prices)), "left")
    if prices is None:
        plan = plan.where("bytes > 0")
    asked = plan.select(
        "node", "to_tier", "written_to", "bytes", _step().alias("step"), cost.alias("cost")
    )
    pool: Column = F.lit(None).cast("string")
    if capacity is not None:
        asked = asked.join(F.broadcast(_pools(capacity)), _same(capacity), how=how)
        pool = F.when(F.col("bytes") > 0, F.col("_pool"))
    return asked.groupBy(pool.alias("pool"), (F.col("cost") > 0).alias("costs"), "step").agg(
        F.count("*").alias("actions"),
        F.sum("bytes").alias("bytes"),
        F.sum("cost").alias("cost"),
    )


def overfull(histogram: DataFrame, capacity: DataFrame) -> DataFrame:
    """Pools that have not room for everything.

    Returns:
        pool, refused_from (that step and all below)
    """
    bounding = _with_pool(capacity).select("pool", F.inline("rooms")).distinct()
    from_the_top = Window.partitionBy("room").orderBy(F.col("step").desc())
    full = (
        histogram.where("pool IS NOT NULL")
        .groupBy("pool", "step")
        .agg(F.sum("bytes").alias("bytes"))
        .join(F.broadcast(bounding), on="pool", how="inner")
        .groupBy("room", "free_bytes", "step")
        .agg(F.sum(F.col("bytes") * F.col("part")).alias("bytes"))
        .withColumn("_filled", F.sum("bytes").over(from_the_top))
        .where(F.col("_filled") > F.col("free_bytes") + _LESS_THAN_A_BYTE)
        .groupBy("room")
        .agg(F.max("step").alias("refused_from"))
    )
    return (
        bounding.join(F.broadcast(full), on="room", how="inner")
        .groupBy("pool")
        .agg(F.max("refused_from").alias("refused_from"))
    )


def left_out(histogram: DataFrame, overfull: DataFrame) -> DataFrame:
    """What there is no room for: one row, actions, bytes."""
    return (
        has_room(histogram, overfull)
        .where("NOT fits")
        .agg(F.sum("actions").alias("actions"), F.sum("bytes").alias("bytes"))
    )


def has_room(histogram: DataFrame, overfull: DataFrame | None) -> DataFrame:
    """The histogram, with `fits`: whether there is room for what a line of it stands for."""
    if overfull is None:
        return histogram.withColumn("fits", F.lit(True))
    refused = overfull.select("pool", F.col("refused_from").alias("_from"))
    return (
        histogram.join(F.broadcast(refused), on="pool", how="left")
        .withColumn("fits", F.col("_from").isNull() | (F.col("step") > F.col("_from")))
        .drop("_from")
    )


def unfunded(histogram: DataFrame, money: float) -> DataFrame:
    """From which step on downwards no money is left for what costs.

    Args:
        histogram: as `has_room` returns it; what does not fit is not paid for.
        money: what the cost of a month may grow by; below zero it has to shrink. What actions save
            can be spent on others.

    Returns:
        one row: unfunded_from (null if there is enough), actions, bytes: what that leaves out
    """
    everywhere = Window.partitionBy()
    from_the_top = everywhere.orderBy(F.col("step").desc())
    left = F.lit(money * (1 + math.copysign(_SAME, money))) + F.sum("saved").over(everywhere)
    return (
        histogram.groupBy("step")
        .agg(
            F.expr("sum(if(costs AND fits, cost, 0))").alias("spent"),
            F.expr("sum(if(NOT costs AND fits, -cost, 0))").alias("saved"),
            F.expr("sum(if(costs, actions, 0))").alias("actions"),
            F.expr("sum(if(costs, bytes, 0))").alias("bytes"),
        )
        .withColumns({"left": left, "spent": F.sum("spent").over(from_the_top)})
        .where("actions > 0 AND spent > left")
        .agg(
            F.max("step").alias("unfunded_from"),
            F.sum("actions").alias("actions"),
            F.sum("bytes").alias("bytes"),
        )
    )


def fitting(plan: DataFrame, capacity: DataFrame, overfull: DataFrame) -> DataFrame:
    """The actions that there is room for, by what `overfull` found: of the table PLANS."""
    pools = _pools(capacity)
    refused = overfull.select(F.col("pool").alias("_pool"), "refused_from").join(
        F.broadcast(pools), on="_pool", how="inner"
    )
    fits = F.col("refused_from").isNull() | (_step() > F.col("refused_from"))
    return (
        plan.join(F.broadcast(refused), _same(capacity), how="left")
        .where((F.col("bytes") == 0) | fits)
        .select(*plan.columns)
    )


def affordable(plan: DataFrame, prices: Mapping[str, float], unfunded_from: int) -> DataFrame:
    """The actions that there is money for, by what `unfunded` found: of the table PLANS."""
    # What seems to depend on the partition is not asked before the rows are apart.
    return apart(plan).where((once(_cost(prices)) <= 0) | (_step() > unfunded_from))


def _step() -> Column:
    part = F.xxhash64("message_id").bitwiseAND(_STEP_PARTS - 1)
    return F.floor(F.col("value") * _VALUE_STEPS) * _STEP_PARTS + part


def _cost(prices: Mapping[str, float]) -> Column:
    """What an action changes of the cost of a month."""
    added = F.col("bytes") * _price(F.coalesce("written_to", "to_tier"), prices)
    gone = F.coalesce(F.col("freed_bytes"), F.lit(0))
    freed = gone * _price(F.coalesce("freed_from", "from_tier"), prices)
    return (added - freed) / GIB


def _price(tier: Column, prices: Mapping[str, float]) -> Column:
    # By a map, not by cases: the code for a row has to stay short, see `codegen`.
    known = F.create_map(*(F.lit(each) for pair in prices.items() for each in pair))
    return F.coalesce(known[F.coalesce(tier, F.lit(""))], F.lit(0.0))


def _with_pool(capacity: DataFrame) -> DataFrame:
    if "rooms" in capacity.columns:
        return capacity
    pool = F.col("pool" if "pool" in capacity.columns else "tier")
    room = F.struct(pool.alias("room"), "free_bytes", F.lit(1.0).alias("part"))
    return capacity.withColumns({"pool": pool, "rooms": F.array(room)})


def _pools(capacity: DataFrame) -> DataFrame:
    names = (*_names(capacity), "pool")
    return _with_pool(capacity).select(*(F.col(name).alias(f"_{name}") for name in names))


def _names(capacity: DataFrame) -> list[str]:
    return [name for name in ("node", "tier") if name in capacity.columns]


def _same(capacity: DataFrame) -> list[Column]:
    """Where an action writes to, beside the columns of `_pools`."""
    of_plan = {"node": F.col("node"), "tier": F.coalesce("written_to", "to_tier")}
    return [of_plan[name] == F.col(f"_{name}") for name in _names(capacity)]
