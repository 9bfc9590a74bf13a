"""What messages are worth at an instant: the broker's formula and its bands, on columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ebbmq.policy.importance import decayed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def current_importance(importance: Column, rate: Column, age_ms: Column, span_ms: Column) -> Column:
    """The importance left at an age, at least 0; as `policy.importance.current_importance`."""
    return F.greatest(decayed(importance, rate, age_ms, span_ms), F.lit(0.0))


def band_of(current: Column, band_width: Column) -> Column:
    """The band of a value; as `policy.importance.band_of`, the edges decide."""
    band = F.ceil(current / band_width).cast("int")
    return (
        F.when(current <= 0, F.lit(0))
        .when(current <= (band - 1) * band_width, band - 1)
        .when(current > band * band_width, band + 1)
        .otherwise(band)
    )


def is_stale(current: Column, importance: Column, stale_threshold: Column) -> Column:
    """Whether a value is below the threshold, which half the importance bounds."""
    return current < F.least(stale_threshold, importance / 2)


def with_importance(catalog: DataFrame, parameters: DataFrame, now_ms: int) -> DataFrame:
    """Messages of a catalog with what they are worth at an instant.

    Adds `current_importance`, `band` and `stale`. A queue without parameters is dropped.

    Args:
        catalog: of the table CATALOG.
        parameters: one row a queue, of `parameters.schema()`.
        now_ms: the instant.
    """
    own = parameters.select("queue", "decay_unit_ms", "band_width", "stale_threshold")
    joined = catalog.join(F.broadcast(own), on="queue", how="inner")
    age_ms = F.greatest(F.lit(now_ms) - F.col("enqueued_at_ms"), F.lit(0))
    span_ms = F.coalesce(F.col("ttl_ms"), F.col("decay_unit_ms"))
    current = current_importance(F.col("importance"), F.col("decay_rate"), age_ms, span_ms)
    width = F.when(F.col("band_width") > 0, F.col("band_width")).otherwise(F.lit(1.0))
    valued = joined.withColumn("current_importance", current)
    worth = F.col("current_importance")
    stale = is_stale(worth, F.col("importance"), F.col("stale_threshold"))
    return valued.select(
        *catalog.columns,
        "current_importance",
        band_of(worth, width).alias("band"),
        ((F.col("decay_rate") > 0) & stale).alias("stale"),
    )
