"""Traces as Spark reads them, and as they travel to who replays them: one block a queue."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ebbmq.errors import EbbError
from ebbmq.feed.events import EVENTS
from ebbmq.feed.traces import TRACE
from ebbmq_spark import soundness
from ebbmq_spark.attempts import SPARK_ERRORS
from ebbmq_spark.lake import for_spark, opened, read_table, visible
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.simulation.traffic import NONE, InvalidTrace, from_table, pack, to_table
from ebbmq_spark.transforms.quality import gaps, is_numbered, usable
from ebbmq_spark.transforms.recorded import trace_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq_spark.lake import Where
    from ebbmq_spark.simulation.traffic import Traffic

BLOCKS = "queue string, messages long, useful_ms long, block binary, error string"
_BLOCKS = pa.schema(
    {
        "queue": pa.string(),
        "messages": pa.int64(),
        "useful_ms": pa.int64(),
        "block": pa.binary(),
        "error": pa.string(),
    }
)
#: Of one instant any order is right, but a study must come to the same each time.
IN_ORDER = [(name, "ascending") for name in dict.fromkeys(("at_ms", "bytes", *TRACE.names))]


def read_trace(spark: SparkSession, path: str) -> DataFrame:
    """The trace in a Parquet file or a directory of them; columns it lacks are empty.

    Raises:
        InvalidTrace: there is no such file, or it lacks a column that every message needs.
    """
    try:
        return as_trace(spark.read.parquet(_located(path)), path)
    except SPARK_ERRORS as error:
        first = str(error).strip().splitlines()[0]
        raise InvalidTrace(
            f"{path} cannot be read as Parquet: {first}",
            "name a Parquet file or a directory of them; see docs/simulate.md",
        ) from error


def _located(path: str) -> str:
    """A path as Spark takes it, wherever its driver runs.

    What is there on this machine is named by its whole path, letter by letter; all else may be a
    pattern, an object or a file of the driver's machine, which Spark makes out.
    """
    # Path.exists raises for names that no file system has.
    if not os.path.exists(path):  # noqa: PTH110
        return path
    return for_spark(path)


def hand_over(spark: SparkSession, traffic: Traffic) -> DataFrame:
    """Traffic in the memory of this process as a trace, for Spark on machines without its files."""
    return as_trace(spark.createDataFrame(to_table(traffic)), "the traffic")


class Recorded(NamedTuple):
    """Traffic from a lake, and what of the lake could not be read."""

    trace: DataFrame
    refused: list[UnknownFeed]
    #: Of what is read.
    manifests: list[Manifest]
    #: Events that are missing: node, missing.
    missing: DataFrame


def read_lake(
    spark: SparkSession, where: Where, aside: Mapping[str, UnknownFeed] = MappingProxyType({})
) -> Recorded:
    """The traffic in the events that nodes wrote to a lake; rows that are none are left out.

    Args:
        spark: where to run.
        where: the lake.
        aside: manifests that are known to name a damaged file, and why.

    Raises:
        UnknownFeed: there is no such lake, or nothing of it can be read.
        InvalidTrace: it holds no events.
    """
    lake = opened(where)
    found = visible(lake, EVENTS)
    wrong = {**soundness.refused(lake, found.manifests), **aside}
    sound = [each for each in found.manifests if soundness.name_of(each) not in wrong]
    refused = [*found.refused, *wrong.values()]
    files = [lake.file(part.path) for each in sound for part in each.parts]
    if refused and not files:
        raise refused[0]
    if not files:
        raise InvalidTrace(
            f"there are no events in the lake at {lake.where}",
            "name the place that feed.lake of the nodes' configuration names",
        )
    told = read_table(spark, EVENTS, files, lake)
    missing = gaps(told.where(is_numbered())).groupBy("node").agg(F.sum("missing").alias("missing"))
    return Recorded(trace_of(usable(told)), refused, sound, missing)


def as_trace(rows: DataFrame, name: str) -> DataFrame:
    """Rows with exactly the columns of a trace, of its types.

    Raises:
        InvalidTrace: a column that every message needs is missing, or one is not of its type.
    """
    there = {field.name: field.dataType for field in rows.schema}
    missing = [column for column in TRACE.required if column not in there]
    if missing:
        raise InvalidTrace(
            f"{name} has no column {', '.join(missing)}",
            f"a trace has {', '.join(TRACE.required)}; see docs/simulate.md",
        )
    columns = []
    for field in schema_of(TRACE):
        found = there.get(field.name)
        if found is not None and isinstance(found, T.NumericType) != isinstance(
            field.dataType, T.NumericType
        ):
            raise InvalidTrace(
                f"column {field.name} of {name} is {found.simpleString()}",
                f"it must be {field.dataType.simpleString()}",
            )
        column = F.lit(None) if found is None else F.col(field.name)
        columns.append(column.cast(field.dataType).alias(field.name))
    return rows.select(*columns)


def blocks_of(
    trace: DataFrame, *, ignore: Sequence[str], useful_ms: int | None, consumers: int | None
) -> DataFrame:
    """A trace as one row a queue: its traffic as a block of bytes, and what is to know of it.

    A queue whose traffic no broker would have taken has an `error` instead of a block. One of which
    nobody knows how long any work takes has neither.
    """
    for name in ignore:
        trace = trace.withColumn(name, F.lit(NONE))
    if useful_ms is not None:
        trace = trace.withColumn("useful_ms", F.coalesce("useful_ms", F.lit(useful_ms)))
    said = [F.coalesce(name, F.lit(NONE)).alias(name) for name in TRACE.names if name != "queue"]

    def block(table: pa.Table) -> pa.Table:
        row = {"queue": table.column("queue")[0].as_py(), "messages": len(table)}
        try:
            row |= _block(table.sort_by(IN_ORDER), consumers or 0)
        except EbbError as error:
            # Raised on an executor it would reach its reader as pages of Java.
            row["error"] = f"{error.detail}\n{error.action}"
        return pa.Table.from_pylist([row], schema=_BLOCKS)

    return trace.select("queue", *said).groupBy("queue").applyInArrow(block, BLOCKS)


def _block(table: pa.Table, consumers: int) -> dict[str, Any]:
    """The block of a queue, and what is to know of it.

    Args:
        table: its messages.
        consumers: how many work on it at once, unless a message of it says so; 0 if nobody knows.
    """
    if table.column("service_ms").to_numpy().max() == NONE:
        return {}
    traffic = from_table(table)
    if (traffic.useful_ms == NONE).any():
        raise InvalidTrace(
            f"the trace of queue {traffic.queue!r} does not say how long a message is useful",
            "say it: --useful 60s, or useful_ms in [traffic] of the policies",
        )
    if not traffic.consumers:
        traffic = replace(traffic, consumers=consumers)
    if traffic.consumers < 1:
        raise InvalidTrace(
            f"the trace of queue {traffic.queue!r} does not say how many work on it at once",
            "say it: consumers = 8 in [traffic] of the policies",
        )
    useful_ms = int(np.median(traffic.useful_ms))
    return {"useful_ms": useful_ms, "block": pack(traffic)}
