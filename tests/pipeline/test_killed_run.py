"""kill -9 of the driver of a run, a plan, a report or a simulation, wherever it is.

The next one ends up as if nothing had been, on a lake in a directory and on one in a store.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from ebbmq import Broker
from ebbmq.errors import UnknownRun
from ebbmq.feed import layout, runs
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.steps import STEPS
from ebbmq.testing import ManualClock
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from tests.advice import until_usable
from tests.feeds import manifests_of
from tests.pipeline.handwritten import tell
from tests.pipeline.killing import killed_driver, wait_patiently, wait_stopped
from tests.pipeline.lakes import DAY_MS, DEVICES, Node, rows
from tests.pipeline.patience import patiently
from tests.pipeline.stopped_driver import (
    ALONE,
    ALONE_IN_STORE,
    IN_STORE,
    POINTS,
    RUNS,
    STORE,
    STORED,
    STREAMED,
    follow,
    lake_in_store,
    named,
)
from tests.pipeline.test_apply import ARCHIVE
from tests.pipeline.test_object_lake import Bucket
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.object_lake import ObjectLake
    from tests.servers import Weed

pytestmark = pytest.mark.crash

#: A quarter of an hour and half an hour off the hours of UTC, in Java and in Python.
ELSEWHERE = "Asia/Kathmandu"
TABLES = (PLANS, PROFILES, RATES, STEPS)
#: How long who was killed in a store is waited for: less than for users, and enough for a busy
#: machine to keep a turn of its own.
TURN_S = 10.0
#: What is of one run: its name, when it was, and in `reason` how faded a message was by then.
ANEW = {
    "run", "decided_at_ms", "stepped_at_ms", "until_ms", "reason", "sketch", "counted_at_ms",
}  # fmt: skip


def told(lake: Path, *tables: Table) -> dict[str, list[tuple[Any, ...]]]:
    """What the last run left in a lake, without what every run draws anew."""
    return {
        table.name: sorted(
            tuple(
                f"{value:.9g}" if isinstance(value, float) else str(value)
                for name, value in row.items()
                if name not in ANEW
            )
            for row in rows(lake, table)
        )
        for table in tables or TABLES
    }


def records(lake: Path) -> list[Record]:
    places = sorted((lake / runs.RUNS).glob("*.json"))
    return [runs.decode(place.read_bytes(), place.name) for place in places]


@pytest.fixture(scope="module")
def store(weed: Weed) -> Bucket:
    """Where lakes are that are not in directories."""
    return Bucket(weed, "killed")


def store_at(store: Bucket, directory: Path) -> None:
    """Put a lake into the store, once for each point, and say where."""
    told = {"url": store.url, "options": store.options}
    (directory / STORE).write_text(json.dumps(told))
    lake = directory / "lake"
    files = [place for place in lake.rglob("*") if place.is_file()]
    for point in (*IN_STORE, *ALONE_IN_STORE, STORED, STREAMED):
        to = lake_in_store(directory, point)
        for place in files:
            to.create(str(place.relative_to(lake)), place.read_bytes())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, store: Bucket) -> Path:
    """Lakes on which a run was killed, each at another point, and one on which none was."""
    directory = tmp_path_factory.mktemp("killed")
    with Node(directory, "a") as node:
        node.work(took_ms=4_000)
        node.clock.advance(20 * DAY_MS)
    now_ms = time.time_ns() // 1_000_000
    odd: list[dict[str, Any]] = [{"seq": 1}, {"seq": 2, "event": "eaten"}, {"seq": 5}, {"seq": 5}]
    tell(directory / "lake", 1, odd, node="b", at_ms=now_ms - DAY_MS)
    for point in (*POINTS, *ALONE, RUNS, "never"):
        shutil.copytree(directory / "lake", directory / point)
    store_at(store, directory)
    with killed_driver(
        "tests.pipeline.stopped_driver", str(directory), environment={"TZ": ELSEWHERE}
    ) as driver:
        wait_stopped(driver)
        # In the middle of what Spark writes; it may have ended before that is seen.
        wait_patiently(lambda: driver.poll() is not None or is_writing(directory / RUNS))
    shutil.copytree(directory / "alone: plans shown", directory / "taken")
    return directory


def is_writing(lake: Path) -> bool:
    return any(lake.glob("plans/run=*/_temporary"))


@pytest.fixture(scope="module")
def never(spark: SparkSession, killed: Path) -> Record:
    """What a run that was never killed says of itself."""
    return run(spark, Arguments(killed / "never", bounded=False))


def visible_records(lake: Path) -> list[Record]:
    """What is on record where one was killed; what is visible beside it is all there."""
    for table in TABLES:
        manifests_of(lake, table)
    return records(lake)


@pytest.mark.parametrize("point", [*POINTS, RUNS])
def test_after_a_kill_the_next_run_ends_up_as_one_that_was_never_killed(
    spark: SparkSession, killed: Path, never: Record, point: str
) -> None:
    lake = killed / point
    before = visible_records(lake)
    assert len(before) == (point == "recorded") or point == RUNS
    record = run(spark, Arguments(lake, bounded=False))
    assert_as_never_killed(lake, before, record, never)
    assert told(lake) == told(killed / "never")


def assert_as_never_killed(lake: Path, before: list[Record], record: Record, never: Record) -> None:
    """A run read, counted and planned what one did that was never killed."""
    assert [each.run for each in records(lake)] == [*(each.run for each in before), record.run]
    assert record.read == never.read
    assert record.looked_at == never.looked_at
    assert record.actions == never.actions
    counts = [
        (each.events, each.rejected, each.duplicates, each.missing) for each in (*before, record)
    ]
    assert tuple(map(sum, zip(*counts, strict=True))) == (34, 1, 1, 2)
    assert record.counted == (before or [record])[0].run
    assert_nothing_is_left(lake)
    kept = {place.name for place in (lake / "events" / layout.REJECTED).iterdir()}
    assert kept == {f"run={(before or [record])[0].run}"}


def assert_nothing_is_left(lake: Path) -> None:
    """All that is there of tables is what manifests name."""
    for table in TABLES:
        seen = {part.path for each in manifests_of(lake, table) for part in each.parts}
        files = (lake / table.name).glob("run=*/*")
        assert {str(place.relative_to(lake)) for place in files} == seen
    assert not list(lake.rglob("_temporary"))


@pytest.mark.parametrize("point", ALONE)
def test_after_a_kill_the_next_plan_ends_up_as_one_that_was_never_killed(
    spark: SparkSession, killed: Path, never: Record, point: str
) -> None:
    lake, (written, _, recorded) = killed / point, ALONE
    assert len(manifests_of(lake, PLANS)) == (point != written)  # what is visible is all there
    before = records(lake)
    assert [each.kind for each in before] == ["plan"] * (point == recorded)
    record = run_plan(spark, Arguments(lake, bounded=False))
    assert_as_never_killed_alone(lake, before, record, never)
    assert told(lake, PLANS) == told(killed / "never", PLANS)


def assert_as_never_killed_alone(
    lake: Path, before: list[Record], record: Record, never: Record
) -> None:
    """The same of a plan."""
    assert [each.run for each in records(lake)] == [*(each.run for each in before), record.run]
    assert (record.looked_at, record.actions) == (never.looked_at, never.actions)
    assert_nothing_is_left(lake)


class Next(NamedTuple):
    """A lake in the store as it was left, and as it is after what came next, as directories."""

    left: Path
    lake: Path
    record: Record


@pytest.fixture(scope="module")
def after(
    spark: SparkSession, killed: Path, store: Bucket, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Next]:
    """What came next in the store, by the point at which one was killed.

    All at once: each waits first for as long as who was killed may still be there.
    """
    directory = tmp_path_factory.mktemp("after")

    def plan_or_run(lake: ObjectLake, point: str) -> Record:
        job, asked = run if point in IN_STORE else run_plan, Arguments(lake, bounded=False)
        return patiently(lambda: job(spark, asked))

    def go_on(point: str) -> Next:
        mine = store.below(named(point))
        left, lake = mine.copied(directory / point / "left"), mine.lake(turn_s=TURN_S)
        # A stream is started in this thread, as in the driver.
        is_stream = point == STREAMED
        record = follow(spark, lake, killed) if is_stream else plan_or_run(lake, point)
        return Next(left, mine.copied(directory / point / "lake"), record)

    points = (*IN_STORE, *ALONE_IN_STORE, STORED)
    with ThreadPoolExecutor(len(points)) as pool:
        rest = pool.map(go_on, points)
        return {STREAMED: go_on(STREAMED), **dict(zip(points, rest, strict=True))}


@pytest.mark.parametrize("point", IN_STORE)
def test_after_a_kill_the_next_run_on_a_store_ends_up_as_one_that_was_never_killed(
    killed: Path, never: Record, after: dict[str, Next], point: str
) -> None:
    left, lake, record = after[point]
    before = visible_records(left)
    assert len(before) == (point == "recorded")
    assert [(place / runs.RUNS / "_run.lock").exists() for place in (left, lake)] == [True, False]
    assert_as_never_killed(lake, before, record, never)
    assert told(lake) == told(killed / "never")


@pytest.mark.parametrize("point", [*ALONE_IN_STORE, STORED])
def test_after_a_kill_the_next_plan_on_a_store_ends_up_as_one_that_was_never_killed(
    killed: Path, never: Record, after: dict[str, Next], point: str
) -> None:
    left, lake, record = after[point]
    assert len(manifests_of(left, PLANS)) == (point != STORED)
    assert list(left.glob("plans/run=*/*.parquet"))
    assert records(left) == []
    assert_as_never_killed_alone(lake, [], record, never)
    assert told(lake, PLANS) == told(killed / "never", PLANS)


def test_after_a_kill_the_next_stream_on_a_store_counts_each_event_once(
    after: dict[str, Next],
) -> None:
    left, lake, record = after[STREAMED]
    assert len(manifests_of(left, PROFILES)) == 1
    assert records(left) == []
    # It is read once more, and not counted once more.
    assert (record.kind, record.events, record.duplicates) == ("stream", 34, 1)
    assert len(manifests_of(lake, PROFILES)) == 1
    assert told(lake, PROFILES) == told(left, PROFILES)
    assert sum(row["count"] for row in rows(lake, PROFILES)) == 34 - 1


def test_a_broker_does_not_take_the_plan_of_who_was_killed_and_of_the_next_moves_messages_once(
    spark: SparkSession, killed: Path, tmp_path: Path
) -> None:
    lake = killed / "taken"
    shutil.copytree(killed / "a", tmp_path / "a")
    (cut,) = (place.name.removeprefix("run=") for place in (lake / "plans").glob("run=*"))
    # To a run a plan is nothing: it counts what was told as if there had been none.
    record = run(spark, Arguments(lake, bounded=False))
    assert (record.events, record.rejected, record.duplicates, record.missing) == (34, 1, 1, 2)
    decided_ms = max(row["decided_at_ms"] for row in rows(lake))
    config = {
        "node": "a",
        "feed": {"lake": str(lake), "plans_every_ms": 0},
        "devices": {**DEVICES, "archive": ARCHIVE},
    }
    with Broker.open(tmp_path / "a", config, ManualClock(decided_ms + 1_000)) as broker:
        until_usable(broker)
        with pytest.raises(UnknownRun):
            broker.apply_plans(cut)
        for _ in range(2):
            taken = {each.table: each for each in broker.apply_plans(record.run)}["plans"]
            assert (taken.rows, taken.refused) == (16, {})
            wait_until(lambda: broker.engine.holdings.counts("archive") == (16, 0), "all are moved")
        assert {each.copies for each in broker.peek("orders", 100)} == {("archive",)}
    copied = Counter(
        row["message_id"]
        for place in (lake / "events").rglob("node=a/*.parquet")
        for row in pq.read_table(place, partitioning=None).to_pylist()
        if row["event"] == "copied"
    )
    assert sorted(copied.values()) == [1] * 16


def test_neither_the_time_zone_of_the_driver_nor_that_of_spark_changes_anything(
    killed: Path, never: Record
) -> None:
    found = told(killed / "reported")
    assert found == told(killed / "never")
    assert len(found["plans"]) == 16
    hours = {row["hour_ms"] for row in rows(killed / "reported", PROFILES)}
    assert len(hours) == 2
    assert all(hour_ms % 3_600_000 == 0 for hour_ms in hours)
