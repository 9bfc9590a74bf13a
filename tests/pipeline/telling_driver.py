"""A session that writes the same rows to a queue twice, as a batch and as a stream.

python -m tests.pipeline.telling_driver URL DIRECTORY
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ebbmq_spark.connector import register
from ebbmq_spark.session import Settings, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator


def noisy(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows as they are, from a process that says something else, too."""
    sys.stderr.write("noise of a task\n")
    return batches


def main(url: str, directory: str) -> None:
    """Write."""
    with spark_session(Settings(master="local[2]", memory="512m"), "ebbmq telling") as spark:
        register(spark)
        rows = spark.range(100).selectExpr("string(id) AS id", "string(id) AS body")
        told = rows.mapInArrow(noisy, rows.schema)
        to = {"url": url, "queue": "to", "idColumn": "id"}
        for _ in range(2):
            told.write.format("ebbmq").options(**to).mode("append").save()
        rows.write.parquet(f"{directory}/rows")
        read = spark.readStream.schema(rows.schema).parquet(f"{directory}/rows")
        writer = read.writeStream.format("ebbmq").options(**to)
        place = writer.option("checkpointLocation", f"{directory}/checkpoint")
        place.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
