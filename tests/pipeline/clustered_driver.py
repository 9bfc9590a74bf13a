"""A driver that does all the jobs wherever its master is; it prints what it saw.

python -m tests.pipeline.clustered_driver MASTER < JSON, see `main`
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbmq_spark.connector import register
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.session import Settings, spark_session
from ebbmq_spark.simulation.generate import generate
from ebbmq_spark.simulation.study import study, study_trace
from ebbmq_spark.simulation.sweep import read_sweep
from ebbmq_spark.simulation.traces import read_lake
from tests.pipeline.conftest import QUICK_JAVA
from tests.pipeline.patience import patiently
from tools.classes import archive_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": f"{QUICK_JAVA} {archive_options()}",
    # Nothing begins before both workers are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    "spark.default.parallelism": "4",
}


SWEEP = b"""
[traffic]
useful_ms = 60000
consumers = 2
[sweep]
decay_rate = [1.0]
"""


def _places(_: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Where a task runs, and where its code came from."""
    import os  # noqa: PLC0415  # this runs elsewhere

    import ebbmq_spark  # noqa: PLC0415

    yield os.environ.get("SPARK_EXECUTOR_DIRS", ""), str(ebbmq_spark.__file__)


def read_queue(spark: SparkSession, url: str) -> list[tuple[str, str]]:
    """Every message of the queue."""
    frame = patiently(
        spark.read.format("ebbmq").options(url=url, queue="q", rowsPerPartition="10").load
    )
    rows = patiently(frame.select("id", "body").collect)
    return sorted((row["id"], bytes(row["body"]).decode()) for row in rows)


def read_events(
    spark: SparkSession, lake: str, options: dict[str, str] | None = None
) -> dict[str, Any]:
    """Which events a lake has, how many of them are late ones, and whether Python reads them."""
    asked = spark.read.format("ebbmq").options(table="events", **(options or {}))
    frame = patiently(lambda: asked.load(lake))
    late = patiently(frame.where("event = 'acked' and latency_ms > 1000").count)
    rows = patiently(frame.select("event", "seq", "decay_score").collect)
    return {"late": late, "rows": sorted(map(str, rows)), "in_python": is_in_python(frame)}


def read_archive(
    spark: SparkSession, archive: str, options: dict[str, str] | None = None
) -> dict[str, Any]:
    """Which messages an archive has, and whether Python reads them."""
    asked = spark.read.format("ebbmq").options(table="archive", **(options or {}))
    frame = patiently(lambda: asked.load(archive))
    rows = patiently(frame.select("queue", "pack", "id", "body").collect)
    count = patiently(frame.where("pack > 1").count)
    return {"count": count, "rows": sorted(map(str, rows)), "in_python": is_in_python(frame)}


def is_in_python(frame: DataFrame) -> bool:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        patiently(frame.explain)
    in_python = "BatchScan ebbmq" in shown.getvalue()
    assert in_python != ("FileScan parquet" in shown.getvalue())
    return in_python


def simulated(spark: SparkSession, lake: Any) -> list[tuple[str, int, float]]:
    """What policies come to on the traffic of a lake, and on what was made up here."""
    sweep = read_sweep(SWEEP, "sweep")
    (found,) = study(spark, read_lake(spark, lake).trace, sweep).studies
    (made_up,) = study_trace(spark, generate("overload", 100), sweep).studies
    outcomes = [*found.outcomes, *made_up.outcomes]
    return sorted((each.policy, each.messages, each.worth_on_time) for each in outcomes)


def bounded(spark: SparkSession, lake: Path) -> list[Any]:
    """What a plan within room, and one within a third of the money it asks for, leave out."""
    room = run_plan(spark, Arguments(lake, full=True))
    budget = room.cost_before + (room.cost_after - room.cost_before) / 3
    money = run_plan(spark, Arguments(lake, full=True, budget=budget))
    assert money.cost_after <= budget
    return [
        {why: [left.count, left.bytes] for why, left in each.left_out.items()}
        for each in (room, money)
    ]


def copied(spark: SparkSession, asked: dict[str, Any]) -> None:
    """Every message of the queue leased, published to another one, and acked."""
    queue = spark.readStream.format("ebbmq").options(
        url=asked["url"], queue="q", rowsPerPartition="10", columns="id,body"
    )

    def copy() -> None:
        query = (
            queue.load()
            .writeStream.format("ebbmq")
            .options(url=asked["url"], queue="copies", idColumn="id")
            .option("checkpointLocation", asked["checkpoint"])
            .trigger(availableNow=True)
        )
        query.start().awaitTermination()

    patiently(copy)


def main(master: str) -> None:
    asked = json.load(sys.stdin)
    more = {**CLUSTER, **asked["settings"]}
    settings = Settings(master=master, memory="512m", shuffle_partitions=2, more=more)
    with spark_session(settings, "ebbmq cluster") as spark:
        context = spark.sparkContext
        context.addPyFile(asked["code"])
        register(spark)
        lake, followed = Path(asked["lake"]), Path(asked["followed"])
        seen: dict[str, Any] = {
            "places": context.parallelize(range(8), 8).mapPartitions(_places).distinct().collect(),
            "queue": read_queue(spark, asked["url"]),
            "events": read_events(spark, asked["lake"]),
            "archive": read_archive(spark, asked["archive"]),
            "stored events": read_events(spark, *asked["stored lake"]),
            "stored archive": read_archive(spark, *asked["stored archive"]),
            "run": run(spark, Arguments(lake, full=True, bounded=False)).run,
            "bounded": bounded(spark, Path(asked["bounded"])),
            "simulated": patiently(lambda: simulated(spark, lake)),
        }
        place = Streaming(followed, once=True, partitions=2)
        seen["streamed"] = [patiently(lambda: stream(spark, place)).events for _ in range(2)]
        copied(spark, asked)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
