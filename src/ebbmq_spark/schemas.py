"""The tables of the lake as Spark schemas: always explicit, never guessed from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Column, Table

_KINDS: Final[dict[str, T.DataType]] = {
    "text": T.StringType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "float64": T.DoubleType(),
    "bool": T.BooleanType(),
    "texts": T.ArrayType(T.StringType()),
    "bytes": T.BinaryType(),
}


def schema_of(table: Table) -> T.StructType:
    """The schema of a table as it is written and made."""
    return T.StructType([_field(column) for column in table.columns])


def frame_of(
    spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: T.StructType
) -> DataFrame:
    """A few rows as a frame that Spark has at hand: a list of tuples it would fetch by a job."""
    known = to_arrow_schema(schema)
    columns = zip(*rows, strict=True) if rows else ([] for _ in known)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, known, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=known), schema)


def _field(column: Column) -> T.StructField:
    return T.StructField(column.name, _KINDS[column.kind], nullable=not column.required)
