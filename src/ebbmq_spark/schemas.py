"""The tables of the lake as Spark schemas: always explicit, never guessed from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import types as T

if TYPE_CHECKING:
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


def _field(column: Column) -> T.StructField:
    return T.StructField(column.name, _KINDS[column.kind], nullable=not column.required)
