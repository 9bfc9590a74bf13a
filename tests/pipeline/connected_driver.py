"""A client of Spark Connect that does what it is told to; it prints what it saw.

python -m tests.pipeline.connected_driver MASTER < JSON, see `main`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbmq import Client, QueueSpec
from ebbmq_spark.connector import register
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.lake import open_lake
from ebbmq_spark.session import Settings, spark_session
from tests.pipeline.clustered_driver import (
    bounded,
    read_archive,
    read_events,
    read_queue,
    simulated,
)
from tests.pipeline.patience import patiently, to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def _places(batches: Iterator[Any]) -> Iterator[Any]:
    """Where the code of a task came from."""
    import pyarrow as pa  # noqa: PLC0415  # this runs elsewhere

    import ebbmq_spark  # noqa: PLC0415

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [str(ebbmq_spark.__file__)]})


def drained(spark: SparkSession, asked: dict[str, Any]) -> list[str]:
    """The bodies of a queue, leased by a stream and acked."""
    told = spark.readStream.format("ebbmq").options(url=asked["url"], queue="q").load()
    to = Path(asked["state"]) / "drained"
    query = told.writeStream.format("parquet").option("checkpointLocation", f"{to}-place")
    query.trigger(availableNow=True).start(str(to)).awaitTermination()
    read = spark.read.parquet(str(to)).selectExpr("string(body) AS body")
    return sorted(row.body for row in read.collect())


def copied(spark: SparkSession, asked: dict[str, Any]) -> None:
    """Messages of a queue published to another one, twice, and leased by a stream to a third."""
    given = {"url": asked["url"], "queue": "from"}
    to = {"url": asked["url"], "idColumn": "unique_id"}

    def copy() -> None:
        rows = spark.read.format("ebbmq").options(**given).load().select("unique_id", "body")
        rows.write.format("ebbmq").options(**to, queue="twice").mode("append").save()

    def start() -> Any:
        leased = spark.readStream.format("ebbmq").options(**given).load()
        sink = leased.select("unique_id", "body").writeStream.format("ebbmq")
        sink = sink.options(**to, queue="streamed", sinkId="streamed")
        place = Path(asked["state"]) / "copied"
        return sink.option("checkpointLocation", str(place)).trigger(availableNow=True).start()

    for _ in range(2):
        patiently(copy)
    to_end(start)


def replayed(spark: SparkSession, asked: dict[str, Any]) -> list[Any]:
    """What a queue has after a batch, and a new one of its name after the same batch again."""
    state = Path(asked["state"])
    commit = state / "replayed" / "commits" / "0"

    def start() -> Any:
        rows = spark.readStream.schema("id STRING, body BINARY").parquet(str(state / "drained"))
        sink = rows.writeStream.format("ebbmq")
        sink = sink.options(url=asked["url"], queue="replayed", idColumn="id", sinkId="replayed")
        place = sink.option("checkpointLocation", str(state / "replayed"))
        return place.trigger(availableNow=True).start()

    with Client(asked["url"]) as client:
        to_end(start)
        seen = [client.stats("replayed")["depth"]["ready"]]
        # As if Spark had ended before it noted that; and the broker has forgotten the ids.
        for name in (commit, commit.with_name(".0.crc")):
            name.unlink(missing_ok=True)
        client.delete("replayed")
        client.declare(QueueSpec("replayed"))
        to_end(start)
        return [*seen, client.stats("replayed")["depth"]["ready"], commit.exists()]


def main(master: str) -> None:
    asked = json.load(sys.stdin)
    more = {"spark.sql.shuffle.partitions": "2"}
    with spark_session(Settings(master=master, more=more), "ebbmq connect") as spark:
        register(spark)
        places = spark.range(1).mapInArrow(_places, "place string")
        lake, store = Path(asked["lake"]), open_lake(asked["store"], asked["options"])
        seen: dict[str, Any] = {"places": patiently(places.collect)[0].place}
        for name, where in (("lake", lake), ("store", store)):
            seen[name] = patiently(
                lambda where=where: run(spark, Arguments(where, full=True, bounded=False))
            ).run
        seen["bounded"] = bounded(spark, Path(asked["bounded"]))
        seen["queue"] = read_queue(spark, asked["url"])
        seen["events"] = read_events(spark, asked["lake"])
        seen["archive"] = read_archive(spark, asked["archive"])
        seen["simulated"] = patiently(lambda: simulated(spark, store))
        followed = open_lake(asked["followed"], asked["options"])
        place = Streaming(followed, once=True, partitions=2, state=Path(asked["state"]))
        seen["streamed"] = [patiently(lambda: stream(spark, place)).events for _ in range(2)]
        seen["drained"] = patiently(lambda: drained(spark, asked))
        copied(spark, asked)
        seen["replayed"] = replayed(spark, asked)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
