"""A job as people submit theirs, which knows of no session but Spark's own.

spark-submit --py-files CODE submitted_job.py URL: prints where its code was, and what is in a queue
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ebbmq_spark.connector import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def code(_: Iterable[int]) -> Iterator[str]:
    """Where a task has its code from."""
    import ebbmq_spark  # noqa: PLC0415  # this runs elsewhere

    yield str(ebbmq_spark.__file__)


def main(url: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    asked = {"url": url, "queue": "q", "rowsPerPartition": "10"}
    bodies = spark.read.format("ebbmq").options(**asked).load().select("body").collect()
    seen = {
        "code": spark.sparkContext.parallelize(range(4), 4).mapPartitions(code).collect(),
        "bodies": sorted(bytes(row["body"]).decode() for row in bodies),
    }
    sys.stdout.write(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
