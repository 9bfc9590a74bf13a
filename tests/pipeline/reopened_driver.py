"""A driver that opens, uses and stops a session twice; it prints what it read, and how.

python -m tests.pipeline.reopened_driver LAKE OPTIONS
"""

from __future__ import annotations

import json
import sys

from ebbmq_spark.connector import register
from ebbmq_spark.session import spark_session
from tests.pipeline.conftest import SETTINGS
from tests.pipeline.patience import patiently


def main(lake: str, options: str) -> None:
    for _ in range(2):
        with spark_session(SETTINGS) as spark:
            register(spark)
            asked = spark.read.format("ebbmq").options(table="events", **json.loads(options))
            frame = patiently(lambda asked=asked: asked.load(lake))
            plan = frame._jdf.queryExecution().toString()  # noqa: SLF001  # it has no public name
            way = "native" if "FileScan parquet" in plan else "python"
            sys.stdout.write(f"{frame.count()} {way}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
