"""The parameters of queues as a table: what plans and scores are computed by, one row a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as T

from ebbmq.policy.decay import Score

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.settings import QueueParameters
    from ebbmq.model import QueueSpec

_FIELDS = {
    "decay_unit_ms": T.LongType(),
    "band_width": T.DoubleType(),
    "stale_threshold": T.DoubleType(),
    "score_base": T.DoubleType(),
    "score_per_day": T.DoubleType(),
    "score_access_bonus": T.DoubleType(),
    "score_medium": T.DoubleType(),
    "score_high": T.DoubleType(),
    "evaluate_every_ms": T.LongType(),
    "on_faded": T.StringType(),
    "min_copies": T.IntegerType(),
    "max_replicas": T.IntegerType(),
    "tiers": T.ArrayType(T.StringType()),
}


def schema() -> T.StructType:
    """One row a queue, by the names of `QueueSpec`."""
    fields = [T.StructField(name, kind) for name, kind in _FIELDS.items()]
    return T.StructType([T.StructField("queue", T.StringType(), nullable=False), *fields])


def parameters_of(spark: SparkSession, specs: Iterable[QueueSpec | QueueParameters]) -> DataFrame:
    """The parameters of these queues."""
    return spark.createDataFrame(list(rows_of(specs)), schema())


def rows_of(specs: Iterable[QueueSpec | QueueParameters]) -> Iterator[tuple[object, ...]]:
    """The parameters of these queues as rows."""
    for spec in specs:
        score = Score.of(spec).fields()
        values = (score[name] if name in score else getattr(spec, name) for name in _FIELDS)
        yield spec.name, *map(_as, values, _FIELDS.values())


def _as(value: object, kind: T.DataType) -> object:
    if isinstance(kind, T.DoubleType) and isinstance(value, int):
        return float(value)
    return list(value) if isinstance(value, tuple) else value
