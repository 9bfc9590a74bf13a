"""kill -9 of a broker while Spark reads what it told: each event that is visible counts once."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.jobs.page import html
from ebbmq_spark.jobs.running import Arguments, figures, run, run_plan
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.lake import open_lake, visible
from ebbmq_spark.simulation.traces import read_lake
from tests.crash.test_feed_kill import feed_of, shown_in, working
from tests.feeds import manifests_of, rows_of
from tests.pipeline.lakes import rows
from tests.pipeline.patience import patiently

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Table

pytestmark = pytest.mark.crash

#: When what was told is read, before snapshots are, and before they are once more.
OF_RUN = ("checking", "planning", "reporting")
OF_PLAN = ("planning",)
BATCH = ("a batch",)
#: What a report reads by Spark of the past, and of messages as they are.
OF_REPORT = (PROFILES, CATALOG)


class Killed:
    """A broker at work, killed and started again now and then."""

    def __init__(self, path: Path) -> None:
        self.lake = path / "lake"
        self.times = 0
        self._data = path / "data"
        # A snapshot for each start: of those that come faster the ones at hand would be gone.
        self._config = feed_of(self.lake, every_ms=300, snapshot_every_ms=3_600_000)
        self._config["node"] = "a"
        self._life = contextlib.ExitStack()
        self._child: subprocess.Popen[bytes]

    def __enter__(self) -> Killed:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()

    def _start(self) -> None:
        # What it tells until a run has read it makes the run longer: on a slow machine, much.
        alive = working(self._data, self._config, lambda: shown_in(self.lake), pause_s=1)
        self._child = self._life.enter_context(alive)

    def at(self, *stages: str) -> Callable[[str], None]:
        """Kill it and let the next one begin, at each stage once.

        A run whose snapshot is gone thrice gives up, and each start makes a new one.
        """
        left = set(stages)

        def killed_once(stage: str) -> None:
            if stage in left:
                left.remove(stage)
                self.again()

        return killed_once

    def again(self) -> None:
        """Kill it, and let the next one begin."""
        self._child.kill()
        self._child.wait()
        self.times += 1
        self._start()


class KilledAt:
    """A lake whose broker is killed when rows of some tables are about to be read, once each."""

    def __init__(self, broker: Killed, *tables: Table) -> None:
        self._lake: Any = open_lake(broker.lake)
        self._killed = broker.at(*(table.name for table in tables))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def rows(self, spark: SparkSession, table: Table, *more: Any) -> DataFrame:
        self._killed(table.name)
        found: DataFrame = self._lake.rows(spark, table, *more)
        return found


def counted(lake: Path) -> Counter[str]:
    """How often what happened, by the newest profiles."""
    found: Counter[str] = Counter()
    for row in rows(lake, PROFILES):
        found[row["event"]] += row["count"]
    return found


def snapshots(lake: Path) -> set[int]:
    """How many messages each snapshot has that is there."""
    # Its node may take one away at the same time.
    return {sum(part.rows for part in each.parts) for each in visible(lake, CATALOG).manifests}


def test_what_a_broker_tells_that_is_killed_while_it_is_read_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Killed(tmp_path) as broker:
        lake = broker.lake
        first = run(spark, Arguments(lake, bounded=False), broker.at(*OF_RUN))
        planned = run_plan(spark, Arguments(lake, bounded=False), broker.at(*OF_PLAN))
        following = Streaming(lake, once=True, partitions=2)
        at_batch = broker.at(*BATCH)
        patiently(lambda: stream(spark, following, lambda *_: at_batch(*BATCH)))
        # What a simulation is about to replay is there when it comes to it.
        published = Counter(row["event"] for row in rows_of(lake))["published"]
        recorded = read_lake(spark, lake)
        broker.again()
        assert (recorded.trace.count() >= published, recorded.refused) == (True, [])
        assert broker.times == len((*OF_RUN, *OF_PLAN, *BATCH)) + 1
        manifests_of(lake, PLANS)  # what is visible is all there
        # A report by itself, of snapshots that grow old while it is drawn: there is one a start.
        sizes = snapshots(lake)
        reported = figures(spark, cast("Any", KilledAt(broker, *OF_REPORT)))
        sizes |= snapshots(lake)
        assert broker.times == len((*OF_RUN, *OF_PLAN, *BATCH, *OF_REPORT)) + 1
    told = Counter(row["event"] for row in rows_of(lake))
    assert (reported.nodes, reported.record) == (["a"], planned)
    assert sum(messages for messages, _ in reported.backlog.values()) in sizes
    assert planned.run in html(reported)
    assert 0 < first.events < told.total()
    assert (first.refused, planned.refused) == ({}, {})
    second = run(spark, Arguments(lake, bounded=False))
    assert first.events + second.events == told.total()
    assert (second.rejected, second.duplicates, second.missing) == (0, 0, 0)
    assert counted(lake) == told
    patiently(lambda: stream(spark, following))
    assert counted(lake) == told
