"""A batch is on a sink's record only once what Spark has noted of it is on the device.

A power cut cannot be had here: what the sink asks the device for, and when, is looked at instead.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict
from typing_extensions import override

from ebbmq import Client, QueueSpec, StorageFailed
from ebbmq_spark.connector import EbbMQ, flushing, options
from ebbmq_spark.connector.ledger import Committed, Ledger
from ebbmq_spark.connector.sink import Published, QueueStreamWriter
from tests.pipeline.patience import to_end
from tests.served import Served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.streaming import StreamingQuery

ROWS = T.StructType([T.StructField("body", T.StringType())])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What Spark leaves of two batches, the second of which is not done."""
    place = tmp_path / "check point 100%20#"
    for name in ("metadata", "offsets/0", "offsets/.0.crc", "offsets/1", "offsets/.1.crc"):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return place


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with (
        Served(tmp_path / "data") as server,
        Client(f"http://127.0.0.1:{server.port}") as client,
    ):
        yield client


def flushed(checkpoint: str | None, batch: int) -> list[str]:
    """The paths that a device was asked for, in their order."""
    seen: list[str] = []

    def note(descriptor: int) -> None:
        os.fsync(descriptor)
        seen.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    flushing.flush(checkpoint, batch, note)
    return seen


def test_files_are_flushed_before_the_directories_that_name_them(checkpoint: Path) -> None:
    names = ("metadata", "offsets/.1.crc", "offsets/1", "offsets", "")
    wanted = [str(checkpoint / name) for name in names]
    for scheme in ("", "file:", "file://"):
        assert flushed(f"{scheme}{checkpoint}", 1) == wanted


def test_a_checkpoint_that_is_elsewhere_is_left_to_who_keeps_it(checkpoint: Path) -> None:
    assert flushed(None, 1) == []
    assert flushed(f"hdfs://{checkpoint}", 1) == []
    assert flushed(str(checkpoint / "other"), 1) == []


def writer(
    client: Client, checkpoint: Path, flush: Callable[[str | None, int], None]
) -> QueueStreamWriter:
    given = {
        "url": client.url,
        "queue": "q",
        "atLeastOnce": "true",
        "sinkId": "mine",
        "checkpointLocation": str(checkpoint),
    }
    return QueueStreamWriter(options.publishing(CaseInsensitiveDict(given)), ROWS, flush)


def test_a_batch_is_on_record_after_its_offset_is_on_the_device(
    client: Client, checkpoint: Path
) -> None:
    found: list[tuple[object, list[str]]] = []

    def flush(place: str | None, batch: int) -> None:
        found.append((Ledger(client, "mine").last(), flushed(place, batch)))

    sink = writer(client, checkpoint, flush)
    for _ in range(2):
        sink.commit([Published("query", 3, 0, 0)], 1)
    # Once: what is on record was flushed before.
    ((before, paths),) = found
    assert before is None
    assert str(checkpoint / "offsets" / "1") in paths
    assert Ledger(client, "mine").last() == Committed("query", 1, 3, 0)


def test_a_batch_whose_offset_cannot_be_flushed_is_not_on_record(
    client: Client, checkpoint: Path
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink = writer(client, checkpoint, lambda place, batch: flushing.flush(place, batch, fail))
    with pytest.raises(StorageFailed, match=r"metadata of the checkpoint cannot be flushed"):
        sink.commit([Published("query", 3, 0, 0)], 1)
    assert Ledger(client, "mine").last() is None


def noting(told: Path) -> type[EbbMQ]:
    """The connector, except that its sink says what it was asked to flush."""

    class Noting(EbbMQ):
        @classmethod
        @override
        def name(cls) -> str:
            return "noting"

        @override
        def streamWriter(self, schema: T.StructType, overwrite: bool) -> DataSourceStreamWriter:
            def note(place: str | None, batch: int) -> None:
                assert place is not None
                has_offset = (Path(place) / "offsets" / str(batch)).is_file()
                with told.open("a") as file:
                    file.write(f"{place} {batch} {has_offset}\n")

            return QueueStreamWriter(options.publishing(self.options), schema, note)

    return Noting


def test_spark_has_noted_a_batch_and_tells_where_when_its_sink_commits(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"body": "a"}\n')
    told, place = tmp_path / "told", tmp_path / "checkpoint"
    client.declare(QueueSpec("q"))
    spark.dataSource.register(noting(told))
    given: dict[str, Any] = {"url": client.url, "queue": "q", "atLeastOnce": "true"}

    def start() -> StreamingQuery:
        return (
            spark.readStream.schema("body STRING")
            .json(str(tmp_path / "in"))
            .writeStream.format("noting")
            .options(**given)
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start()
        )

    to_end(start)
    assert told.read_text() == f"{place} 0 True\n"
