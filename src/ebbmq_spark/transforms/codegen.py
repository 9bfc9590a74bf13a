"""Keeping the code that Spark writes for a row short.

Spark makes one method of all that becomes of a row, and Java does not compile a method of more than
8,000 bytes: it is run a hundred times as slow, and nothing says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: There are never as many.
_PARTITIONS_MAX: Final = (1 << 31) - 1


def once(column: Column) -> Column:
    """The same number, computed once.

    Spark would write out what it is computed by wherever it is used, time and again. It does not do
    so with what depends on the partition, though this only seems to.
    """
    return column + F.expr("cast(spark_partition_id() < 0 AS int)")


def apart(frame: DataFrame) -> DataFrame:
    """The same rows, and another method begins for what becomes of them from here on.

    It does where partitions are put together, though here they stay as they are.
    """
    return frame.coalesce(_PARTITIONS_MAX)
