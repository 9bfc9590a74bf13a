"""Following a lake: every event is counted once, whatever happens to who counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ebbmq.feed import layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.profiles import PROFILES
from ebbmq_spark.jobs import history
from ebbmq_spark.jobs.stream import Arguments, stream
from tests.feeds import manifests_of
from tests.pipeline.lakes import Node, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEADLINE_S = 240


def counts(lake: Path) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in rows(lake, PROFILES):
        key = row["node"], row["event"]
        found[key] = found.get(key, 0) + row["count"]
    return found


def expected(nodes: dict[str, int]) -> dict[tuple[str, str], int]:
    one = {"published": 20, "leased": 5, "acked": 4, "retried": 1}
    return {
        (node, event): count * times
        for node, times in nodes.items()
        for event, count in one.items()
    }


def test_what_is_told_is_counted_as_it_comes(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        for _ in range(2):
            node.work()
            node.clock.advance(10)
        torn = lake / manifests_of(lake, EVENTS)[0].parts[0].path
        kept = torn.read_bytes()
        torn.write_bytes(kept[:-1])
        first = stream(spark, Arguments(lake, once=True, partitions=2))
        torn.write_bytes(kept)
        node.work()
    with Node(tmp_path, "b") as other:
        other.work(took_ms=700)
    second = stream(spark, Arguments(lake, once=True, partitions=2, files_per_batch=2))
    assert first.events + second.events == 120
    assert counts(lake) == expected({"a": 3, "b": 1})
    (slow,) = (
        row for row in rows(lake, PROFILES) if row["node"] == "b" and row["event"] == "acked"
    )
    assert (slow["samples"], slow["p50_ms"], slow["p99_ms"]) == (4, 700, 700)
    assert [each.kind for each in history.read(lake).records] == ["stream", "stream"]


def pending(lake: Path) -> Path:
    return lake / "_state" / "stream" / "checkpoint"


def a_batch_is_begun(lake: Path) -> bool:
    return (pending(lake) / "offsets" / "1").exists()


def a_batch_is_written(lake: Path) -> bool:
    shown = list((lake / "profiles" / layout.MANIFESTS).rglob("*-stream-*.json"))
    return len(shown) > len(list((pending(lake) / "commits").glob("[0-9]*")))


@pytest.mark.crash
def test_kill_9_of_the_driver_counts_nothing_twice_and_leaves_nothing_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        for _ in range(3):
            node.work()
            node.clock.advance(10)
    for stage in (a_batch_is_begun, a_batch_is_written):
        killed_at(lake, stage)
    stream(spark, Arguments(lake, once=True, partitions=4, files_per_batch=1))
    assert counts(lake) == expected({"a": 3})


def killed_at(lake: Path, stage: Callable[[Path], bool]) -> None:
    """Stream, and kill it, Java and all, as soon as it is so far; it may have ended before."""
    child = subprocess.Popen(
        [sys.executable, "-m", "ebbmq.cli", "pipeline", "stream", "--lake", str(lake), "--once",
         "--files-per-batch", "1", "--master", "local[2]", "--memory", "512m"],
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + DEADLINE_S
    while not stage(lake) and child.poll() is None:
        assert time.monotonic() < deadline, "it never came so far"
        time.sleep(0.002)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
