"""A driver that leases a batch, reads it, says so, and never ends: for who kills it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ebbmq_spark.connector import register
from ebbmq_spark.session import Settings, spark_session
from tests.pipeline.patience import to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(url: str, token: str, checkpoint: str, reached: str) -> None:
    def work(frame: DataFrame, _: int) -> None:
        Path(reached).write_text(str(frame.count()))
        threading.Event().wait()

    with spark_session(Settings(master="local[1]", memory="512m", shuffle_partitions=1)) as spark:
        register(spark)
        stream = spark.readStream.format("ebbmq").options(
            url=url, token=token, queue="killed", leaseTimeoutMs="3600000"
        )
        to_end(
            lambda: (
                stream.load()
                .writeStream.foreachBatch(work)
                .option("checkpointLocation", checkpoint)
                .start()
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
