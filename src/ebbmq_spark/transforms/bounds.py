"""What the actions of a plan ask for by their value, and those above a value of it.

Theory of operation. Room is bounded by pools of devices, money for the whole fleet. Which actions
are the most valuable that fit is found by a histogram: one pass over the plan adds up what actions
of about the same value ask for, and only its few lines are looked at (`jobs.bounding`), never
sorted rows. They say from which value on downwards a pool takes nothing, and from which on no money
is left; a second pass over the plan leaves out what is below.

1. What is worth less never goes before what is worth more, though it would fit.
2. What saves money is not bounded by money, and what writes nothing not by room.
3. Money that is not there takes no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from ebbmq.limits import GIB
from ebbmq_spark.schemas import frame_of
from ebbmq_spark.transforms.codegen import apart, once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    #: A node and a tier of it.
    Where = tuple[str, str]

#: Values are told apart by this much, and messages of one such step by where their ids hash to:
#: many may be worth the same. A tier is left unfilled by what one of these parts holds.
_VALUE_STEPS: Final = 16
_STEP_PARTS: Final = 64
_WHERE: Final = ("node", "to_tier")


def histogram(
    plan: DataFrame, pools: Mapping[Where, str], prices: Mapping[str, float]
) -> DataFrame:
    """What actions of about the same value ask for.

    Args:
        plan: of the table PLANS.
        pools: the pool of devices that a tier of a node writes to; the others have no bound.
        prices: of a GiB and month by tier, "" where that is not known.

    Returns:
        pool (null where there is no bound), costs (whether it costs more than it saves), step (the
        value, as a number of its own), actions, bytes, cost (a month, below zero if it saves)
    """
    pool = F.when(F.col("bytes") > 0, F.col("pool"))
    return (
        plan.select(*_WHERE, "bytes", _step().alias("step"), once(_cost(prices)).alias("cost"))
        .join(_by_tier(plan, pools, "pool", T.StringType()), on=list(_WHERE), how="left")
        .groupBy(pool.alias("pool"), (F.col("cost") > 0).alias("costs"), "step")
        .agg(
            F.count("*").alias("actions"),
            F.sum("bytes").alias("bytes"),
            F.sum("cost").alias("cost"),
        )
    )


def fitting(plan: DataFrame, refused_from: Mapping[Where, int]) -> DataFrame:
    """The actions above the step from which on downwards a tier of a node takes nothing."""
    cuts = _by_tier(plan, refused_from, "refused_from", T.LongType())
    fits = F.col("refused_from").isNull() | (_step() > F.col("refused_from"))
    return (
        plan.join(cuts, on=list(_WHERE), how="left")
        .where((F.col("bytes") == 0) | fits)
        .select(*plan.columns)
    )


def affordable(plan: DataFrame, prices: Mapping[str, float], unfunded_from: int) -> DataFrame:
    """The actions that save, and those above the step from which on downwards no money is left."""
    # What seems to depend on the partition is not asked before the rows are apart.
    return apart(plan).where((once(_cost(prices)) <= 0) | (_step() > unfunded_from))


def _by_tier(
    plan: DataFrame, values: Mapping[Where, str] | Mapping[Where, int], name: str, kind: T.DataType
) -> DataFrame:
    schema = T.StructType([T.StructField(key, T.StringType()) for key in _WHERE]).add(name, kind)
    rows = [(*where, value) for where, value in values.items()]
    return F.broadcast(frame_of(plan.sparkSession, rows, schema))


def _step() -> Column:
    part = F.xxhash64("message_id").bitwiseAND(_STEP_PARTS - 1)
    return F.floor(F.col("value") * _VALUE_STEPS) * _STEP_PARTS + part


def _cost(prices: Mapping[str, float]) -> Column:
    """What an action changes of the cost of a month."""
    if not prices:
        return F.lit(0.0)
    added = F.col("bytes") * _price("to_tier", prices)
    freed = F.coalesce("freed_bytes", F.lit(0)) * _price("from_tier", prices)
    return (added - freed) / GIB


def _price(tier: str, prices: Mapping[str, float]) -> Column:
    # By a map, not by cases: the code for a row has to stay short, see `codegen`.
    known = F.create_map(*(F.lit(each) for pair in prices.items() for each in pair))
    return F.coalesce(known[F.coalesce(tier, F.lit(""))], F.lit(0.0))
