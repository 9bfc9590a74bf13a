"""Streams from queues and to queues: leased, acked when committed, never lost, not played twice."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from ebbmq import Client, Message, QueueSpec
from ebbmq.node.server.users import SCOPES, Users
from ebbmq_spark.connector import register
from ebbmq_spark.connector.extending import Extending
from ebbmq_spark.connector.ledger import Committed, Ledger, SinkInUse
from tests.pipeline.killed_driver import (
    HALVED,
    KEPT,
    LEASED,
    MESSAGES,
    READ,
    copying,
    held_up,
    without_ids,
)
from tests.pipeline.patience import patiently, to_end
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        world.client.declare(QueueSpec("q"))
        world.client.publish("q", [Message(each.encode()) for each in bodies])

        def restart(number: int) -> None:
            if number == 0 and len(servers) == 1:
                kill_and_start_anew(servers, data)

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


def test_a_broker_that_is_killed_while_a_queue_is_read_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    servers = [Running(tmp_path / "data")]
    servers[0].wait_ready()
    url, opened, reached = servers[0].url, tmp_path / "opened", tmp_path / "reached"
    hold = held_up(reached, opened)

    def read() -> list[int]:
        # A task has the last messages, and has yet to ask whether there are more.
        options = {"url": url, "queue": READ, "columns": "id,body", "rowsPerPartition": "25"}
        frame = spark.read.format("ebbmq").options(**options).load()
        found = frame.mapInArrow(hold, frame.schema).collect()
        return sorted(int(row["body"]) for row in found)

    def restart() -> None:
        wait_patiently(reached.exists)
        kill_and_start_anew(servers, tmp_path / "data")
        opened.touch()

    with Client(url) as client:
        try:
            prepared(client, READ)
            with ThreadPoolExecutor(1) as pool:
                killing = pool.submit(restart)
                assert patiently(read) == list(range(MESSAGES))
                killing.result()
            assert client.stats(READ)["depth"]["ready"] == MESSAGES
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
        kill_and_start_anew(servers, tmp_path / "data")

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


def prepared(client: Client, *queues: str) -> None:
    """Queues with messages, and beside each one to copy it to."""
    for queue in queues:
        client.declare(QueueSpec(queue))
        client.declare(QueueSpec(f"{queue}.copied"))
        client.publish(queue, [Message(b"%d" % number) for number in range(MESSAGES)])


def copied(client: Client, queue: str) -> list[int]:
    return sorted(int(each.body) for each in client.peek(f"{queue}.copied", 10 * MESSAGES))


def test_a_batch_that_a_stream_publishes_while_the_broker_is_killed_is_published_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    servers = [Running(tmp_path / "data")]
    servers[0].wait_ready()
    url, opened, reached = servers[0].url, tmp_path / "opened", tmp_path / "reached"
    hold = held_up(reached, opened)
    place = tmp_path / "checkpoint"

    def copy() -> StreamingQuery:
        def between(frame: DataFrame) -> DataFrame:
            return frame.mapInArrow(hold, frame.schema)

        return copying(spark, {"url": url}, HALVED, place, between, idColumn="id")

    def restart() -> None:
        # A task has published its half, and the other one has yet to.
        wait_patiently(lambda: reached.exists() and len(copied(client, HALVED)) == MESSAGES // 2)
        kill_and_start_anew(servers, tmp_path / "data")
        opened.touch()

    with Client(url) as client:
        try:
            prepared(client, HALVED)
            with ThreadPoolExecutor(1) as pool:
                killing = pool.submit(restart)
                to_end(copy)
                killing.result()
            assert copied(client, HALVED) == list(range(MESSAGES))
            assert client.stats(HALVED)["depth"] == NOTHING
            last = committed(client, place)
            assert (last.batch, last.published) == (0, MESSAGES)
        finally:
            for server in servers:
                server.__exit__()


def kill_and_start_anew(servers: list[Running], data: Path) -> None:
    """Kill the first server; the next one has its address."""
    servers[0].kill()
    servers.append(Running(data, port=int(servers[0].url.rpartition(":")[2])))


def wait_patiently(holds: Callable[[], bool]) -> None:
    """For what Spark takes its time to come to."""
    until_s = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until_s, "it never came so far"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def killed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a driver was that was killed when each of its queries was in the middle of a batch."""
    prepared(world.client, READ, HALVED, KEPT)
    directory = tmp_path_factory.mktemp("killed")

    def is_there() -> bool:
        assert driver.poll() is None, "the driver ended by itself"
        reached = all((directory / name).exists() for name in (READ, HALVED, KEPT))
        return reached and len(copied(world.client, HALVED)) >= MESSAGES // 2

    with subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.killed_driver", world.server.url, world.token,
         str(directory)],
        start_new_session=True, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[2])},
    ) as driver:  # fmt: skip
        try:
            wait_patiently(is_there)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    for name in (READ, HALVED, KEPT):
        assert not any((directory / f"{name}-place" / "commits").glob("[0-9]*"))
        assert world.depth(name)["leased"] == MESSAGES
    return directory


@pytest.mark.crash
def test_a_driver_that_is_killed_in_the_middle_of_a_batch_loses_nothing(
    world: World, spark: SparkSession, killed: Path
) -> None:
    read: list[str] = []
    to_end(lambda: collecting(world, spark, killed / "read-place", read, queue=READ, **LEASED))
    assert sorted(map(int, read)) == list(range(MESSAGES))
    assert world.depth(READ) == NOTHING


@pytest.mark.crash
def test_a_batch_of_which_a_killed_driver_had_published_a_part_is_kept_once(
    world: World, spark: SparkSession, killed: Path
) -> None:
    assert copied(world.client, HALVED) == list(range(MESSAGES // 2))
    place = killed / "halved-place"
    to_end(lambda: copying(spark, world.options(), HALVED, place, idColumn="id"))
    assert copied(world.client, HALVED) == list(range(MESSAGES))
    assert world.depth(HALVED) == NOTHING
    last = committed(world.client, place)
    assert (last.batch, last.published, last.duplicates) == (0, MESSAGES, MESSAGES // 2)


@pytest.mark.crash
def test_a_batch_that_a_sink_had_on_record_when_its_driver_was_killed_is_not_published_again(
    world: World, spark: SparkSession, killed: Path
) -> None:
    place = killed / "kept-place"

    def copy() -> StreamingQuery:
        return copying(spark, world.options(), KEPT, place, without_ids, atLeastOnce="true")

    before = committed(world.client, place)
    assert (before.batch, before.published) == (0, MESSAGES)
    to_end(copy)
    assert copied(world.client, KEPT) == list(range(MESSAGES))
    assert world.depth(KEPT) == NOTHING
    assert committed(world.client, place) == before
    # What comes next is published.
    world.client.publish(KEPT, Message(b"%d" % MESSAGES))
    to_end(copy)
    assert copied(world.client, KEPT) == list(range(MESSAGES + 1))


def committed(client: Client, checkpoint: Path) -> Committed:
    """What the sink of a query has on record."""
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    found = Ledger(client, query).last()
    assert found is not None
    return found
