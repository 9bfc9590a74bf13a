"""Tables of a lake in an object store: tasks fetch row groups and store files, as Arrow batches.

What a task stores has a name that no other task has; only what the driver is told of is named by a
manifest, so a task that is tried again, or that runs twice, adds nothing.
"""

from __future__ import annotations

import io
import secrets
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from ebbmq import limits
from ebbmq.feed.manifests import Part
from ebbmq_spark import pieces
from ebbmq_spark.pieces import Piece
from ebbmq_spark.places import Store
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Table
    from ebbmq_spark.lake import Reach
    from ebbmq_spark.places import Place

    Batches = Iterator[pa.RecordBatch]

#: A file that is as large is closed, and another one begun: it is put together in memory.
_FILE_BYTES: Final = 32 * limits.MIB
#: Rows of a row group, about.
_GROUP_ROWS: Final = 131_072
_TASKS: Final = "task long, pieces array<struct<path: string, part: int, parts: int>>"
_STORED: Final = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
_STORED_DDL: Final = "path string, rows long, bytes long"


def read(
    spark: SparkSession,
    place: Place,
    table: Table,
    files: Sequence[tuple[str, int]],
    columns: Sequence[str] | None,
    reach: Reach | None,
) -> DataFrame:
    """Rows of files, which are given by name and size."""
    whole = schema_of(table)
    # What a row must have and lacks is judged later, as with files that Spark reads itself.
    schema = T.StructType(
        [T.StructField(name, whole[name].dataType) for name in columns or whole.names]
    )
    tasks = [
        (number, [tuple(piece) for piece in some])
        for number, some in enumerate(pieces.spread(files))
    ]
    frame = spark.createDataFrame(tasks, _TASKS).repartitionByRange(len(tasks), "task")
    return frame.mapInArrow(_reader(place, to_arrow_schema(schema), reach), schema)


def _reader(place: Place, schema: pa.Schema, reach: Reach | None) -> Callable[[Batches], Batches]:
    def fetch(batches: Batches) -> Batches:
        store = Store(place)
        condition = None if reach is None else pc.field(reach.column) <= reach.until
        for batch in batches:
            for task in batch.column("pieces").to_pylist():
                for piece in task:
                    yield from pieces.batches(store, Piece(**piece), schema, condition)

    return fetch


def write(frame: DataFrame, place: Place, directory: str) -> tuple[Part, ...]:
    """Store rows as files of a directory."""
    stored = frame.mapInArrow(_writer(place, directory), _STORED_DDL).collect()
    return tuple(sorted((Part(*row) for row in stored), key=lambda part: part.path))


def _writer(place: Place, directory: str) -> Callable[[Batches], Batches]:
    def store(batches: Batches) -> Batches:
        into = Store(place)
        for rows, data in _files(batches):
            path = f"{directory}/part-{secrets.token_hex(8)}.parquet"
            into.write(path, data, "create")
            told = {"path": path, "rows": rows, "bytes": len(data)}
            yield pa.RecordBatch.from_pylist([told], schema=_STORED)

    return store


def _files(batches: Batches) -> Iterator[tuple[int, bytes]]:
    """Rows as Parquet files of a bounded size: how many, and the bytes."""
    sink, writer, rows = io.BytesIO(), None, 0
    for group in _groups(batches):
        if writer is None:
            writer = pq.ParquetWriter(sink, group.schema, compression="zstd")
        writer.write_table(group)
        rows += len(group)
        if sink.tell() >= _FILE_BYTES:
            writer.close()
            yield rows, sink.getvalue()
            sink, writer, rows = io.BytesIO(), None, 0
    if writer is not None:
        writer.close()
        yield rows, sink.getvalue()


def _groups(batches: Batches) -> Iterator[Any]:
    """Small batches put together."""
    some: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            some.append(batch)
            rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(some)
            some, rows = [], 0
    if some:
        yield pa.Table.from_batches(some)
