"""Where Spark takes another file system than that of the machine for granted, as clusters do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from tests.pipeline.lakes import DAY_MS, Node, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A directory that has whatever is named without a scheme."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    settings = {
        "fs.defaultFS": "viewfs://other/",
        f"fs.viewfs.mounttable.other.link.{tmp_path}": f"file://{place}",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield place
    for name in settings:
        spark.conf.unset(name)


def test_a_lake_is_written_where_it_is_read(
    spark: SparkSession, tmp_path: Path, elsewhere: Path
) -> None:
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(5 * DAY_MS)
    record = run(spark, Arguments(node.lake))
    assert sum(each.count for each in record.actions.values()) == len(list(rows(node.lake, PLANS)))
    assert sum(row["count"] for row in rows(node.lake, PROFILES)) == record.events > 0
    assert stream(spark, Streaming(node.lake, once=True, partitions=2)).events == record.events
    assert list(elsewhere.iterdir()) == []
