"""A client of Spark Connect that reads a lake and an archive both ways; it prints what it saw.

python -m tests.pipeline.native_driver MASTER LAKE ARCHIVE
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING, Any

from ebbmq_spark.connector import read_archive, read_lake, register
from ebbmq_spark.session import Settings, spark_session
from tests.pipeline.patience import patiently

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    Queries = dict[str, Callable[[DataFrame], DataFrame]]

#: What is asked of a lake, and of an archive.
OF_A_LAKE: Queries = {
    "everything": lambda frame: frame,
    "some": lambda frame: frame.where("seq >= 990 and queue != 'q1'").select("queue", "seq"),
    "counted": lambda frame: frame.groupBy("event").count(),
}
OF_AN_ARCHIVE: Queries = {
    "everything": lambda frame: frame,
    "counted": lambda frame: frame.groupBy("store", "queue", "pack").count(),
    "some": lambda frame: frame.where("queue like 'ü%' or importance = 3").select("pack", "id"),
    # Of one that is dead it would fail.
    "computed": lambda frame: frame.where("10 / int(headers['at']) >= 2").select("id"),
    "joined": lambda frame: frame.join(
        frame.where("id = '1-7'").select("queue"), "queue", "left_semi"
    ),
}


def told(frame: DataFrame) -> list[str]:
    return sorted(map(str, patiently(frame.collect)))


def plan_of(frame: DataFrame) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        patiently(frame.explain)
    return shown.getvalue()


def main(master: str, lake: str, archive: str) -> None:
    seen: dict[str, Any] = {}
    with spark_session(Settings(master=master), "ebbmq connect") as spark:
        register(spark)

        def see(table: str, place: str, ours: DataFrame, queries: Queries) -> None:
            asked = spark.read.format("ebbmq").option("table", table)
            theirs = patiently(lambda: asked.load(place))
            for name, query in queries.items():
                seen[f"{table} {name}"] = {
                    "plan": plan_of(query(ours)),
                    "ours": told(query(ours)),
                    "theirs": told(query(theirs)),
                }

        see("events", lake, read_lake(spark, lake, "events"), OF_A_LAKE)
        see("archive", archive, read_archive(spark, archive), OF_AN_ARCHIVE)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
