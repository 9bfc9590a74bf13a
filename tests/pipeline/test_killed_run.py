"""kill -9 of the driver of a run, wherever it is: the next one ends up as if nothing had been."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq.feed import layout, runs
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq_spark.jobs.running import Arguments, run
from tests.feeds import manifests_of
from tests.pipeline.handwritten import tell
from tests.pipeline.lakes import DAY_MS, Node, rows
from tests.pipeline.stopped_driver import POINTS, RUNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbmq.feed.runs import Record

pytestmark = pytest.mark.crash

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEADLINE_S = 600
#: A quarter of an hour and half an hour off the hours of UTC, in Java and in Python.
ELSEWHERE = "Asia/Kathmandu"
TABLES = (PLANS, PROFILES, RATES)
#: What is of one run: its name, when it was, and in `reason` how faded a message was by then.
ANEW = {"run", "decided_at_ms", "until_ms", "reason", "sketch"}


def told(lake: Path) -> dict[str, list[tuple[Any, ...]]]:
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
        for table in TABLES
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
    for point in (*POINTS, RUNS, "never"):
        shutil.copytree(directory / "lake", directory / point)
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
    for table in TABLES:
        seen = {layout.told_in(p.path, "run") for m in manifests_of(lake, table) for p in m.parts}
        left = {layout.told_in(place.name, "run") for place in (lake / table.name).glob("run=*")}
        assert left == seen
    kept = {place.name for place in (lake / "events" / layout.REJECTED).iterdir()}
    assert kept == {f"run={(before or [record])[0].run}"}
    assert not list(lake.rglob("_temporary"))


def test_neither_the_time_zone_of_the_driver_nor_that_of_spark_changes_anything(
    killed: Path, never: Record
) -> None:
    found = told(killed / "reported")
    assert found == told(killed / "never")
    assert len(found["plans"]) == 16
    hours = {row["hour_ms"] for row in rows(killed / "reported", PROFILES)}
    assert len(hours) == 2
    assert all(hour_ms % 3_600_000 == 0 for hour_ms in hours)
