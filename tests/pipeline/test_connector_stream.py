"""Streams from queues and to queues: leased, acked when committed, never lost, not played twice."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from ebbmq import Client, Message, QueueSpec
from ebbmq.node.server.users import SCOPES, Users
from ebbmq_spark.connector import register
from ebbmq_spark.connector.extending import Extending
from ebbmq_spark.connector.ledger import Committed, Ledger, SinkInUse
from tests.pipeline.patience import patiently, to_end
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_queue_to_queue" / "run.py"
NOTHING = {"ready": 0, "leased": 0, "scheduled": 0, "replicating": 0, "dying": 0}


class World:
    """A server that asks for a token, and a session that knows the connector."""

    def __init__(self, server: Running, token: str) -> None:
        self.server, self.token = server, token
        self.client = Client(server.url, token=token)

    def options(self, **more: str) -> dict[str, str]:
        return {"url": self.server.url, "token": self.token, **more}

    def depth(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = self.client.stats(queue)["depth"]
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[World]:
    register(spark)
    data = tmp_path_factory.mktemp("broker") / "data"
    token = Users(data).add("spark", dict.fromkeys(SCOPES, ("*",)))
    with Running(data) as server:
        world = World(server, token)
        yield world
        world.client.close()


def test_the_example_works_on_every_order_once_and_leaves_nothing_leased_or_ready(
    world: World, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLE))
    example["prepare"](world.client)
    # One partition has most of it, and there are several batches of several tasks.
    world.client.publish("orders", [Message(b'{"order": 5, "pieces": 1}', key="k")] * 500)
    options = {
        "token": world.token,
        "maxMessages": "800",
        "rowsPerPartition": "300",
        "leaseTimeoutMs": "3600000",
    }
    source = {name: value for name, value in options.items() if name != "token"}
    stream = spark.readStream.format("ebbmq").options(**world.options(queue="orders"), **source)
    patiently(lambda: stream.load().explain(True))
    assert world.token not in capsys.readouterr().out

    def run() -> None:
        example["run"](spark, world.server.url, str(tmp_path / "checkpoint"), **options)

    patiently(run)
    assert world.depth("orders") == NOTHING
    done = world.client.peek("orders.priced", 2_000)
    assert len(done) == 1_500
    orders = [json.loads(message.body) for message in done]
    assert {each["order"] for each in orders} == set(range(1_000))
    five = next(each for each, message in zip(orders, done, strict=True) if each["order"] == 6)
    assert five == {"order": 6, "price": 7 * 1.07}
    assert {message.type for message in done} == {"TEXT"}
    assert {message.headers.get("region") for message in done} == {"eu", "us", None}
    log = (tmp_path / "checkpoint" / "offsets" / "0").read_text()
    assert world.token not in log
    # An empty queue ends the query as well, and the sink knows what it did.
    patiently(run)
    (ledger,) = [q.name for q in world.client.queues() if q.name.startswith("spark.sink.")]
    last = Ledger(world.client, ledger.removeprefix("spark.sink.")).last()
    assert last is not None
    assert (last.batch, last.duplicates) == (1, 0)
    assert world.depth(ledger)["ready"] == 1


def test_a_batch_that_was_committed_is_not_published_again(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    world.client.declare(QueueSpec("out"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"body": "a"}\n{"body": "b"}\n')

    def start(checkpoint: str) -> StreamingQuery:
        # Without ids the broker cannot tell: only the record of the sink can.
        return (
            spark.readStream.schema("body STRING")
            .json(str(tmp_path / "in"))
            .writeStream.format("ebbmq")
            .options(**world.options(queue="out", atLeastOnce="true", sinkId="mine"))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    to_end(lambda: start("checkpoint"))
    assert world.depth("out")["ready"] == 2
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    to_end(lambda: start("checkpoint"))
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()
    assert world.depth("out")["ready"] == 2
    # Another checkpoint numbers its batches anew: that is refused, not taken for played.
    with pytest.raises(StreamingQueryException, match=r"sink_in_use.*another sinkId"):
        to_end(lambda: start("other"))
    assert world.depth("out")["ready"] == 2


def test_the_record_of_a_sink_is_its_newest_batch(world: World) -> None:
    ledger = Ledger(world.client, "kept")
    assert ledger.last() is None
    assert not ledger.is_committed("q", 0)
    for batch in range(3):
        ledger.commit(Committed("q", batch, 1, 0))
        ledger.commit(Committed("q", batch, 1, 0))
    assert world.depth(ledger.queue)["ready"] == 1
    # A driver that dies while it tidies up leaves a record leased.
    world.client.lease(ledger.queue, 1, lease_timeout_ms=3_600_000)
    assert ledger.last() == Committed("q", 2, 1, 0)
    assert [ledger.is_committed("q", batch) for batch in (2, 3)] == [True, False]
    with pytest.raises(SinkInUse):
        ledger.is_committed("another", 3)


def test_leases_of_a_long_batch_are_extended_until_it_is_settled(world: World) -> None:
    world.client.declare(QueueSpec("long"))
    world.client.publish("long", [Message(b"x")] * 3)
    leases = world.client.lease("long", 3, lease_timeout_ms=30_000)
    extending = Extending(world.client, "long", 600_000)
    extending.hold(1, [lease.token for lease in leases[:1]])
    extending.hold(2, [lease.token for lease in leases[1:]])
    extending.let_go(1)
    extending.extend_now()
    seen = {each.id: each.deadline_ms or 0 for each in world.client.peek("long", state="leased")}
    first, *others = leases
    assert seen[first.id] == first.deadline_ms
    assert all(seen[each.id] > each.deadline_ms + 500_000 for each in others)
    # One that ended is no reason to stop.
    world.client.ack("long", [leases[1].token])
    extending.extend_now()
    extending.stop()


def collecting(
    world: World, spark: SparkSession, checkpoint: Path, into: list[str], **more: Any
) -> Any:
    """A query that collects bodies; `more` are options, and `before` is called with each batch."""
    before = more.pop("before", None)

    def work(frame: DataFrame, number: int) -> None:
        if before is not None:
            before(number)
        into.extend(bytes(row["body"]).decode() for row in frame.select("body").collect())

    stream = spark.readStream.format("ebbmq").options(**world.options(**more)).load()
    query = stream.writeStream.foreachBatch(work).trigger(availableNow=True)
    return query.option("checkpointLocation", str(checkpoint)).start()


def test_a_broker_that_restarts_in_the_middle_of_a_batch_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    data, bodies = tmp_path / "data", [str(number) for number in range(60)]
    token = Users(data).add("spark", dict.fromkeys(SCOPES, ("*",)))
    servers = [Running(data)]
    try:
        servers[0].wait_ready()
        world = World(servers[0], token)
        port = int(servers[0].url.rpartition(":")[2])
        world.client.declare(QueueSpec("q"))
        world.client.publish("q", [Message(each.encode()) for each in bodies])

        def restart(number: int) -> None:
            if number == 0 and len(servers) == 1:
                servers[0].kill()
                servers.append(Running(data, port=port))

        read: list[str] = []
        options = {"queue": "q", "maxMessages": "40", "leaseTimeoutMs": "600000"}
        to_end(
            lambda: collecting(
                world, spark, tmp_path / "checkpoint", read, before=restart, **options
            )
        )
        assert sorted(read, key=int) == bodies
        assert world.depth("q") == NOTHING
        world.client.close()
    finally:
        for server in servers:
            server.__exit__()


def test_rows_are_kept_once_though_the_broker_is_killed_while_they_come_and_they_come_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    rows = 60_000
    frame = spark.range(rows, numPartitions=2).selectExpr("string(id) AS id", "'x' AS body")
    servers = [Running(tmp_path / "data")]
    servers[0].wait_ready()
    url = servers[0].url
    client, there = Client(url), []

    def restart() -> None:
        while not there or there[-1] == 0:
            there.append(client.stats("out")["depth"]["ready"])
        servers[0].kill()
        servers.append(Running(tmp_path / "data", port=int(url.rpartition(":")[2])))

    def write() -> None:
        frame.write.format("ebbmq").options(url=url, queue="out", idColumn="id").mode(
            "append"
        ).save()

    try:
        client.declare(QueueSpec("out", partitions=2))
        killing = threading.Thread(target=restart)
        killing.start()
        patiently(write)
        killing.join()
        assert 0 < there[-1] < rows, "it was killed in the middle"
        assert client.stats("out")["depth"]["ready"] == rows
        # A task, or a batch that was not committed, is played again with the same ids.
        patiently(write)
        assert client.stats("out")["depth"]["ready"] == rows
    finally:
        client.close()
        for server in servers:
            server.__exit__()


def test_a_driver_that_is_killed_in_the_middle_of_a_batch_loses_nothing(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    world.client.declare(QueueSpec("killed"))
    bodies = [str(number) for number in range(50)]
    world.client.publish("killed", [Message(each.encode()) for each in bodies])
    checkpoint, reached = tmp_path / "checkpoint", tmp_path / "reached"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.killed_driver", world.server.url, world.token,
         str(checkpoint), str(reached)],
        start_new_session=True, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[2])},
    ) as driver:  # fmt: skip
        try:
            until_s = time.monotonic() + 300
            while not reached.exists() and driver.poll() is None:
                assert time.monotonic() < until_s, "the batch was not reached"
                time.sleep(0.05)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert reached.read_text() == "50"
    assert not any((checkpoint / "commits").glob("[0-9]*"))
    assert world.depth("killed")["leased"] == 50
    read: list[str] = []
    to_end(
        lambda: collecting(world, spark, checkpoint, read, queue="killed", leaseTimeoutMs="3600000")
    )
    assert sorted(read, key=int) == bodies
    assert world.depth("killed") == NOTHING
    shutil.rmtree(checkpoint)
