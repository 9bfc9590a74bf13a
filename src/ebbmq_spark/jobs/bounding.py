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
    if money is None:
        if capacity is None:
            return Bounded(plan, {})
        return _fitted(plan, capacity, bounds.histogram(plan, capacity))
    # Its few lines are gone through more than once, the plan is not. Spark would keep them in 200
    # parts, and begin a task for each of them time and again.
    lines = bounds.histogram(plan, capacity, limits.prices).coalesce(_PARTS).persist()
    try:
        full = None if capacity is None else bounds.overfull(lines, capacity)
        ((step, *short),) = bounds.unfunded(bounds.has_room(lines, full), money).collect()
        left_out = {}
        paid = lines
        if step is not None:
            left_out["money"] = Action(*short)
            plan = bounds.affordable(plan, limits.prices, step)
            # What is not paid for takes no room from what saves.
            paid = lines.where(~lines["costs"] | (lines["step"] > step))
        if capacity is not None:
            plan, others = _fitted(plan, capacity, paid)
            left_out |= others
        return Bounded(plan, left_out)
    finally:
        lines.unpersist()


def _fitted(plan: DataFrame, capacity: DataFrame, lines: DataFrame) -> Bounded:
    full = bounds.overfull(lines, capacity).collect()
    if not full:
        return Bounded(plan, {})
    cuts = frame_of(
        plan.sparkSession, [(row["pool"], row["refused_from"]) for row in full], _OVERFULL
    )
    without = Action(sum(row["actions"] for row in full), sum(row["bytes"] for row in full))
    return Bounded(bounds.fitting(plan, capacity, cuts), {"room": without})
