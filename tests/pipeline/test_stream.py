"""Following a lake: every event is counted once, whatever happens to who counts."""

from __future__ import annotations

import shutil
import signal
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ebbmq.feed import layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.profiles import PROFILES
from ebbmq_spark.jobs import history
from ebbmq_spark.jobs.events_source import FORMAT, EventsSource
from ebbmq_spark.jobs.running import Arguments as RunArguments
from ebbmq_spark.jobs.running import figures, run, run_plan
from ebbmq_spark.jobs.stream import Arguments, stream
from ebbmq_spark.jobs.writing import RUNS_KEPT, sweep_aside
from ebbmq_spark.lake import opened
from ebbmq_spark.transforms.streamed import once
from tests.feeds import manifests_of
from tests.pipeline.handwritten import show, tell
from tests.pipeline.killing import killed_driver, wait_patiently
from tests.pipeline.lakes import Node, rows
from tests.pipeline.patience import patiently
from tests.pipeline.rows import NOW_MS
from tests.pipeline.stopped_stream import PARTITIONS, POINTS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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


def test_a_report_is_of_what_a_run_counted_whatever_a_stream_has_counted_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    stale = {"event": "stale", "reason": "stale"}
    tell(tmp_path, 1, [{"seq": 1, **stale}], at_ms=now_ms)
    stream(spark, Arguments(tmp_path, once=True, partitions=2))
    # Nobody else counted yet.
    assert figures(spark, tmp_path).losses == [("stale", "stale", 1)]
    later = [tell(tmp_path, number, [{"seq": number, **stale}], at_ms=now_ms) for number in (2, 3)]
    counted = run(spark, RunArguments(tmp_path))
    for path in later:
        path.write_bytes(path.read_bytes()[:-1])
    # One that begins anew, and has not come far.
    begun = Arguments(tmp_path, once=True, partitions=2, state=tmp_path / "begun")
    assert stream(spark, begun).events == 1
    (newest,) = rows(tmp_path, PROFILES)
    assert newest["count"] == 1
    assert figures(spark, tmp_path).losses == [("stale", "stale", 3)]
    # Neither is a plan a run that counts.
    assert run_plan(spark, RunArguments(tmp_path)).counted is None
    assert figures(spark, tmp_path).losses == [("stale", "stale", 3)]
    assert run(spark, RunArguments(tmp_path)).counted == counted.run


def again(lake: Path, number: int) -> None:
    """Have the first file that node a wrote told once more, under another number."""
    first = lake / manifests_of(lake, EVENTS)[0].parts[0].path
    copied = first.with_name(f"again-{number}.parquet")
    shutil.copyfile(first, copied)
    show(lake, copied, number, pq.read_metadata(first).num_rows, boot=99)


def test_an_event_that_is_told_twice_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    twice = {"seq": 3, "event": "leased"}
    tell(tmp_path, 1, [{"seq": 1}, {"seq": 2}, twice, twice, {"seq": 1, "boot": 2}], at_ms=now_ms)
    tell(tmp_path, 2, [twice, {"seq": 4, "event": "acked", "latency_ms": 5}], at_ms=now_ms + 1)
    # What is no event is no duplicate of one either.
    none = [{"seq": None}, {"seq": None}, {"seq": 9, "event": "eaten", "at_ms": None}]
    tell(tmp_path, 3, [*none, {"seq": 1, "node": "b"}], at_ms=now_ms + 2)
    first = stream(spark, Arguments(tmp_path, once=True, partitions=2, files_per_batch=1))
    tell(tmp_path, 4, [{"seq": 2}, {"seq": 5, "event": "peeked"}], at_ms=now_ms + 3)
    second = stream(spark, Arguments(tmp_path, once=True, partitions=2, files_per_batch=1))
    assert (first.events, first.duplicates, first.rejected) == (11, 2, 3)
    assert (second.events, second.duplicates, second.rejected) == (2, 1, 0)
    assert counts(tmp_path) == {
        ("a", "published"): 3, ("a", "leased"): 1, ("a", "acked"): 1, ("a", "peeked"): 1,
        ("a", "rejected"): 3, ("b", "published"): 1,
    }  # fmt: skip


def aside(lake: Path) -> list[tuple[str, int | None, str]]:
    """The rows that were kept aside, in order."""
    found = (lake / "events" / layout.REJECTED).rglob("*.parquet")
    rows = [row for path in found for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted((row["fault"], row["seq"], row["message_id"]) for row in rows)


def test_what_is_no_event_is_kept_aside_with_all_it_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    eaten = {"seq": 2, "event": "eaten", "message_id": "x", "consumer": "c", "device": "d"}
    tell(tmp_path, 1, [{"seq": 1}, eaten], at_ms=now_ms)
    tell(tmp_path, 2, [{"seq": 3}], at_ms=now_ms + 1)
    tell(tmp_path, 3, [eaten, {"seq": 4, "at_ms": -1}], at_ms=now_ms + 2)
    stream(spark, Arguments(tmp_path, once=True, partitions=2, files_per_batch=1))
    told = "no such event: eaten", 2, "x"
    assert aside(tmp_path) == [("at_ms is below 0", 4, "m"), told, told]
    places = sorted((tmp_path / "events" / layout.REJECTED).iterdir())
    assert [each.name.rpartition("-")[2] for each in places] == ["000000000", "000000002"]
    (row, *_) = pq.read_table(places[0], partitioning=None).to_pylist()
    assert (row["consumer"], row["device"], row["at_ms"]) == ("c", "d", now_ms)
    # A run keeps aside what it reads by itself, and leaves that of the stream alone.
    run(spark, RunArguments(tmp_path))
    assert len(aside(tmp_path)) == 6


def test_of_what_a_stream_kept_aside_the_last_stays(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    names = [f"run=stream-17-{number:09d}" for number in range(RUNS_KEPT + 3)]
    for name in (*names, "run=20261116T030000123Z"):
        (tmp_path / "events" / layout.REJECTED / name).mkdir(parents=True)
    sweep_aside(lake, "stream")
    left = sorted(each.name for each in (tmp_path / "events" / layout.REJECTED).iterdir())
    assert left == ["run=20261116T030000123Z", *names[3:]]


def test_what_is_remembered_of_events_is_bounded(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(1, 9):
        rows = [{"seq": 10 * number + n} for n in range(4)]
        # A clock that is a year ahead makes nobody late.
        tell(tmp_path, number, rows, at_ms=NOW_MS + (number % 2) * 365 * 86_400_000 + number)
    spark.dataSource.register(EventsSource)
    told = (
        spark.readStream.format(FORMAT).option("lake", str(tmp_path)).option("filesPerBatch", "1")
    )
    seen: list[int] = []

    def start() -> StreamingQuery:
        return (
            once(told.load(), remembered=6)
            .writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    kept = patiently(lambda: _kept(start()))
    assert sum(seen) == 32
    assert kept <= 12


def _kept(query: StreamingQuery) -> int:
    query.awaitTermination()
    assert query.lastProgress is not None
    (state,) = query.lastProgress["stateOperators"]
    return int(state["numRowsTotal"])


def test_what_is_remembered_is_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    tell(tmp_path, 1, [{"seq": 1}], at_ms=NOW_MS)
    stream(spark, Arguments(tmp_path, once=True, partitions=PARTITIONS))
    state = tmp_path / "_state" / "stream" / "checkpoint" / "state"
    kinds = {each.suffix for each in state.rglob("*") if each.is_file()}
    assert ".delta" not in kinds, "Spark's own store keeps what is remembered in RAM"
    assert kinds & {".zip", ".changelog"}


@pytest.mark.crash
def test_kill_9_of_the_driver_counts_nothing_twice_and_leaves_nothing_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        for _ in range(3):
            node.work()
            node.clock.advance(10)
    again(lake, 1)
    at_ms = time.time_ns() // 1_000_000
    for number in range(1, 4):
        odd = [{"seq": 2 * number}, {"seq": 2 * number + 1, "event": "eaten"}]
        tell(lake, number, odd, node="odd", at_ms=at_ms + number)
    for point in POINTS:
        killed_at(lake, point, tmp_path / point)
    again(lake, 2)
    stream(spark, Arguments(lake, once=True, partitions=PARTITIONS, files_per_batch=1))
    odd_ones = {("odd", "published"): 3, ("odd", "rejected"): 3}
    assert counts(lake) == {**expected({"a": 3}), **odd_ones}
    assert aside(lake) == [("no such event: eaten", seq, "m") for seq in (3, 5, 7)]


def killed_at(lake: Path, point: str, reached: Path) -> None:
    """Stream, and kill it, Java and all, when it is so far."""
    words = (str(lake), point, str(reached))
    with killed_driver("tests.pipeline.stopped_stream", *words) as driver:
        wait_patiently(lambda: reached.exists() or driver.poll() is not None)
        assert driver.poll() is None, f"it ended with {driver.returncode}"
    assert driver.returncode == -signal.SIGKILL
