"""A plan kept within the room and the money of a fleet, and how much of it was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import types as T

from ebbmq.feed.runs import Action
from ebbmq_spark.schemas import frame_of
from ebbmq_spark.transforms import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_PARTS: Final = 4
_OVERFULL: Final = T.StructType().add("pool", T.StringType()).add("refused_from", T.LongType())


class Limits(NamedTuple):
    """What a plan has to keep within."""

    #: As `within_capacity` takes it; without, there is room for everything.
    capacity: DataFrame | None
    #: What the cost of a month may grow by, below zero what it has to shrink by; None for no bound.
    money: float | None
    #: Of a GiB and month by tier.
    prices: Mapping[str, float]


class Bounded(NamedTuple):
    """A plan within its limits, and what is not in it for want of room and of money."""

    plan: DataFrame
    left_out: dict[str, Action]


def bounded(plan: DataFrame, limits: Limits) -> Bounded:
    """Keep to what there is room and money for, the most valuable first.

    One pass over the plan, beside that of whoever writes it. What lacks both counts as lacking
    money.
    """
    capacity, money = limits.capacity, limits.money
    if money is None and capacity is None:
        return Bounded(plan, {})
    # Its few lines are gone through more than once, the plan is not. Spark would keep them in 200
    # parts, and begin a task for each of them time and again.
    prices = None if money is None else limits.prices
    lines = bounds.histogram(plan, capacity, prices).coalesce(_PARTS).persist()
    try:
        if money is None:
            return _fitted(plan, capacity, lines)
        full = None if capacity is None else bounds.overfull(lines, capacity)
        ((step, *short),) = bounds.unfunded(bounds.has_room(lines, full), money).collect()
        left_out = {}
        paid = lines
        if step is not None:
            left_out["money"] = Action(*short)
            plan = bounds.affordable(plan, limits.prices, step)
            # What is not paid for takes no room from what saves.
            paid = lines.where(~lines["costs"] | (lines["step"] > step))
        plan, others = _fitted(plan, capacity, paid)
        return Bounded(plan, left_out | others)
    finally:
        lines.unpersist()


def _fitted(plan: DataFrame, capacity: DataFrame | None, lines: DataFrame) -> Bounded:
    if capacity is None:
        return Bounded(plan, {})
    full = bounds.overfull(lines, capacity).collect()
    if not full:
        return Bounded(plan, {})
    cuts = frame_of(
        plan.sparkSession, [(row["pool"], row["refused_from"]) for row in full], _OVERFULL
    )
    (without,) = bounds.left_out(lines, cuts).collect()
    return Bounded(bounds.fitting(plan, capacity, cuts), {"room": Action(*without)})
