"""What a plan asks for in all: a few rows, whatever its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import functions as F

from ebbmq.feed.plans import PLANS
from ebbmq_spark.lake import read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Part
    from ebbmq_spark.lake import Lake

_KEYS: Final = ("action", "from_tier", "to_tier", "written_to", "freed_from")
_SUMS: Final = ("bytes", "freed_bytes")
#: Up to so many rows are added up here: to have Spark do it would take longer.
_FEW_ROWS: Final = 1 << 20


class Total(NamedTuple):
    """Actions of a kind between two tiers, or between those of several copies."""

    action: str
    from_tier: str | None
    to_tier: str | None
    written_to: str | None
    freed_from: str | None
    times: int
    bytes: int
    freed_bytes: int


def of_parts(spark: SparkSession, lake: Lake, parts: Sequence[Part]) -> list[Total]:
    """Of files that were written just now."""
    files = [lake.file(part.path) for part in parts]
    if sum(part.rows for part in parts) > _FEW_ROWS:
        return summary(read_table(spark, PLANS, files, lake))
    return here(lake, files)


def summary(written: DataFrame) -> list[Total]:
    """Of rows of the table PLANS, added up by Spark."""
    rows = (
        written.groupBy(*_KEYS)
        .agg(
            F.count("*").alias("times"),
            *(F.sum(F.coalesce(name, F.lit(0))).alias(name) for name in _SUMS),
        )
        .collect()
    )
    return _in_order(Total(*row) for row in rows)


def here(lake: Lake, files: Sequence[str]) -> list[Total]:
    """Of files of the table PLANS, added up in this process."""
    if not files:
        return []
    found = pa.concat_tables(_columns(lake, file) for file in files)
    added = found.group_by(_KEYS).aggregate([([], "count_all"), *((name, "sum") for name in _SUMS)])
    columns = (*_KEYS, "count_all", *(f"{name}_sum" for name in _SUMS))
    rows = zip(*(added.column(name).to_pylist() for name in columns), strict=True)
    return _in_order(Total(*row) for row in rows)


def _columns(lake: Lake, file: str) -> pa.Table:
    with pq.ParquetFile(lake.open(file)) as opened:
        return opened.read([*_KEYS, *_SUMS], use_threads=False).replace_schema_metadata()


def _in_order(totals: Iterable[Total]) -> list[Total]:
    return sorted(totals, key=lambda each: (each.action, -each.times))
