"""A report says who is read: on feeds that real brokers wrote."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ebbmq import Message, QueueSpec
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs import history
from ebbmq_spark.jobs.page import html
from ebbmq_spark.jobs.reads import Reads
from ebbmq_spark.jobs.reporting import figures, sources
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.lake import opened
from tests.pipeline.lakes import DAY_MS, Node

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
#: Nine in the morning of yesterday, in UTC.
AT_NINE_MS = (time.time_ns() // 1_000_000 // DAY_MS - 1) * DAY_MS + 9 * HOUR_MS


def test_a_report_says_which_queues_are_read_when_and_how_few_messages_take_half_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a", AT_NINE_MS) as node:
        node.broker.declare(QueueSpec("read", score_access_bonus=1.0))
        node.broker.declare(QueueSpec("unread"))
        for queue in ("read", "unread"):
            node.broker.publish(queue, [Message(b"x") for _ in range(10)])
        node.clock.advance(2 * HOUR_MS)
        # Four are read once, and one of them much more often than all others together.
        leases = node.broker.lease("read", count=4, lease_timeout_ms=DAY_MS)
        for _ in range(20):
            node.broker.release("read", [leases[0].token])
            leases[:1] = node.broker.lease("read", count=1, lease_timeout_ms=DAY_MS)
    run(spark, Arguments(tmp_path / "lake"))
    lake = opened(tmp_path / "lake")
    fleet = fleets.read(lake, time.time_ns() // 1_000_000)
    (told,) = figures(spark, sources(lake, history.read(lake), {}), fleet, None, None).reads
    published, read = [0] * 24, [0] * 24
    published[9], read[11] = 10, 24
    assert told._replace(rate=0.0) == Reads("read", 0.0, 4, 1, published, read)
    assert 20 < told.rate < 24


def test_where_nothing_depends_on_reads_the_page_says_why_it_does_not_know_the_hot_set(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a", AT_NINE_MS) as node:
        for queue in (QueueSpec("busy"), QueueSpec("counted", score_access_bonus=1.0)):
            node.broker.declare(queue)
            node.broker.publish(queue.name, [Message(b"x") for _ in range(10)])
            node.broker.lease(queue.name, count=4, lease_timeout_ms=DAY_MS)
    run(spark, Arguments(tmp_path / "lake"))
    lake = opened(tmp_path / "lake")
    told = figures(
        spark,
        sources(lake, history.read(lake), {}),
        fleets.read(lake, time.time_ns() // 1_000_000),
        None,
        None,
    )
    assert {each.queue: (each.messages, each.hot) for each in told.reads} == {
        "busy": (None, None),
        "counted": (4, 2),
    }
    text = html(told)
    assert "reads of each message are counted where something depends on them" in text
    assert "depends on them" not in html(told._replace(reads=told.reads[1:]))
