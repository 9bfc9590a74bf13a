"""Incremental plans read what is due: files say by their ends how far they reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq import Message, QueueSpec
from ebbmq.feed.plans import PLANS
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.jobs import totals
from ebbmq_spark.jobs.running import Arguments, run_plan
from ebbmq_spark.lake import Reach, open_lake, read_table
from ebbmq_spark.reaching import within
from tests.feeds import manifests_of
from tests.pipeline.lakes import DAY_MS, FADING, Node, counted, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

REACH = Reach("review_at_ms", 50)
FILES: dict[str, list[int | None]] = {
    "all due": [1, 2, 50],
    "in order": [1, 40, 50, 51, 60, 70, 80, None],
    "in no order": [60, 1, 70, 50, None, 51, 49],
    "not yet": [51, 60, None],
    "never": [None, None, None, None],
    "empty": [],
}


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("group", [2, 3, 100])
def test_rows_up_to_a_bound_are_counted_and_files_without_any_left_out(
    tmp_path: Path, statistics: bool, group: int
) -> None:
    lake, files = open_lake(tmp_path), []
    for name, values in FILES.items():
        # A column of lists has other columns behind it, as those of a snapshot have.
        told = pa.table(
            {
                "devices": pa.array([["a", "b"]] * len(values), pa.list_(pa.string())),
                "review_at_ms": pa.array(values, pa.int64()),
            }
        )
        pq.write_table(told, tmp_path / name, row_group_size=group, write_statistics=statistics)
        files.append(lake.file(name))
    found = within(lake, files, REACH)
    due = {name: sum(each is not None and each <= 50 for each in FILES[name]) for name in FILES}
    assert found.files == [lake.file(name) for name, count in due.items() if count]
    assert found.rows == sum(due.values())


def test_a_file_that_lacks_the_column_has_nothing_due_and_one_that_is_none_is_kept(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"node": ["a"]}), tmp_path / "older")
    (tmp_path / "damaged").write_bytes(b"PAR1 and then something else")
    lake = open_lake(tmp_path)
    files = [lake.file(name) for name in ("older", "damaged", "missing")]
    assert within(lake, files, REACH) == (files[1:], 0)


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


def test_what_a_plan_asks_for_is_the_same_whoever_adds_it_up(
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
    lake = open_lake(tmp_path / "lake")
    (manifest,) = manifests_of(tmp_path / "lake", PLANS)
    files = [lake.file(part.path) for part in manifest.parts]
    here = totals.here(lake, files)
    assert here == totals.summary(read_table(spark, PLANS, files, lake))
    assert sum(each.times for each in here) == sum(part.rows for part in manifest.parts) > 0
    assert totals.here(lake, []) == []
