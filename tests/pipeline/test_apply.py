"""The whole way round: brokers tell, Spark plans and recommends, brokers do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message
from ebbmq_spark.jobs.running import Arguments, run
from tests.advice import until_usable
from tests.pipeline.lakes import DAY_MS, DEVICES, FADING, Node
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"kind": "object", "directory": "archive", "capacity_bytes": 1 << 28, "tier": "s3"}


def test_what_spark_plans_really_moves_and_what_is_slow_here_fades_sooner_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=5_000)
        node.clock.advance(20 * DAY_MS)
    record = run(spark, Arguments(tmp_path / "lake", bounded=False))
    feed = {"lake": str(tmp_path / "lake"), "plans_every_ms": 0}

    # The archive came after the messages had faded: only the plan asks for it at once.
    devices = {**DEVICES, "archive": ARCHIVE}
    config = {"node": "a", "feed": feed, "devices": devices}
    with Broker.open(tmp_path / "a", config, node.clock) as broker:
        until_usable(broker)
        plan = {each.table: each for each in broker.apply_plans(record.run)}["plans"]
        assert (plan.applied, plan.refused) == (16, {})
        wait_until(lambda: broker.engine.holdings.counts("archive") == (16, 0), "all are moved")
        assert broker.engine.holdings.without_log() == 16
        shown = broker.peek("orders", 1)[0]
        assert (shown.tier, shown.copies, shown.body) == ("s3", ("archive",), b"x" * 100)
        assert broker.why(shown.id)["pinned"]["run"] == record.run

    with Broker.open(tmp_path / "b", {"node": "b", "feed": feed}) as other:
        other.declare(FADING)
        (rates, of_others) = other.apply_plans()
        assert (rates.table, rates.applied) == ("rates", 1)
        assert (of_others.rows, of_others.rows_in_all) == (0, 16)
        other.publish("orders", [Message(b"y", decay_rate=0.1)])
        assert other.peek("orders", 1)[0].decay_rate == pytest.approx(0.2)
