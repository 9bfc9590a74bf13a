"""Clocks of nodes that are wrong: each node is judged by its own, and the page says so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ebbmq import Message, QueueSpec
from ebbmq.feed import layout
from ebbmq.feed.profiles import PROFILES
from ebbmq_spark.jobs import page
from ebbmq_spark.jobs.running import Arguments, figures, run
from tests.pipeline.handwritten import tell
from tests.pipeline.lakes import DAY_MS, Node, rows
from tests.pipeline.test_page import EMPTY

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
LOST = 5


def live(root: Path, name: str, start_ms: int) -> None:
    """A node that does some work in a queue of its own, and loses some messages."""
    queue = QueueSpec(f"of {name}", score_access_bonus=1.0)
    with Node(root, name, start_ms) as node:
        node.work(queue, took_ms=700)
        node.broker.publish(queue.name, [Message(b"x", importance=1, ttl_ms=1_000)] * LOST)
        node.clock.advance(60_000)


def test_a_node_whose_clock_is_wrong_takes_nothing_from_the_report(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, now_ms = tmp_path / "lake", time.time_ns() // 1_000_000
    for name, start_ms in (
        ("right", now_ms - 60_000),
        ("ahead", now_ms + 3 * DAY_MS),
        ("behind", now_ms - 60 * DAY_MS),
    ):
        live(tmp_path, name, start_ms)
    run(spark, Arguments(lake))
    assert {row["node"] for row in rows(lake, PROFILES)} == {"right", "ahead", "behind"}
    told = figures(spark, lake)
    assert sum(times for event, _, times in told.losses if event == "expired") == 3 * LOST
    assert {each.queue for each in told.latencies} == {"of right", "of ahead", "of behind"}
    # They are drawn side by side.
    assert all(abs(each.hour_ms - now_ms) <= 3 * HOUR_MS for each in told.latencies)
    assert [each.rate for each in told.reads] == [pytest.approx(4, rel=0.1)] * 3
    assert told.ahead_ms == {
        "ahead": pytest.approx(3 * DAY_MS, abs=HOUR_MS),
        "behind": pytest.approx(-60 * DAY_MS, abs=HOUR_MS),
    }
    text = (lake / layout.LATEST_REPORT).read_text()
    assert "Clocks differ: that of ahead is 3.0 days ahead, that of behind is 60.0 days beh" in text


def test_of_a_node_without_a_snapshot_its_newest_hour_says_what_its_clock_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    for node, at_ms in (("right", now_ms), ("ahead", now_ms + 3 * DAY_MS)):
        told = [
            {"seq": 1, "event": "stale", "reason": node},
            {"seq": 2, "event": "stale", "reason": "old", "at_ms": at_ms - 3 * DAY_MS},
        ]
        tell(tmp_path, 1, told, node=node, at_ms=at_ms)
    run(spark, Arguments(tmp_path))
    assert sorted(figures(spark, tmp_path).losses) == [("stale", "ahead", 1), ("stale", "right", 1)]


def test_a_page_speaks_of_clocks_that_differ() -> None:
    assert "Clocks differ" not in page.html(EMPTY)
    text = page.html(EMPTY._replace(ahead_ms={"<b>": 5_400_000, "a": -600_000}))
    assert "Clocks differ: that of &lt;b&gt; is 1.5 h ahead, that of a is 10 min behind." in text
