"""`spark.read.format("ebbmq")`: a queue, the tables of a lake and the archive, row by row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from ebbmq import Client, Message, QueueSpec, limits
from ebbmq.core import envelope
from ebbmq.errors import DamagedRecord, InvalidSpec
from ebbmq.feed import claims, layout, manifests
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import Manifest, Part, UnknownFeed
from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import Copy, DeviceSpec, Key, Properties
from ebbmq.holding.objects import ObjectDevice
from ebbmq.policy.rules.parse import parse_condition
from ebbmq_spark.connector import read_lake, register
from ebbmq_spark.connector.lake import spread
from ebbmq_spark.pieces import Piece, batches
from ebbmq_spark.places import Directory
from ebbmq_spark.rules import column_of
from tests.pipeline.kept import KeptInStore, options_of
from tests.pipeline.lakes import Node
from tests.pipeline.patience import patiently
from tests.pipeline.ranged import Choosy
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.servers import Weed

STORE = b"s" * 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Running]:
    register(spark)
    with Running(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


def queue(spark: SparkSession, server: Running, **options: str) -> DataFrame:
    return patiently(spark.read.format("ebbmq").options(url=server.url, **options).load)


def test_every_message_of_a_queue_is_read_once_as_it_is(
    server: Running, spark: SparkSession
) -> None:
    with Client(server.url) as client:
        client.declare(QueueSpec("orders", partitions=3))
        # One partition has nearly all of it.
        client.publish(
            "orders", [Message(b"%d" % n, importance=1 + n % 10, key="k") for n in range(900)]
        )
        client.publish("orders", [Message(b"other %d" % n) for n in range(30)])
        text = Message("zwölf".encode(), type="TEXT", headers={"a": "1"}, ttl_ms=3_600_000)
        client.publish("orders", [text, Message(b"later", delay_ms=3_600_000)])
        client.lease("orders", count=5, lease_timeout_ms=3_600_000)
        frame = queue(spark, server, queue="orders", rowsPerPartition="100").persist()
        rows = patiently(frame.collect)
        assert len(rows) == len({row["id"] for row in rows}) == 926
        left = {message.id: message for message in client.peek("orders", 2_000)}
        assert {row["id"]: bytes(row["body"]) for row in rows} == {
            each.id: each.body for each in left.values()
        }
        (told,) = patiently(frame.where(F.size("headers") > 0).collect)
        assert (bytes(told["body"]).decode(), told["type"]) == ("zwölf", "TEXT")
        assert (told["headers"], told["ttl_ms"]) == ({"a": "1"}, 3_600_000)
        assert {row["state"] for row in rows} == {"ready"}
        leased = queue(spark, server, queue="orders", state="leased", columns="id,deadline_ms")
        assert leased.columns == ["id", "deadline_ms"]
        assert patiently(leased.where("deadline_ms > 0").count) == 5
        assert client.stats("orders")["depth"]["leased"] == 5
        frame.unpersist()


def test_sql_reads_a_view_of_a_queue_and_is_told_why_there_is_no_table(
    server: Running, spark: SparkSession
) -> None:
    with Client(server.url) as client:
        client.declare(QueueSpec("viewed"))
        client.publish("viewed", [Message(b"a"), Message(b"b")])
    options = f"OPTIONS (url '{server.url}', queue 'viewed')"
    patiently(lambda: spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW viewed USING ebbmq {options}"))
    rows = patiently(spark.sql("SELECT string(body) FROM viewed").collect)
    assert sorted(row[0] for row in rows) == ["a", "b"]
    with pytest.raises(AnalysisException, match=r"table in its catalog.*CREATE TEMPORARY VIEW"):
        patiently(lambda: spark.sql(f"CREATE TABLE tabled USING ebbmq {options}"))
    assert not spark.catalog.tableExists("tabled")


def test_an_empty_queue_has_no_rows_and_an_unknown_one_is_named(
    server: Running, spark: SparkSession
) -> None:
    with Client(server.url) as client:
        client.declare(QueueSpec("empty"))
    assert patiently(queue(spark, server, queue="empty").collect) == []
    with pytest.raises(Exception, match=r"unknown_queue.*empyt"):
        patiently(queue(spark, server, queue="empyt").collect)


def make_lake(root: Path, rows: int, files: int) -> pa.Table:
    """A lake of events, its files named by manifests, and one file that nothing names."""
    numbers = list(range(rows))
    columns: dict[str, list[Any]] = {
        "node": ["n1" if n % 3 else "n2" for n in numbers],
        "boot": [1] * rows,
        "seq": numbers,
        "at_ms": [1_700_000_000_000 + n for n in numbers],
        "queue": [f"q{n % 5}" for n in numbers],
        "partition": [0] * rows,
        "message_id": [f"1-{n:x}" for n in numbers],
        "generation": [1] * rows,
        "event": ["acked" if n % 2 else "leased" for n in numbers],
        "latency_ms": [n if n % 2 else None for n in numbers],
    }
    claims.claim(root, "n1")
    schema = schema_of(EVENTS)
    lacking = {field.name: [None] * rows for field in schema if field.name not in columns}
    table = pa.table({**columns, **lacking}, schema=schema)
    size = -(-rows // files)
    for number in range(files):
        path = f"events/date=2023-11-14/hour=22/node=n1/{number:08d}.parquet"
        part = table.slice(number * size, size)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        # A file of an older version lacks columns that may be absent.
        pq.write_table(part.drop_columns(["decay_score"]) if number else part, root / path,
                       row_group_size=max(1, size // 4))  # fmt: skip
        stored = Manifest(table="events", version=1, node="n1", boot=1, number=number,
                          written_at_ms=1, parts=(Part(path, part.num_rows,
                                                       (root / path).stat().st_size),))  # fmt: skip
        manifest = root / "events" / layout.MANIFESTS / f"{number:08d}.json"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_bytes(manifests.encode(stored))
    pq.write_table(table, root / "events/date=2023-11-14/hour=22/node=n1/unnamed.parquet")
    return table


def test_a_table_of_a_lake_is_what_its_manifests_name(
    tmp_path: Path, server: Running, spark: SparkSession
) -> None:
    made = make_lake(tmp_path, 1_000, 3)
    frame = table(spark, str(tmp_path))
    rows = patiently(frame.orderBy("seq").collect)
    assert [row.asDict() for row in rows] == made.to_pylist()
    pushed = frame.where("event = 'acked' and seq >= 990 and latency_ms is not null and seq < 999")
    assert sorted(row["seq"] for row in patiently(pushed.collect)) == [991, 993, 995, 997]
    some = table(spark, str(tmp_path), columns="queue,seq")
    counted = some.where("queue in ('q1', 'q2')").groupBy("queue").count()
    assert {row["queue"]: row["count"] for row in patiently(counted.collect)} == {
        "q1": 200,
        "q2": 200,
    }
    assert patiently(frame.where("decay_score > 1").count) == 0


def plan_of(frame: DataFrame) -> str:
    plan = frame._jdf.queryExecution().executedPlan  # noqa: SLF001  # it has no public name
    return str(patiently(lambda: plan().toString()))


def table(spark: SparkSession, path: str, name: str = "events", **options: str) -> DataFrame:
    asked = spark.read.format("ebbmq").options(table=name, **options)
    return patiently(lambda: asked.load(path))


def test_a_file_that_is_not_as_its_manifest_says_is_named(
    tmp_path: Path, server: Running, spark: SparkSession
) -> None:
    make_lake(tmp_path, 100, 2)
    frame = table(spark, str(tmp_path))
    damaged = tmp_path / "events/date=2023-11-14/hour=22/node=n1/00000001.parquet"
    kept = damaged.read_bytes()
    damaged.write_bytes(kept[:-10])
    with pytest.raises(Exception, match=r"unknown_feed.*00000001\.parquet"):
        patiently(frame.count)
    damaged.write_bytes(b"x" * len(kept))
    with pytest.raises(DamagedRecord, match=r"00000001\.parquet"):
        list(batches(Directory(tmp_path), Piece(str(damaged)), schema_of(EVENTS)))


def test_a_table_of_a_lake_is_the_same_without_python(tmp_path: Path, spark: SparkSession) -> None:
    made = make_lake(tmp_path, 1_000, 3)
    frame = read_lake(spark, tmp_path, "events")
    assert "ebbmq" not in plan_of(frame.select("seq")).partition("Location")[0]
    assert [row.asDict() for row in frame.orderBy("seq").collect()] == made.to_pylist()
    some = read_lake(spark, str(tmp_path), "events", ["queue", "seq"])
    assert some.columns == ["queue", "seq"]
    assert some.where("seq >= 990").count() == 10
    with pytest.raises(InvalidSpec, match="columns name 'sequel'"):
        read_lake(spark, tmp_path, "events", ["sequel"])
    with pytest.raises(InvalidSpec, match="table is 'queue'"):
        read_lake(spark, tmp_path, "queue")
    damaged = tmp_path / "events/date=2023-11-14/hour=22/node=n1/00000001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(UnknownFeed, match=r"00000001\.parquet"):
        read_lake(spark, tmp_path, "events")


def test_large_files_are_read_by_several_tasks_and_small_ones_together() -> None:
    tasks = spread([("a", 10), ("b", 10), ("c", 95), ("d", 350), ("e", 10)], task_bytes=100)
    assert [task.pieces for task in tasks] == [  # type: ignore[attr-defined]
        [("a", 0, 1), ("b", 0, 1)],
        *([("d", part, 4)] for part in range(4)),
        [("c", 0, 1)],
        [("e", 0, 1)],
    ]


def test_few_files_are_read_by_as_many_tasks_unless_they_are_tiny() -> None:
    files = [(f"{number:02d}", 4 * limits.MIB) for number in range(8)]
    assert len(spread(files)) == 8
    assert len(spread([(name, 1_000) for name, _ in files])) == 1


def test_a_lake_in_a_store_that_takes_no_signed_urls_is_the_same_table_and_takes_filters(
    tmp_path: Path, server: Running, spark: SparkSession, weed: Weed
) -> None:
    made = make_lake(tmp_path, 300, 2)
    with Choosy(weed.endpoint) as choosy:
        options = {**options_of(weed), "endpoint": choosy.endpoint}
        kept = KeptInStore(tmp_path, f"s3://{weed.bucket}/table", options)
        frame = table(spark, kept.place.address, **kept.options)
        assert "BatchScan" in plan_of(frame)
        assert weed.secret_key not in plan_of(frame)
        rows = patiently(frame.orderBy("seq").collect)
        assert [row.asDict() for row in rows] == made.to_pylist()
        some = frame.where("seq < 10 and node is not null and latency_ms is null").select("seq")
        assert " Filter (" not in plan_of(some).replace("+-", " ")
        assert sorted(row["seq"] for row in patiently(some.collect)) == [0, 2, 4, 6, 8]
        # What one query takes of a frame is not what the next one takes.
        assert patiently(frame.count) == 300
        both = frame.where("seq < 10").union(frame.where("seq >= 250"))
        assert patiently(both.count) == 60


def test_a_frame_of_a_queue_is_what_is_in_it_when_it_is_used(
    server: Running, spark: SparkSession
) -> None:
    with Client(server.url) as client:
        client.declare(QueueSpec("fills"))
        frame = queue(spark, server, queue="fills")
        assert patiently(frame.count) == 0
        client.publish("fills", [Message(b"%d" % n) for n in range(20)])
        assert patiently(frame.count) == 20


def copy(seq: int, body: bytes, queue: str, **properties: Any) -> Copy:
    block = envelope.pack(Message(body, **properties)) if properties else b""
    known = Properties(queue, 7, 1_700_000_000_000 + seq, None, 0.25, len(block))
    return Copy(Key(STORE, 1, seq), block + body, crc32c.crc32c(block + body), known)


def test_the_archive_is_read_without_what_was_deleted(
    tmp_path: Path, server: Running, spark: SparkSession
) -> None:
    device = ObjectDevice(
        DeviceSpec(
            name="archive", tier="s3", durable=True, failure_domain="s3", capacity_bytes=1 << 20
        ),
        Bucket(tmp_path.as_uri()),
        time.perf_counter,
    )
    device.put_many(
        [
            copy(1, b"first", "orders", headers={"region": "eu"}, type="TEXT", id="p-1", key="k"),
            *[copy(n, b"body %d" % n, "orders") for n in range(2, 40)],
            *[copy(n, b"pay %d" % n, "pay/ments") for n in range(40, 60)],
        ]
    )
    device.delete_many([Key(STORE, 1, seq) for seq in (2, 3, 59)])
    device.close()
    frame = table(spark, tmp_path.as_uri(), "archive")
    rows = {int(row["id"].partition("-")[2], 16): row for row in patiently(frame.collect)}
    assert sorted(rows) == [1, *range(4, 59)]
    first = rows[1]
    assert (bytes(first["body"]), first["headers"], first["key"]) == (
        b"first",
        {"region": "eu"},
        "k",
    )
    assert (first["queue"], first["producer_id"], first["importance"]) == ("orders", "p-1", 7)
    assert first["store"] == STORE.hex()
    assert bytes(rows[41]["body"]) == b"pay 41"
    # One rule text, asked about what is archived.
    known = {name: F.col(name) for name in ("queue", "type", "headers", "importance")}
    known["size"] = F.length("body") / 1024
    for text, chosen in (
        ('TYPE == TEXT AND HEADER("region") == "eu"', [1]),
        (
            'QUEUE == "pay/ments" AND SIZE < 1 AND NOT HEADER("region").isPresent',
            list(range(40, 59)),
        ),
        ("SIZE > 10 OR IMPORTANCE < 7", []),
    ):
        asked = frame.where(column_of(parse_condition(text), known, {})).select("id")
        got = [int(row["id"].partition("-")[2], 16) for row in patiently(asked.collect)]
        assert sorted(got) == chosen, text
    counted = table(spark, str(tmp_path), "archive", columns="queue").groupBy("queue").count()
    by_queue = patiently(counted.collect)
    assert {row["queue"]: row["count"] for row in by_queue} == {"orders": 37, "pay/ments": 19}


def test_of_a_catalog_the_newest_snapshot_of_each_node_is_told_by_its_instant(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    for name in ("one", "two"):
        with Node(tmp_path, name) as node:
            node.work(messages=8)
            # Two snapshots at least, and one as it ends.
            for _ in range(3):
                node.clock.advance(20)
    catalog = spark.read.format("ebbmq").option("table", "catalog").load(str(tmp_path / "lake"))
    last = catalog.groupBy("node").agg(F.max("at_ms").alias("at_ms"))
    newest = catalog.join(last, ["node", "at_ms"]).select("node", "message_id").collect()
    assert len(newest) == len(set(newest)) > 0
    assert {row.node for row in newest} == {"one", "two"}
