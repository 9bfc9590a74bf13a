"""A lake is what its manifests say: nothing half written, nothing unknown, nothing from outside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.testing import assertDataFrameEqual

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed import claims, layout
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import TABLES, Manifest, Part, UnknownFeed, encode
from ebbmq.journal.disk import MemoryDisk
from ebbmq.testing import ManualClock
from ebbmq_spark.lake import read_table, visible
from ebbmq_spark.simulation.study import study
from ebbmq_spark.simulation.sweep import Sweep, TrafficSpec
from ebbmq_spark.simulation.traces import read_lake
from ebbmq_spark.simulation.traffic import InvalidTrace
from ebbmq_spark.transforms.recorded import trace_of
from tests.pipeline.rows import NOW_MS, TOLD, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tell(root: Path, number: int, rows: list[dict], **changes: object) -> Path:
    """Write rows as a node does: the file, then the manifest; returns the file."""
    name = layout.events_file(NOW_MS, "a", 1, number)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    full = [{**dict.fromkeys(EVENTS.names), **TOLD, **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=schema_of(EVENTS)), path)
    manifest = Manifest(
        table="events", version=1, node="a", boot=1, number=number, written_at_ms=NOW_MS,
        parts=(Part(name, len(rows), path.stat().st_size),),
    )  # fmt: skip
    manifest = msgspec.structs.replace(manifest, **changes)
    claims.claim(root, "a")
    stored = root / layout.manifest_file("events", NOW_MS, "a", 1, number)
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(encode(manifest))
    return path


def test_what_a_manifest_names_is_read_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = tell(tmp_path, 1, [{"seq": 1}, {"seq": 2, "event": "leased"}])
    tell(tmp_path, 2, [{"seq": 3, "event": "acked", "latency_ms": 5}])
    (first.parent / "half-written.parquet").write_bytes(b"PAR1")
    found = visible(tmp_path, EVENTS)
    assert len(found.manifests) == 2
    assertDataFrameEqual(
        read_table(spark, EVENTS, found.files),
        events(
            spark,
            {"seq": 1},
            {"seq": 2, "event": "leased"},
            {"seq": 3, "event": "acked", "latency_ms": 5},
        ),
    )


def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    tell(tmp_path, 1, [{"seq": 1}])
    tell(tmp_path, 2, [{"seq": 2}], version=9)
    tell(tmp_path, 3, [{"seq": 3}]).write_bytes(b"cut off")
    tell(tmp_path, 4, [{"seq": 4}]).unlink()
    tell(tmp_path, 5, [{"seq": 5}], parts=(Part("../../etc/passwd", 1, 1),))
    torn = tmp_path / layout.manifest_file("events", NOW_MS, "a", 1, 6)
    torn.write_bytes(b'{"format": 1, "tab')
    found = visible(tmp_path, EVENTS)
    assert [manifest.number for manifest in found.manifests] == [1]
    told = " / ".join(error.detail for error in found.refused)
    for what in ("version 9", "7 bytes instead of", "is missing", "outside", "no manifest"):
        assert what in told


def test_an_empty_lake_is_a_table_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    claims.claim(tmp_path, "a")
    assert read_table(spark, EVENTS, visible(tmp_path, EVENTS).files).count() == 0
    with pytest.raises(UnknownFeed, match=r"no lake.*no such directory"):
        visible(tmp_path / "other" / "nowhere", EVENTS)


def test_a_directory_that_no_node_claimed_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "lake" / "events").mkdir(parents=True)
    with pytest.raises(UnknownFeed, match="no node has written to it") as refused:
        visible(tmp_path / "lake", EVENTS)
    assert "feed.lake" in refused.value.action
    assert "its parent" not in refused.value.action
    claims.claim(tmp_path / "lake", "a")
    with pytest.raises(UnknownFeed) as refused:
        visible(tmp_path / "lake" / "events", EVENTS)
    assert f"its parent {tmp_path / 'lake'} is one" in refused.value.action
    assert not visible(tmp_path / "lake", EVENTS).files


def test_recorded_events_are_traffic_to_replay(spark: SparkSession) -> None:
    sent = {"event": "published", "bytes": 50, "importance": 7, "given": "importance ttl_ms"}
    told = events(
        spark,
        {"seq": 1, "message_id": "done", **sent, "ttl_ms": 900, "delay_ms": 3},
        {"seq": 2, "message_id": "failed once", **sent, "at_ms": NOW_MS + 1},
        {"seq": 3, "message_id": "never done", **sent, "at_ms": NOW_MS + 2},
        {"seq": 4, "message_id": "done", "event": "leased", "at_ms": NOW_MS + 5},
        {"seq": 5, "message_id": "failed once", "event": "leased", "at_ms": NOW_MS + 6},
        {"seq": 6, "message_id": "done", "event": "acked", "at_ms": NOW_MS + 15, "latency_ms": 10},
        {"seq": 7, "message_id": "failed once", "event": "retried", "at_ms": NOW_MS + 15,
         "latency_ms": 9},
        {"seq": 8, "message_id": "failed once", "event": "leased", "at_ms": NOW_MS + 15},
        {"seq": 9, "message_id": "failed once", "event": "acked", "at_ms": NOW_MS + 45,
         "latency_ms": 30},
    )  # fmt: skip
    got = sorted(tuple(row) for row in trace_of(told).collect())
    assert got == [
        ("q", NOW_MS, 7, 900, None, 3, 50, 10.0, 0, 900, 2),
        ("q", NOW_MS + 1, 7, None, None, None, 50, 30.0, 1, None, 2),
        ("q", NOW_MS + 2, 7, None, None, None, 50, 20.0, 0, None, 2),
    ]


def test_what_publishers_gave_is_told_apart_from_what_the_queue_did(spark: SparkSession) -> None:
    counted = {"event": "published", "importance": 7, "ttl_ms": 900, "decay_rate": 1.0}
    told = events(
        spark,
        {"seq": 1, "message_id": "a", **counted, "given": "nothing"},
        {"seq": 2, "message_id": "b", **counted, "given": "importance ttl_ms"},
        {"seq": 3, "message_id": "c", **counted, "given": "decay_rate", "given_decay_rate": 0.0},
    )
    got = {
        (row.importance, row.ttl_ms, row.decay_rate, row.useful_ms)
        for row in trace_of(told).collect()
    }
    assert got == {
        (None, None, None, 900),
        (7, 900, None, 900),
        (None, None, 0.0, 900),
    }


def done_after(number: int, took_ms: int, **told: object) -> tuple[dict[str, object], ...]:
    """A message that was published, and done so long after its lease began."""
    return (
        {"seq": number, "event": "published", "bytes": 50, **told},
        {"seq": number + 1, "event": "leased", **told},
        {"seq": number + 2, "event": "acked", "latency_ms": took_ms, **told},
    )


def test_messages_of_two_nodes_that_have_the_same_id_are_two(spark: SparkSession) -> None:
    told = events(spark, *done_after(1, 10, node="a"), *done_after(1, 5_000, node="b"))
    assert sorted(row.service_ms for row in trace_of(told).collect()) == [10.0, 5_000.0]


def test_a_number_that_was_given_anew_after_a_power_cut_is_another_message(
    spark: SparkSession,
) -> None:
    """The first was never on a disk, so that the boot after it gives its number again."""
    told = events(
        spark,
        {"seq": 1, "event": "published", "boot": 1, "bytes": 1},
        {"seq": 2, "event": "retried", "boot": 1, "latency_ms": 3},
        *done_after(1, 10, boot=2),
    )
    got = sorted((row.bytes, row.service_ms, row.failures) for row in trace_of(told).collect())
    assert got == [(1, 10.0, 1), (50, 10.0, 0)]
    # And what is done after a restart was published before it.
    told = events(
        spark,
        {"seq": 7, "event": "published", "boot": 1},
        {"seq": 2, "event": "acked", "boot": 2, "latency_ms": 30},
    )
    assert [row.service_ms for row in trace_of(told).collect()] == [30.0]


def test_the_traffic_of_a_real_broker_can_be_replayed(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    config = {"feed": {"lake": str(tmp_path / "lake")}}
    with Broker.open(
        tmp_path / "data", config=config, clock=clock, disk=MemoryDisk(), threaded=False
    ) as broker:
        broker.declare(QueueSpec("orders", retry_delay_ms=0))
        for number in range(12):
            message = Message(b"x" * number, importance=number % 10 + 1, ttl_ms=5_000)
            broker.publish("orders", [message])
            clock.advance(10)
        for number, lease in enumerate(broker.lease("orders", count=6)):
            clock.advance(20)
            settle = broker.retry if number == 2 else broker.ack
            settle("orders", [lease.token])
    rows = {row.bytes: row for row in read_lake(spark, tmp_path / "lake").trace.collect()}
    assert len(rows) == 12
    assert {row.consumers for row in rows.values()} == {6}
    assert {row.useful_ms for row in rows.values()} == {5_000}
    assert rows[9].importance == 10
    assert rows[9].at_ms == NOW_MS + 90
    assert rows[9].service_ms == 20.0
    assert sum(row.failures for row in rows.values()) == 1
    sweep = Sweep(policies={"today": {}})
    (found,) = study(spark, read_lake(spark, tmp_path / "lake").trace, sweep).studies
    assert {each.policy: each.done for each in found.outcomes}["today"] == 12


def test_every_policy_can_be_tried_on_what_a_real_queue_had(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A queue that fades nothing and has no TTL says nothing of what its messages should do."""
    clock = ManualClock(NOW_MS)
    config = {"feed": {"lake": str(tmp_path / "lake")}}
    with Broker.open(
        tmp_path / "data", config=config, clock=clock, disk=MemoryDisk(), threaded=False
    ) as broker:
        broker.declare(QueueSpec("orders"))
        for number in range(80):
            broker.publish("orders", [Message(b"x", importance=number * 7 % 10 + 1)])
            clock.advance(10)
        broker.publish("orders", [Message(b"kept", decay_rate=0.0, ttl_ms=60_000)])
        for _ in range(4):
            leases = broker.lease("orders")
            clock.advance(40)
            broker.ack("orders", [lease.token for lease in leases])
    fading = {"decay_rate": 1.0, "band_width": 1.0}
    sweep = Sweep(
        traffic=TrafficSpec(useful_ms=1_000),
        policies={
            "fading": {**fading, "decay_unit_ms": 2_000},
            "quickly": {**fading, "decay_unit_ms": 1_000},
            "short": {"default_ttl_ms": 500},
        },
    )
    trace = read_lake(spark, tmp_path / "lake").trace
    (found,) = study(spark, trace, sweep).studies
    told = {
        each.policy: (each.done, each.worth_on_time, each.wait_p99_ms) for each in found.outcomes
    }
    assert told.keys() == {"fifo", "importance", *sweep.policies}
    assert len(set(told.values())) == len(told), told
    (kept,) = trace.where("bytes = 4").collect()
    assert (kept.decay_rate, kept.ttl_ms, kept.importance) == (0.0, 60_000, None)


def test_the_example_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path / "lake", 1, [{"seq": 1}, {"seq": 2, "event": "leased"}])
    tell(tmp_path / "lake", 2, [{"seq": 4, "event": "acked", "latency_ms": 250}])
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    code = code.replace('Path("lake")', f"Path({str(tmp_path / 'lake')!r})")
    # The tests have a session of their own, which the example must not stop.
    code = code.replace('with spark_session(Settings(master="local[*]")) as spark:', "if True:")
    exec(code, {"spark": spark})
    shown = capsys.readouterr().out
    assert "impossible" in shown
    assert "250.0" in shown


def test_a_lake_without_events_is_no_traffic(spark: SparkSession, tmp_path: Path) -> None:
    claims.claim(tmp_path, "a")
    with pytest.raises(InvalidTrace, match="no events in the lake"):
        read_lake(spark, tmp_path)


@pytest.mark.parametrize("table", ["events", "catalog"])
def test_a_copy_of_a_lake_without_the_claims_of_its_nodes_is_a_lake(
    tmp_path: Path, table: str
) -> None:
    with pytest.raises(UnknownFeed, match="no node has written to it"):
        visible(tmp_path, EVENTS)
    name = layout.manifest_file(table, NOW_MS, "a", 1, 1)
    told = Manifest(
        table=table, version=1, node="a", boot=1, number=1, written_at_ms=NOW_MS, parts=()
    )
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(encode(told))
    assert len(visible(tmp_path, TABLES[table]).manifests) == 1
