"""Incremental plans read what is due: files say by their ends how far they reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import Message, QueueSpec
from ebbmq.feed.plans import PLANS
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.jobs import totals
from ebbmq_spark.jobs.running import Arguments, run_plan
from ebbmq_spark.lake import open_lake
from tests.feeds import manifests_of
from tests.pipeline.lakes import DAY_MS, FADING, Node, counted, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_file_in_which_nothing_is_due_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    with Node(tmp_path, "due") as node:
        node.broker.declare(FADING)
        node.broker.publish(FADING.name, [Message(b"x")] * 5)
        node.clock.advance(20 * DAY_MS)
    with Node(tmp_path, "never") as node:
        node.broker.declare(QueueSpec("plain"))
        node.broker.publish("plain", [Message(b"x")] * 3)
    lake = tmp_path / "lake"
    (part,) = max(
        (each for each in manifests_of(lake, CATALOG) if each.node == "never"),
        key=lambda each: each.number,
    ).parts
    path = lake / part.path
    whole = path.read_bytes()
    # Its end is as it was, and its first rows are no rows.
    path.write_bytes(whole[:4] + b"\xff" * 64 + whole[68:])
    some = run_plan(spark, Arguments(lake, bounded=False))
    assert (some.refused, counted(some), some.looked_at) == ({}, {"archive": 5}, 5)
    planned = sorted(row["message_id"] for row in rows(lake))
    every = run_plan(spark, Arguments(lake, bounded=False, full=True))
    assert len(every.refused) == 1
    assert sorted(row["message_id"] for row in rows(lake)) == planned


def test_what_a_plan_asks_for_in_all_is_the_sum_of_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        for queue in (FADING, QueueSpec("grows", max_replicas=2, score_per_day=4.0)):
            node.broker.declare(queue)
        for _ in range(6):
            for name in ("orders", "grows"):
                node.broker.publish(name, [Message(b"x", replicas=1 + n % 2) for n in range(4)])
            node.clock.advance(3 * DAY_MS)
    run_plan(spark, Arguments(tmp_path / "lake", bounded=False))
    (manifest,) = manifests_of(tmp_path / "lake", PLANS)
    lake = open_lake(tmp_path / "lake")
    expected: dict[tuple[str, str | None, str | None], list[int]] = {}
    for row in rows(tmp_path / "lake"):
        sums = expected.setdefault((row["action"], row["from_tier"], row["to_tier"]), [0, 0, 0])
        for at, more in enumerate((1, row["bytes"], row["freed_bytes"])):
            sums[at] += more
    found = totals.of_parts(lake, (*manifest.parts, *manifest.parts))
    assert {each[:3]: list(each[3:]) for each in found} == {
        key: [2 * each for each in sums] for key, sums in expected.items()
    }
    assert expected
    assert totals.of_parts(lake, []) == []
