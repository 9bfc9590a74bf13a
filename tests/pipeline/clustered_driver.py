"""A driver that runs the pipeline and reads a queue wherever its master is; it prints what it saw.

python -m tests.pipeline.clustered_driver MASTER ZIP LAKE URL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbmq_spark.connector import register
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.session import Settings, spark_session
from tests.pipeline.patience import patiently

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    # Nothing begins before both workers are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    "spark.default.parallelism": "4",
}


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


def main(master: str, archive: str, lake: str, url: str) -> None:
    settings = Settings(master=master, memory="512m", shuffle_partitions=2, more=CLUSTER)
    with spark_session(settings, "ebbmq cluster") as spark:
        context = spark.sparkContext
        context.addPyFile(archive)
        register(spark)
        seen: dict[str, Any] = {
            "places": context.parallelize(range(8), 8).mapPartitions(_places).distinct().collect(),
            "queue": read_queue(spark, url),
            "run": run(spark, Arguments(Path(lake), full=True, bounded=False)).run,
        }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
