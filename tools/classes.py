"""Spark's classes as Java has loaded them, in a file: the next Java starts in half the time.

python tools/classes.py writes the file beside the jars of Spark, once for each installation, for
tests. Java looks whether the jars, and it itself, are those that the file was made with; otherwise,
and where there is no file, it loads classes as it always did.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import functions as F

from ebbmq.errors import EbbError
from ebbmq_spark.session import Settings, SparkFailed, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE: Final = "ebbmq-classes.jsa"
#: To start quickly is all that is asked of a Java that ends at once.
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def archive_path() -> Path:
    """Where the file is, if there is one."""
    return Path(_find_spark_home()) / ARCHIVE


def archive_options() -> str:
    """Options that have Java use the file; none where there is no file."""
    path = archive_path()
    # A file that does not fit is no fault, and what Java says on stdout would be among rows.
    return f'"-XX:SharedArchiveFile={path}" -Xlog:cds*=off' if path.exists() else ""


def keep_classes() -> Path:
    """Start Spark, have it do a little of everything, and write the file when Java ends."""
    path = archive_path()
    # Two may be at it at once; what is there stays until there is another.
    beside = path.with_suffix(f".{os.getpid()}.new")
    if not os.access(path.parent, os.W_OK):
        raise SparkFailed(
            f"{path.parent} cannot be written to, where Spark's classes would be kept",
            "have who installed Spark run it; Spark starts without, too",
        )
    more = {
        "spark.driver.extraJavaOptions": f'{_BRIEF} "-XX:ArchiveClassesAtExit={beside}"',
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_session(Settings(master="local[2]", more=more), "ebbmq classes") as spark:
        with tempfile.TemporaryDirectory() as scratch:
            _exercise(spark, Path(scratch))
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # it has no public name
    gateway.shutdown()
    # Java ends when nobody can write to it any more.
    gateway.proc.stdin.close()
    status = gateway.proc.wait()
    if status or not beside.exists():
        beside.unlink(missing_ok=True)
        raise SparkFailed(
            f"Java ended with {status} before it had written {beside}",
            "see that there is room for 200 MB; Spark starts without, too, in twice the time",
        )
    beside.replace(path)
    return path


def _exercise(spark: SparkSession, scratch: Path) -> None:
    """What a run does: read, count, join, rank, write; in one go, and as a stream."""
    rows, streamed = str(scratch / "rows"), str(scratch / "streamed")
    numbers = spark.range(1_000).select(
        "id", (F.col("id") % 7).alias("key"), F.col("id").cast("string").alias("name")
    )
    numbers.write.partitionBy("key").parquet(rows)
    read = spark.read.schema(numbers.schema).parquet(rows)
    counted = read.where("id > 10").groupBy("key").agg(
        F.count("*").alias("count"),
        F.countDistinct("name").alias("names"),
        F.percentile_approx("id", 0.5).alias("middle"),
    )  # fmt: skip
    joined = read.join(counted, "key", "left").join(F.broadcast(counted), "key", "left_semi")
    joined.createOrReplaceTempView("joined")
    ranked = "SELECT *, row_number() OVER (PARTITION BY key ORDER BY id) AS place FROM joined"
    spark.sql(ranked).orderBy("key", "place").limit(10).toPandas()
    joined.mapInArrow(lambda batches: batches, joined.schema).collect()
    stream = spark.readStream.schema(read.schema).parquet(rows)
    query = stream.writeStream.option("checkpointLocation", str(scratch / "checkpoint"))
    query.trigger(availableNow=True).format("parquet").start(streamed).awaitTermination()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{keep_classes()}\n")
    except EbbError as error:
        sys.exit(str(error))
