"""How many worked on a queue at once, by a feed that may lack the end of a lease or its begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq.feed.events import SETTLES
from ebbmq_spark.simulation.study import study_lake
from ebbmq_spark.simulation.sweep import Sweep, TrafficSpec
from ebbmq_spark.transforms.recorded import concurrency
from tests.pipeline.handwritten import tell
from tests.pipeline.rows import NOW_MS, events

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


@pytest.mark.parametrize("end", ["removed", "stale", "expired", "dead_lettered", "acked"])
def test_a_lease_ends_with_its_message(spark: SparkSession, end: str) -> None:
    """Twice three are worked on at once, and leave in one way or the other."""
    told = [
        (1 + 6 * turn + 3 * over + at, 100 * turn + 10 * over, f"{turn} {at}", event)
        for turn in range(2)
        for over, event in enumerate(("leased", end))
        for at in range(3)
    ]
    assert consumers(spark, *told) == 3


def test_a_lease_whose_end_is_missing_does_not_last_for_ever(spark: SparkSession) -> None:
    one_by_one = [
        (1 + 2 * at + over, 10 * at + 5 * over, f"m{at}", event)
        for at in range(100)
        for over, event in enumerate(("leased", "acked"))
    ]
    assert consumers(spark, *one_by_one) == 1
    # Every second ack is missing, or every second lease, whose ack says when it began.
    for lost in ("leased", "acked"):
        some = [row for row in one_by_one if row[3] != lost or row[0] % 4 > 1]
        assert len(some) == 150
        assert consumers(spark, *some) == 1
    at_once = [
        (1 + 10 * over + at, 5 * over, f"m{at}", event)
        for over, event in enumerate(("leased", "acked"))
        for at in range(10)
    ]
    # What is known to be held is held also across a gap.
    assert consumers(spark, *at_once[:9], *at_once[10:]) == 10
    assert consumers(spark, *at_once[10:]) == 10


def test_a_lease_that_is_told_anew_has_ended_before(spark: SparkSession) -> None:
    """Of each message a retry is missing, and the second lease is an hour later."""
    hour = 3_600_000
    told = [
        (1 + 3 * at + 3 * over, 10 * at + hour * over, f"m{at}", "leased")
        for over in range(2)
        for at in range(20)
    ]
    first, second = told[:20], [(seq + 100, *rest) for seq, *rest in told[20:]]
    assert consumers(spark, *first, *second) == 1


def test_leases_of_a_boot_end_with_what_it_told(spark: SparkSession) -> None:
    def boot(number: int, node: str) -> list[dict[str, object]]:
        told = {"boot": number, "node": node, "event": "leased", "at_ms": NOW_MS + number * 1_000}
        return [{**told, "seq": at, "message_id": f"{number} {at}"} for at in range(1, 5)]

    every = [*boot(1, "a"), *boot(2, "a"), *boot(3, "b")]
    (found,) = concurrency(events(spark, *every)).collect()
    assert found.consumers == 4


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
