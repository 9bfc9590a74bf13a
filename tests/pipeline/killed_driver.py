"""A driver with three streams and a write, each in its middle, which never ends: for who kills it.

python -m tests.pipeline.killed_driver URL TOKEN DIRECTORY, which gets a file for each that is there
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from ebbmq_spark.connector import options, register
from ebbmq_spark.connector.sink import QueueStreamWriter
from ebbmq_spark.connector.source import EbbMQ
from ebbmq_spark.session import Settings, active, spark_session
from tests.pipeline.patience import all_to_end, patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

#: A batch that is read, one of which a task has published its half, one that its sink committed;
#: and rows that are written by themselves, of which a task has published its half.
READ: Final = "read"
HALVED: Final = "halved"
KEPT: Final = "kept"
WRITTEN: Final = "written"
MESSAGES: Final = 50
LEASED: Final = {"leaseTimeoutMs": "3600000", "rowsPerPartition": str(MESSAGES // 2)}
STOPPING: Final = "stopping"


def held_up(
    reached: Path, until: Path
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Let rows through, but those with the last message only once there is a file."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time  # noqa: PLC0415  # this runs elsewhere

        for batch in batches:
            if b"%d" % (MESSAGES - 1) in batch.column("body").to_pylist():
                reached.touch()
                while not until.exists():
                    time.sleep(0.01)
            yield batch

    return work


def copying(
    spark: SparkSession,
    broker: dict[str, str],
    queue: str,
    checkpoint: Path,
    between: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    **sink: str,
) -> StreamingQuery:
    """Start a query from a queue to the one beside it; `between` is what is done to its rows."""
    source = spark.readStream.format("ebbmq").options(**broker, **LEASED, queue=queue)
    return (
        between(source.option("columns", "id,body").load())
        .writeStream.format(sink.pop("format", "ebbmq"))
        .options(**broker, queue=f"{queue}.copied", **sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def numbered(spark: SparkSession) -> DataFrame:
    """As many rows as there are messages, half of them to a task."""
    rows = spark.range(MESSAGES, numPartitions=2)
    return rows.selectExpr("string(id) AS id", "binary(string(id)) AS body")


def write(frame: DataFrame, broker: dict[str, str]) -> None:
    """Publish rows, by their ids, to the queue for them."""
    sink = frame.write.format("ebbmq").options(**broker, queue=f"{WRITTEN}.copied", idColumn="id")
    sink.mode("append").save()


def without_ids(frame: DataFrame) -> DataFrame:
    """Rows that a broker cannot tell from others when they come again."""
    return frame.select("body")


def stopping(reached: Path) -> type[EbbMQ]:
    """The connector, except that a sink stops between its own commit of a batch and Spark's."""

    class Writer(QueueStreamWriter):
        @override
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            super().commit(messages, batchId)
            reached.touch()
            threading.Event().wait()

    class Stopping(EbbMQ):
        @classmethod
        @override
        def name(cls) -> str:
            return STOPPING

        @override
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return Writer(options.publishing(self.options), schema)

    return Stopping


def main(url: str, token: str, place: str) -> None:
    directory, broker = Path(place), {"url": url, "token": token}

    def work(frame: DataFrame, _: int) -> None:
        assert frame.count() == MESSAGES
        (directory / READ).touch()
        threading.Event().wait()

    # Two of them have a task that waits.
    with spark_session(Settings(master="local[3]", memory="512m", shuffle_partitions=1)) as spark:
        register(spark)
        spark.dataSource.register(stopping(directory / KEPT))
        stream = spark.readStream.format("ebbmq").options(**broker, **LEASED, queue=READ)
        hold = held_up(directory / HALVED, directory / "never")
        starts: list[Callable[[], StreamingQuery]] = [
            lambda: (
                stream.load()
                .writeStream.foreachBatch(work)
                .option("checkpointLocation", str(directory / f"{READ}-place"))
                .start()
            ),
            lambda: copying(
                spark, broker, HALVED, directory / f"{HALVED}-place",
                lambda frame: frame.mapInArrow(hold, frame.schema), idColumn="id",
            ),
            lambda: copying(
                spark, broker, KEPT, directory / f"{KEPT}-place",
                without_ids, atLeastOnce="true", format=STOPPING,
            ),
        ]  # fmt: skip

        def write_half() -> None:
            rows, stop = numbered(spark), held_up(directory / WRITTEN, directory / "never")
            with active(spark):
                patiently(lambda: write(rows.mapInArrow(stop, rows.schema), broker))

        threading.Thread(target=write_half, daemon=True).start()
        all_to_end(starts)


if __name__ == "__main__":
    main(*sys.argv[1:])
