"""Files of a lake that are not as they should be: named, tried again, and nobody else's loss."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq.feed import claims, layout
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import Part, UnknownFeed, encode
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark import soundness
from ebbmq_spark.attempts import JobFailed
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.jobs.stream import Arguments as Streamed
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.simulation.generate import generate
from ebbmq_spark.simulation.study import study_lake, study_trace
from ebbmq_spark.simulation.sweep import Sweep, TrafficSpec
from ebbmq_spark.simulation.traffic import InvalidTrace
from tests.feeds import manifests_of
from tests.pipeline.handwritten import show, tell, wiped
from tests.pipeline.lakes import DAY_MS, Node, rows
from tests.pipeline.loads import save
from tests.pipeline.rows import STORED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = 50


class Lake(NamedTuple):
    """A lake to be harmed, and when it is."""

    root: Path
    now_ms: int

    def tell(self, number: int, **changes: Any) -> Path:
        """A file of some events, and its manifest."""
        told = [{"seq": 100 * number + n, "message_id": f"{number}-{n}"} for n in range(ROWS)]
        return tell(self.root, number, told, at_ms=self.now_ms, **changes)

    def done(self, message: str) -> Path:
        """A file that tells of a message that it was done."""
        told = {"seq": 10_000, "message_id": message, "event": "acked", "latency_ms": 20}
        return tell(self.root, 100, [told], at_ms=self.now_ms)

    def show(self, path: Path, number: int, count: int = ROWS, **changes: Any) -> None:
        """Another manifest for it."""
        show(self.root, path, number, count, at_ms=self.now_ms, **changes)

    def manifest(self, number: int) -> Path:
        """The manifest of a file."""
        return self.root / layout.manifest_file("events", self.now_ms, "a", 1, number)


def of_a_future_version(lake: Lake, number: int) -> str:
    lake.tell(number, version=9)
    return "version 9 of events"


def that_says_itself_it_is_of_a_future_version(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    table = pq.read_table(path, partitioning=None)
    told = {**schema_of(EVENTS).metadata, b"ebbmq.version": b"9"}
    pq.write_table(table.replace_schema_metadata(told), path)
    lake.show(path, number)
    return "version 9 of events"


def that_is_no_parquet(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    path.write_bytes(b"nothing of the kind" * 100)
    lake.show(path, number)
    return "cannot be read"


def that_was_cut_off_before_its_manifest_was_written(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    path.write_bytes(path.read_bytes()[:-300])
    lake.show(path, number)
    return "cannot be read"


def that_was_cut_off(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    path.write_bytes(path.read_bytes()[:-1])
    return "bytes instead of"


def that_is_missing(lake: Lake, number: int) -> str:
    lake.tell(number).unlink()
    return "is missing"


def with_texts_for_numbers(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    table = pq.read_table(path, partitioning=None)
    texts = table.column("seq").cast(pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("seq"), "seq", texts), path)
    lake.show(path, number)
    return "has string in column seq instead of int64"


def without_a_column_that_every_row_has(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["event"]), path)
    lake.show(path, number)
    return "has 0 columns event"


def of_another_table(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    row = {**dict.fromkeys(CATALOG.names), **STORED}
    pq.write_table(pa.Table.from_pylist([row] * ROWS, schema_of(CATALOG)), path)
    lake.show(path, number)
    return "is of catalog instead of events"


def of_another_table_that_does_not_say_so(lake: Lake, number: int) -> str:
    path = lake.tell(number)
    row = {**dict.fromkeys(CATALOG.names), **STORED}
    table = pa.Table.from_pylist([row] * ROWS, schema_of(CATALOG))
    pq.write_table(table.replace_schema_metadata(), path)
    lake.show(path, number)
    return "has 0 columns seq"


def with_other_rows(lake: Lake, number: int) -> str:
    lake.show(lake.tell(number), number, 7)
    return f"has {ROWS} rows instead of 7"


def outside_of_the_lake(lake: Lake, number: int) -> str:
    lake.tell(number, parts=(Part("../../etc/passwd", 1, 1),))
    return "outside of the lake"


def whose_manifest_is_torn(lake: Lake, number: int) -> str:
    lake.tell(number)
    lake.manifest(number).write_bytes(b'{"format": 1, "tab')
    return "is no manifest"


def whose_manifest_is_of_another_format(lake: Lake, number: int) -> str:
    lake.tell(number)
    lake.manifest(number).write_bytes(b'{"format": 9, "table": "events", "version": 1}')
    return "of format 9"


HARMS: tuple[Callable[[Lake, int], str], ...] = (
    of_a_future_version,
    that_says_itself_it_is_of_a_future_version,
    that_is_no_parquet,
    that_was_cut_off_before_its_manifest_was_written,
    that_was_cut_off,
    that_is_missing,
    with_texts_for_numbers,
    without_a_column_that_every_row_has,
    of_another_table,
    of_another_table_that_does_not_say_so,
    with_other_rows,
    outside_of_the_lake,
    whose_manifest_is_torn,
    whose_manifest_is_of_another_format,
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, time.time_ns() // 1_000_000)


def harmed(lake: Lake) -> dict[str, str]:
    """Two sound files around those that are not; by manifest, what is to be told of it."""
    lake.tell(1)
    told = {}
    for number, harm in enumerate(HARMS, 2):
        told[str(lake.manifest(number).relative_to(lake.root))] = harm(lake, number)
    lake.tell(len(HARMS) + 2)
    return told


def published(lake: Lake) -> int:
    return sum(row["count"] for row in rows(lake.root, PROFILES) if row["event"] == "published")


def test_a_run_names_what_it_cannot_read_reads_the_rest_and_tries_again(
    spark: SparkSession, lake: Lake
) -> None:
    told = harmed(lake)
    first = run(spark, Arguments(lake.root))
    assert first.refused.keys() == told.keys()
    for name, what in told.items():
        assert what in first.refused[name]
    assert (first.events, published(lake)) == (2 * ROWS, 2 * ROWS)
    for number in range(2, len(HARMS) + 2):
        lake.tell(number)
    second = run(spark, Arguments(lake.root))
    assert (second.events, second.refused) == (len(HARMS) * ROWS, {})
    assert published(lake) == (len(HARMS) + 2) * ROWS


def test_a_stream_reads_the_rest_too_and_what_is_mended_later(
    spark: SparkSession, lake: Lake
) -> None:
    harmed(lake)
    first = stream(spark, Streamed(lake.root, once=True, partitions=2))
    assert (first.events, published(lake)) == (2 * ROWS, 2 * ROWS)
    for number in range(2, len(HARMS) + 2):
        lake.tell(number)
    second = stream(spark, Streamed(lake.root, once=True, partitions=2))
    assert second.events == len(HARMS) * ROWS
    assert published(lake) == (len(HARMS) + 2) * ROWS


def test_a_file_that_is_damaged_inside_keeps_nobody_from_reading_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    with Node(tmp_path, "n") as node:
        node.work()
        node.clock.advance(10 * DAY_MS)
    lake = Lake(root, time.time_ns() // 1_000_000)
    lake.tell(1)
    wiped(lake.tell(2))
    newest = max(manifests_of(root, CATALOG), key=lambda each: (each.boot, each.number))
    wiped(root / newest.parts[0].path)
    record = run(spark, Arguments(root, bounded=False))
    assert len(record.refused) == 2
    assert all("cannot be read" in why for why in record.refused.values())
    assert (record.events, record.messages) == (30 + ROWS, 16)
    # What was told since the snapshot is read to plan, too.
    wiped(tell(root, 1, [{"seq": 1}] * ROWS, node="n", at_ms=lake.now_ms, boot=9))
    planned = run_plan(spark, Arguments(root, bounded=False))
    assert planned.actions == record.actions
    lake.tell(2)
    again = run(spark, Arguments(root, bounded=False))
    assert again.events == ROWS
    assert again.refused.keys() - record.refused.keys() == {
        layout.manifest_file("events", lake.now_ms, "n", 9, 1)
    }


def test_a_snapshot_with_another_type_in_it_is_named_and_the_one_before_is_planned_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    with Node(tmp_path, "n") as node:
        node.work()
        node.clock.advance(10 * DAY_MS)
    newest = max(manifests_of(root, CATALOG), key=lambda each: (each.boot, each.number))
    (part,) = newest.parts
    path = root / part.path
    table = pq.read_table(path, partitioning=None)
    small = table.column("importance").cast(pa.int64())
    at = table.schema.get_field_index("importance")
    pq.write_table(table.set_column(at, "importance", small), path)
    changed = msgspec.structs.replace(part, bytes=path.stat().st_size)
    place = root / soundness.name_of(newest)
    place.write_bytes(encode(msgspec.structs.replace(newest, parts=(changed,))))
    record = run_plan(spark, Arguments(root, bounded=False))
    (why,) = record.refused.values()
    assert "has int64 in column importance instead of int32" in why
    assert record.messages == 16


SWEEP = Sweep(traffic=TrafficSpec(useful_ms=1_000, consumers=1), policies={"today": {}})


def test_a_simulation_names_what_it_cannot_read_and_replays_the_rest(
    spark: SparkSession, lake: Lake
) -> None:
    told = harmed(lake)
    lake.done("1-0")
    found = study_lake(spark, lake.root, SWEEP)
    assert {each.messages for each in found.studies[0].outcomes} == {2 * ROWS}
    assert len(found.refused) == len(told)
    for what in told.values():
        assert any(what in each.detail for each in found.refused), what


def test_a_simulation_goes_on_without_a_file_that_is_damaged_inside(
    spark: SparkSession, lake: Lake
) -> None:
    lake.tell(1)
    wiped(lake.tell(2))
    done = lake.done("1-0")
    found = study_lake(spark, lake.root, SWEEP)
    assert {each.messages for each in found.studies[0].outcomes} == {ROWS}
    (refused,) = found.refused
    assert "1-000000002.parquet cannot be read" in refused.detail
    for path in (lake.tell(1), done):
        wiped(path)
    with pytest.raises(UnknownFeed, match=r"parquet cannot be read"):
        study_lake(spark, lake.root, SWEEP)


def test_a_trace_that_is_damaged_is_named_in_a_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "trace.parquet"
    save(generate("bursts", 500, seed=1), path)
    wiped(path)
    with pytest.raises(JobFailed, match="did not carry it through"):
        study_trace(spark, str(path), SWEEP)
    path.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(InvalidTrace, match="cannot be read as Parquet"):
        study_trace(spark, str(path), SWEEP)


def test_a_stream_that_meets_a_damaged_file_names_it_and_goes_on_without_it_when_told(
    spark: SparkSession, lake: Lake
) -> None:
    lake.tell(1)
    wiped(lake.tell(2))
    with pytest.raises(UnknownFeed, match=r"1-000000002\.parquet cannot be read") as refused:
        stream(spark, Streamed(lake.root, once=True, partitions=2))
    name = str(lake.manifest(2).relative_to(lake.root))
    assert f"remove {name} to go on" in refused.value.action
    lake.manifest(2).unlink()
    lake.tell(3)
    stream(spark, Streamed(lake.root, once=True, partitions=2))
    assert published(lake) == 2 * ROWS


def test_a_stream_of_an_empty_lake_has_nothing_to_tell(spark: SparkSession, lake: Lake) -> None:
    claims.claim(lake.root, "a")
    record = stream(spark, Streamed(lake.root, once=True, partitions=2))
    assert (record.events, record.duplicates) == (0, 0)
    assert list(rows(lake.root, PROFILES)) == []
