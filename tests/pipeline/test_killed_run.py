"""kill -9 of the driver of a run, a plan, a report or a simulation, wherever it is.

The next one ends up as if nothing had been.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from ebbmq import Broker
from ebbmq.cli.main import cli
from ebbmq.feed import layout, runs
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.testing import ManualClock
from ebbmq_spark import session
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.simulation.sweep import read_sweep
from tests.advice import until_usable
from tests.feeds import manifests_of
from tests.pipeline.handwritten import tell
from tests.pipeline.lakes import DAY_MS, DEVICES, Node, rows
from tests.pipeline.stopped_driver import (
    ALONE,
    BEST,
    PAGE,
    PICTURE,
    POINTS,
    RUNS,
    SWEEP,
    TRACE,
    commands,
)
from tests.pipeline.test_apply import ARCHIVE
from tests.serving import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table

pytestmark = pytest.mark.crash

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEADLINE_S = 600
#: A quarter of an hour and half an hour off the hours of UTC, in Java and in Python.
ELSEWHERE = "Asia/Kathmandu"
TABLES = (PLANS, PROFILES, RATES)
#: What is of one run: its name, when it was, and in `reason` how faded a message was by then.
ANEW = {"run", "decided_at_ms", "until_ms", "reason", "sketch"}


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
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    for name in (PAGE, PICTURE, BEST):
        (directory / name).write_text("before")
    (directory / SWEEP).write_text("[sweep]\ndecay_rate = [1.0]\n")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.stopped_driver", str(directory)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA, "TZ": ELSEWHERE},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "stopped\n"
            deadline = time.monotonic() + DEADLINE_S
            # In the middle of what Spark writes; it may have ended before that is seen.
            while child.poll() is None and not is_writing(directory / RUNS):
                assert time.monotonic() < deadline, "it never came so far"
                time.sleep(0.001)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    shutil.copytree(directory / "alone: plans shown", directory / "taken")
    return directory


def is_writing(lake: Path) -> bool:
    return any(lake.glob("plans/run=*/_temporary"))


@pytest.fixture(scope="module")
def never(spark: SparkSession, killed: Path) -> Record:
    """What a run that was never killed says of itself."""
    return run(spark, Arguments(killed / "never", bounded=False))


@pytest.mark.parametrize("point", [*POINTS, RUNS])
def test_after_a_kill_the_next_run_ends_up_as_one_that_was_never_killed(
    spark: SparkSession, killed: Path, never: Record, point: str
) -> None:
    lake = killed / point
    for table in TABLES:
        manifests_of(lake, table)  # what is visible is all there
    before = records(lake)
    assert len(before) == (point == "recorded") or point == RUNS
    record = run(spark, Arguments(lake, bounded=False))
    assert [each.run for each in records(lake)] == [*(each.run for each in before), record.run]
    assert told(lake) == told(killed / "never")
    assert record.read == never.read
    assert record.looked_at == never.looked_at
    assert record.actions == never.actions
    counts = [
        (each.events, each.rejected, each.duplicates, each.missing) for each in (*before, record)
    ]
    assert tuple(map(sum, zip(*counts, strict=True))) == (34, 1, 1, 3)
    assert record.counted == (before or [record])[0].run
    assert_nothing_is_left(lake)
    kept = {place.name for place in (lake / "events" / layout.REJECTED).iterdir()}
    assert kept == {f"run={(before or [record])[0].run}"}


def assert_nothing_is_left(lake: Path) -> None:
    """All that is there of tables is what manifests name."""
    for table in TABLES:
        seen = {layout.told_in(p.path, "run") for m in manifests_of(lake, table) for p in m.parts}
        left = {layout.told_in(place.name, "run") for place in (lake / table.name).glob("run=*")}
        assert left == seen
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
    assert [each.run for each in records(lake)] == [*(each.run for each in before), record.run]
    assert told(lake, PLANS) == told(killed / "never", PLANS)
    assert (record.looked_at, record.actions) == (never.looked_at, never.actions)
    assert_nothing_is_left(lake)


def test_a_broker_that_takes_the_plan_of_who_was_killed_and_the_next_one_moves_messages_once(
    spark: SparkSession, killed: Path, tmp_path: Path
) -> None:
    lake = killed / "taken"
    shutil.copytree(killed / "a", tmp_path / "a")
    (cut,) = (place.name.removeprefix("run=") for place in (lake / "plans").glob("run=*"))
    # To a run a plan is nothing: it counts what was told as if there had been none.
    record = run(spark, Arguments(lake, bounded=False))
    assert (record.events, record.rejected, record.duplicates, record.missing) == (34, 1, 1, 3)
    decided_ms = max(row["decided_at_ms"] for row in rows(lake))
    config = {
        "node": "a",
        "feed": {"lake": str(lake), "plans_every_ms": 0},
        "devices": {**DEVICES, "archive": ARCHIVE},
    }
    with Broker.open(tmp_path / "a", config, ManualClock(decided_ms + 1_000)) as broker:
        until_usable(broker)
        for name in (cut, record.run):
            taken = {each.table: each for each in broker.apply_plans(name)}["plans"]
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


def test_after_a_kill_what_commands_write_is_whole_or_as_it_was_and_they_can_be_given_again(
    spark: SparkSession, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [(killed / name).read_text() for name in (PAGE, PICTURE)] == ["before"] * 2
    assert read_sweep((killed / BEST).read_bytes(), BEST).queues.keys() == {"work"}
    assert pq.read_metadata(killed / TRACE).num_rows == 300
    monkeypatch.setattr(session, "spark_session", lambda *_: contextlib.nullcontext(spark))
    for name in (*POINTS[-1:], SWEEP):
        (tmp_path / name).symlink_to(killed / name)
    for words in commands(tmp_path).values():
        cli.main(words, standalone_mode=False)
    assert records(killed / POINTS[-1])[-1].run in (tmp_path / PAGE).read_text()
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
    for name in (BEST, TRACE):
        assert (tmp_path / name).read_bytes() == (killed / name).read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_neither_the_time_zone_of_the_driver_nor_that_of_spark_changes_anything(
    killed: Path, never: Record
) -> None:
    found = told(killed / "reported")
    assert found == told(killed / "never")
    assert len(found["plans"]) == 16
    hours = {row["hour_ms"] for row in rows(killed / "reported", PROFILES)}
    assert len(hours) == 2
    assert all(hour_ms % 3_600_000 == 0 for hour_ms in hours)
