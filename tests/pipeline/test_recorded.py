"""How many worked on a queue at once, by a feed that may lack some of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.feed.events import SETTLES
from ebbmq_spark.simulation.study import study_lake
from ebbmq_spark.simulation.sweep import Sweep, TrafficSpec
from ebbmq_spark.transforms.recorded import concurrency
from tests.pipeline.handwritten import tell
from tests.pipeline.rows import events

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def consumers(spark: SparkSession, *rows: tuple[int, int, str, str]) -> int:
    """The most at once, of rows of a number, an instant, a message, and what happened to it."""
    names = ("seq", "at_ms", "message_id", "event")
    told = [
        {**dict(zip(names, row, strict=True)), "latency_ms": 5 if row[3] in SETTLES else None}
        for row in rows
    ]
    (found,) = concurrency(events(spark, *told)).collect()
    return int(found.consumers)


def test_what_is_told_of_the_ends_of_leases_says_how_many_there_were(spark: SparkSession) -> None:
    # One by one, each lease five milliseconds long and begun when the one before it ended.
    assert consumers(spark, *((n, 5 * n, f"m{n}", "acked") for n in range(1, 100))) == 1
    ends = [(n, n, f"m{n}", end) for n, end in enumerate(sorted(SETTLES), 1)]
    assert consumers(spark, *ends) == len(SETTLES)
    # One whose end is missing counts for nothing, and some work there was.
    assert consumers(spark, (1, 0, "m", "leased"), (9, 9, "o", "acked")) == 1


def test_what_is_missing_in_a_lake_is_told_by_node(spark: SparkSession, tmp_path: Path) -> None:
    done = [
        {"seq": 1, "event": "published"},
        {"seq": 2, "event": "leased"},
        {"seq": 3, "event": "acked", "latency_ms": 10},
    ]
    tell(tmp_path, 1, [*done, {"seq": 9, "event": "peeked"}, {"seq": 10, "event": "eaten"}])
    tell(tmp_path, 1, done, node="whole")
    sweep = Sweep(traffic=TrafficSpec(useful_ms=1_000), policies={"today": {}})
    assert study_lake(spark, tmp_path, sweep).missing == {"a": 5}
