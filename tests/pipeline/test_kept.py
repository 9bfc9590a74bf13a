"""What a run clears away is never what the next one goes on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ebbmq import QueueSpec
from ebbmq.feed import claims, layout, runs
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import Record
from ebbmq_spark.jobs import history
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.jobs.writing import RUNS_KEPT, WHOLE_KEPT
from ebbmq_spark.lake import opened
from tests.feeds import manifests_of
from tests.pipeline.handwritten import tell
from tests.pipeline.lakes import ADAPT, Node, rows
from tests.pipeline.rows import NOW_MS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def record(lake: Path, name: str, **told: Any) -> Record:
    """Leave the record of a run there was not."""
    made = Record(run=name, started_at_ms=0, ended_at_ms=0, **told)
    opened(lake).create(runs.record_file(made.run), runs.encode(made))
    return made


def published(lake: Path) -> int:
    return sum(row["count"] for row in rows(lake, PROFILES) if row["event"] == "published")


def test_a_run_goes_on_from_the_last_one_however_many_plans_there_were_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    eager = QueueSpec("orders", adapt=msgspec.structs.replace(ADAPT, dwell_ms=0))
    with Node(tmp_path, "a") as node:
        node.work(eager, took_ms=4_000)
        node.clock.advance(10)
        first = run(spark, Arguments(lake))
        for number in range(RUNS_KEPT + 5):
            record(lake, f"{first.run}x{number}", kind="plan")  # between this one and the next
        run_plan(spark, Arguments(lake))
        found = history.read(lake)
        assert [each.kind for each in found.records].count("plan") == RUNS_KEPT
        assert found.last("run") == first
        node.work(eager, took_ms=4_000)
    second = run(spark, Arguments(lake))
    assert (first.events, second.events) == (30, 30)
    assert published(lake) == 40
    assert [row["factor"] for row in rows(lake, RATES)] == [4.0], "the second step"


def test_of_each_kind_the_last_records_stay_with_the_rows_they_rejected(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = [history.run_name(NOW_MS + 2 * number) for number in range(RUNS_KEPT + 2)]
    for number, name in enumerate(names):
        record(tmp_path, name, kind="run")
        record(tmp_path, history.run_name(NOW_MS + 2 * number + 1), kind="stream")
    aside = tmp_path / "events" / layout.REJECTED
    of_stream = "stream-1-000000001"
    for name in (names[0], names[-1], of_stream, history.run_name(1)):
        (aside / f"run={name}").mkdir(parents=True)
    unknown = tmp_path / runs.record_file(history.run_name(2))
    unknown.write_bytes(b'{"format": 9}')
    claims.claim(tmp_path, "a")
    run_plan(spark, Arguments(tmp_path))
    kinds = [each.kind for each in history.read(tmp_path).records]
    assert (kinds.count("run"), kinds.count("stream"), kinds.count("plan")) == (100, 100, 1)
    assert unknown.exists(), "whoever wrote it may need it"
    assert {each.name for each in aside.iterdir()} == {f"run={names[-1]}", f"run={of_stream}"}


def test_a_stream_alone_on_a_lake_leaves_the_last_records_of_its_kind(
    spark: SparkSession, tmp_path: Path
) -> None:
    tell(tmp_path, 1, [{"seq": 1}], at_ms=NOW_MS)
    for number in range(RUNS_KEPT + 2):
        record(tmp_path, history.run_name(NOW_MS + 2 * number), kind="stream")
        record(tmp_path, history.run_name(NOW_MS + 2 * number + 1), kind="plan")
    last = stream(spark, Streaming(tmp_path, once=True, partitions=2))
    found = history.read(tmp_path)
    kinds = [each.kind for each in found.records]
    assert (kinds.count("stream"), kinds.count("plan")) == (RUNS_KEPT, RUNS_KEPT + 2)
    assert found.last("stream") == last


def test_sums_that_the_next_run_adds_to_stay_whatever_killed_runs_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(10)
        first = run(spark, Arguments(lake))
        node.work()

    def end_between_sums_and_record(doing: str) -> None:
        if doing == "planning":
            raise KeyboardInterrupt

    for _ in range(WHOLE_KEPT):
        with pytest.raises(KeyboardInterrupt):
            run(spark, Arguments(lake), end_between_sums_and_record)
    assert len(manifests_of(lake, PROFILES)) == WHOLE_KEPT + 1
    run_plan(spark, Arguments(lake))
    second = run(spark, Arguments(lake))
    assert (second.events, published(lake)) == (30, 40)
    assert first.counted == first.run
