"""How faded stored messages are at an instant: the broker's decay score, on columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import ACCESS_MEMORY_DAYS, Phase, decay_score

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def access_rate_at(rate: Column, at_ms: Column, now_ms: Column | int) -> Column:
    """Reads a day at a later instant; as `policy.decay.Access.rate_at`."""
    elapsed_days = F.greatest(F.lit(now_ms) - at_ms, F.lit(0)) / DAY_MS
    faded = rate * F.exp(-elapsed_days / ACCESS_MEMORY_DAYS)
    return F.when(rate == 0, F.lit(0.0)).otherwise(faded)


def phase_of(score: Column, medium: Column, high: Column) -> Column:
    """What a score asks for; as `policy.decay.Score.phase`."""
    return (
        F.when(score > high, F.lit(int(Phase.FADED)))
        .when(score > medium, F.lit(int(Phase.KEPT)))
        .otherwise(F.lit(int(Phase.FRESH)))
    )


def tier_of(tiers: str, phase: str | int) -> str:
    """The tier of a phase: the first, the middle, the last; as `policy.placement.Terms.tier`.

    In SQL, of the names of columns: it is asked for with each phase, for every queue.
    """
    at = f"cast(floor((size({tiers}) - 1) * {phase} / {Phase.FADED:d}) AS int)"
    return f"CASE WHEN size({tiers}) > 0 THEN get({tiers}, {at}) END"


def with_scores(catalog: DataFrame, parameters: DataFrame, now_ms: int) -> DataFrame:
    """Messages of a catalog with how faded they are at an instant, and what that asks for.

    `access_rate` and `decay_score` become those of the instant; adds `phase` and `wanted_tier`. A
    queue without parameters is dropped: nobody can say what to do with it.

    Args:
        catalog: of the table CATALOG.
        parameters: one row a queue, of `parameters.schema()`.
        now_ms: the instant.
    """
    joined = catalog.join(F.broadcast(parameters), on="queue", how="inner")
    age_days = (F.lit(now_ms) - F.col("enqueued_at_ms")) / DAY_MS
    rate = access_rate_at(F.col("access_rate"), F.col("access_at_ms"), now_ms)
    score = decay_score(
        age_days,
        F.col("access_rate"),
        F.col("score_base"),
        F.col("score_per_day"),
        F.col("score_access_bonus"),
    )
    phase = phase_of(F.col("decay_score"), F.col("score_medium"), F.col("score_high"))
    scored = (
        joined.withColumn("access_rate", rate)
        .withColumn("decay_score", score)
        .withColumn("phase", phase)
    )
    tier = F.expr(tier_of("tiers", "phase")).alias("wanted_tier")
    return scored.select(*catalog.columns, "phase", tier)
