"""Events as they come: each counts once, whatever clocks say; a row that is none counts, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from ebbmq_spark.transforms.profiles import profile
from ebbmq_spark.transforms.quality import TOLD_ONCE, with_faults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The column that numbers rows, from 1, in the order they are read.
NUMBER: Final = "number"
_COUNTED: Final = ("queue", "node", "at_ms", "event", "reason", "bytes", "latency_ms")


def once(told: DataFrame, remembered: int) -> DataFrame:
    """Rows of a stream without those that were told lately; a row that is none is always kept.

    What is remembered is bounded by a watermark on the number of a row, not on the clock of its
    node: a node whose clock is wrong makes nobody late.

    Args:
        told: of the table EVENTS, with NUMBER.
        remembered: events among which one that is told again is found.

    Returns:
        of the table EVENTS, and why a row is none: `fault`
    """
    is_none = F.col("fault").isNotNull()
    return (
        with_faults(told)
        .withColumn("_which", F.when(is_none, F.col(NUMBER)))
        .withColumn("_read", F.timestamp_millis(NUMBER))
        .withWatermark("_read", f"{remembered} milliseconds")
        .dropDuplicatesWithinWatermark([*TOLD_ONCE, "_which"])
        .drop("_which", "_read", NUMBER)
    )


def lean(told: DataFrame) -> DataFrame:
    """What `counted` needs of rows that count, and all of a row that is none, from `once`."""
    is_none = F.col("fault").isNotNull()
    return told.select(
        *(
            name if name in (*_COUNTED, "fault") else F.when(is_none, F.col(name)).alias(name)
            for name in told.columns
        )
    )


def counted(told: DataFrame, now_ms: int) -> DataFrame:
    """What happened, from `once`, of the table PROFILES; a row that is none counts as rejected.

    Args:
        told: as `once` returns it.
        now_ms: when that is, and when a row happened that does not say so.
    """
    is_none, at_ms = F.col("fault").isNotNull(), F.col("at_ms")
    return profile(
        told.select(
            *(F.coalesce(name, F.lit("")).alias(name) for name in ("queue", "node")),
            F.when(at_ms >= 0, at_ms).otherwise(F.lit(now_ms)).alias("at_ms"),
            F.when(is_none, F.lit("rejected")).otherwise(F.col("event")).alias("event"),
            F.when(is_none, F.col("fault")).otherwise(F.col("reason")).alias("reason"),
            F.when(~is_none, F.col("bytes")).alias("bytes"),
            F.when(~is_none, F.col("latency_ms")).alias("latency_ms"),
        ),
        now_ms,
    )
