"""What a run goes on from: if that is damaged, nothing it counted is taken for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest

from ebbmq import QueueSpec
from ebbmq.feed import claims, layout, runs
from ebbmq.feed.manifests import Manifest, UnknownFeed, encode
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import Record
from ebbmq.feed.steps import STEPS
from ebbmq_spark import soundness
from ebbmq_spark.jobs import going_on, history, writing
from ebbmq_spark.jobs.running import Arguments, figures, run, run_plan
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.lake import opened, visible
from tests.pipeline.handwritten import tell, wiped
from tests.pipeline.lakes import ADAPT, DAY_MS, Node
from tests.pipeline.rows import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbmq.feed.manifests import Part
    from ebbmq.feed.table import Table

#: Its rates rise with every run, so that there is always one to be damaged.
EAGER = QueueSpec(
    "orders",
    score_per_day=10.0,
    score_medium=50.0,
    score_high=100.0,
    tiers=("ssd", "hdd", "s3"),
    adapt=msgspec.structs.replace(ADAPT, dwell_ms=0),
)


def cut_off(lake: Path, manifest: Manifest) -> str:
    path = lake / largest(manifest).path
    path.write_bytes(path.read_bytes()[:-50])
    return "bytes instead of"


def damaged_inside(lake: Path, manifest: Manifest) -> str:
    wiped(lake / largest(manifest).path)
    return "cannot be read"


def of_a_future_version(lake: Path, manifest: Manifest) -> str:
    told = encode(msgspec.structs.replace(manifest, version=99))
    (lake / soundness.name_of(manifest)).write_bytes(told)
    return "version 99"


Harm = Callable[[Path, Manifest], str]


def newest(lake: Path, table: Table) -> Manifest:
    """The newest manifest that is as it should be."""
    return max(visible(lake, table).manifests, key=lambda each: each.written_at_ms)


def largest(manifest: Manifest) -> Part:
    return max(manifest.parts, key=lambda part: part.rows)


def published(lake: Path) -> int:
    files = [lake / part.path for part in newest(lake, PROFILES).parts]
    told = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    return sum(row["count"] for row in told if row["event"] == "published")


def worked(spark: SparkSession, node: Node) -> Record:
    """Twenty messages, thirty events, and a run that counts them."""
    node.work(EAGER, took_ms=4_000)
    node.clock.advance(10)
    return run(spark, Arguments(node.lake, bounded=False))


@pytest.mark.parametrize(
    ("table", "harm"),
    [
        (PROFILES, cut_off),
        (PROFILES, damaged_inside),
        (PROFILES, of_a_future_version),
        (STEPS, damaged_inside),
        (RATES, cut_off),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_run_counts_anew_what_a_run_before_it_counted_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path, table: Table, harm: Harm
) -> None:
    with Node(tmp_path, "a") as node:
        first = worked(spark, node)
        second = worked(spark, node)
        lake, manifest = node.lake, newest(node.lake, table)
        why = harm(lake, manifest)
        third = worked(spark, node)
    name = soundness.name_of(manifest)
    assert why in third.refused[name]
    assert third.notes[-1] == (
        f"what later runs counted cannot be read, so this one goes on from {first.run}"
    )
    assert (first.events, second.events, third.events) == (30, 30, 60)
    assert (third.duplicates, third.missing, third.impossible) == (0, 0, 0)
    assert published(lake) == 60
    # What is wrong is of no importance for those after it.
    fourth = run(spark, Arguments(lake))
    assert not any("cannot be read" in note for note in fourth.notes)
    assert (fourth.events, published(lake)) == (0, 60)


@pytest.mark.parametrize("harm", [cut_off, damaged_inside])
def test_where_no_run_can_be_gone_on_from_it_is_refused_by_name_until_it_is_told_to_count_anew(
    spark: SparkSession, tmp_path: Path, harm: Harm
) -> None:
    with Node(tmp_path, "a") as node:
        first = worked(spark, node)
        manifest = newest(node.lake, PROFILES)
        why = harm(node.lake, manifest)
        with pytest.raises(UnknownFeed, match=why) as refused:
            worked(spark, node)
        assert "--full" in refused.value.action
        assert [each.run for each in history.read(node.lake).records] == [first.run]
        assert run_plan(spark, Arguments(node.lake)).messages, "a plan needs none of it"
        full = run(spark, Arguments(node.lake, full=True))
        assert why in full.refused[soundness.name_of(manifest)]
        assert (full.events, published(node.lake)) == (60, 40)
        assert worked(spark, node).events == 30
        assert published(node.lake) == 60


def test_what_a_run_counted_and_is_not_there_is_counted_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        first = worked(spark, node)
        worked(spark, node)
        (node.lake / soundness.name_of(newest(node.lake, PROFILES))).unlink()
        third = worked(spark, node)
    assert first.run in third.notes[-1]
    assert (third.events, published(node.lake)) == (60, 60)


def test_a_record_that_cannot_be_read_is_named_and_its_run_done_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        first = worked(spark, node)
        second = worked(spark, node)
        name = runs.record_file(second.run)
        (node.lake / name).write_bytes(b'{"format": 9}')
        third = worked(spark, node)
    assert "of format 9" in third.refused[name]
    assert first.run in third.notes[-1]
    assert (third.events, third.duplicates, published(node.lake)) == (60, 0, 60)


def test_what_else_is_in_the_history_keeps_no_run_from_going_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        node.work(EAGER)
        node.clock.advance(10)
        early, late = (runs.record_file(f"{year}1118T000000000Z") for year in (2000, 2100))
        for name in (early, late):
            (node.lake / name).parent.mkdir(exist_ok=True)
            (node.lake / name).write_bytes(b'{"format": 9}')  # of a stream, for all one knows
        first = run(spark, Arguments(node.lake))
        second = worked(spark, node)
    assert first.refused.keys() == second.refused.keys() == {early, late}
    assert not any("goes on from" in note for note in (*first.notes, *second.notes))
    assert (first.events, second.events) == (30, 30)


def test_of_runs_whose_tables_are_not_kept_nothing_is_told(tmp_path: Path) -> None:
    claims.claim(tmp_path, "a")
    lake = opened(tmp_path)
    for number in range(9):
        name = history.run_name(NOW_MS + number)
        told = Record(run=name, kind="run", started_at_ms=0, ended_at_ms=0, counted=name)
        lake.create(runs.record_file(name), runs.encode(told))
    found = going_on.base(lake, history.read(lake), {}, anew=True)
    assert (found.record, len(found.refused)) == (None, history.NEEDED)


@pytest.mark.parametrize(
    ("table", "harm"),
    [(PROFILES, damaged_inside), (RATES, of_a_future_version), (PLANS, damaged_inside)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_report_names_what_it_cannot_read_and_shows_what_was_before(
    spark: SparkSession, tmp_path: Path, table: Table, harm: Harm
) -> None:
    with Node(tmp_path, "a") as node:
        worked(spark, node)
        before = figures(spark, node.lake)
        node.clock.advance(10 * DAY_MS)
        worked(spark, node)
        manifest = newest(node.lake, table)
        why = harm(node.lake, manifest)
        told = figures(spark, node.lake)
    assert told.record is not None
    assert why in told.record.refused[soundness.name_of(manifest)]
    if table is PLANS:
        assert told.planned == before.planned
    if table is RATES:
        assert told.rates == before.rates


def test_a_stream_does_not_add_to_sums_that_it_cannot_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    asked = Streaming(tmp_path, once=True, partitions=2)
    for number, harm in enumerate((cut_off, damaged_inside, of_a_future_version), 1):
        tell(tmp_path, 10 * number, [{"seq": 10 * number}], at_ms=NOW_MS)
        stream(spark, asked)
        assert published(tmp_path) == 2 * number - 1
        manifest = newest(tmp_path, PROFILES)
        kept = {
            path: path.read_bytes()
            for path in (
                tmp_path / largest(manifest).path,
                tmp_path / soundness.name_of(manifest),
            )
        }
        why = harm(tmp_path, manifest)
        tell(tmp_path, 10 * number + 1, [{"seq": 10 * number + 1}], at_ms=NOW_MS)
        with pytest.raises(UnknownFeed, match=why) as refused:
            stream(spark, asked)
        assert str(tmp_path / "_state" / "stream") in refused.value.action
        for path, stored in kept.items():
            path.write_bytes(stored)
        stream(spark, asked)
        assert published(tmp_path) == 2 * number


def test_old_runs_are_cleared_away_beside_a_manifest_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(10 * DAY_MS)
        lake = node.lake
        first = run_plan(spark, Arguments(lake))
        run_plan(spark, Arguments(lake))
        of_a_future_version(lake, newest(lake, PLANS))
        for _ in range(3):
            run_plan(spark, Arguments(lake))
        place = lake / layout.run_directory("plans", first.run)
        assert place.exists()
        writing.sweep(opened(lake), PLANS, 2)
    assert not place.exists()
