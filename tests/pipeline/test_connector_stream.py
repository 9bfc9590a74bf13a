"""Streams from queues and to queues: leased, acked when committed, never lost, not played twice."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict

from ebbmq import Client, Message, QueueSpec
from ebbmq.node.server.users import SCOPES, Users
from ebbmq_spark.connector import EbbMQ, register
from ebbmq_spark.connector.extending import Extending
from ebbmq_spark.connector.lease_stream import LeaseStream
from ebbmq_spark.connector.ledger import Committed, Ledger, SinkInUse
from ebbmq_spark.connector.options import leasing
from tests.pipeline.killed_driver import (
    HALVED,
    KEPT,
    LEASED,
    MESSAGES,
    READ,
    WRITTEN,
    copying,
    held_up,
    numbered,
    without_ids,
    write,
)
from tests.pipeline.killing import Mortal, killed_driver, wait_patiently
from tests.pipeline.patience import patiently, to_end
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_queue_to_queue" / "run.py"
#: Long enough for a busy machine to extend leases in time, three times within it.
LEASE_MS = 3_000
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
    # The queue of which everybody's first example is stays as it was.
    world.client.declare(QueueSpec("orders", max_attempts=3))
    example["prepare"](world.client)
    assert world.client.stats("orders")["depth"] == NOTHING
    # One partition has most of it, and there are several batches of several tasks.
    world.client.publish("example.orders", [Message(b'{"order": 5, "pieces": 1}', key="k")] * 500)
    options = {
        "token": world.token,
        "maxMessages": "800",
        "rowsPerPartition": "300",
        "leaseTimeoutMs": "3600000",
    }
    source = {name: value for name, value in options.items() if name != "token"}
    stream = spark.readStream.format("ebbmq").options(
        **world.options(queue="example.orders"), **source
    )
    patiently(lambda: stream.load().explain(True))
    assert world.token not in capsys.readouterr().out

    def run() -> None:
        example["run"](spark, world.server.url, str(tmp_path / "checkpoint"), **options)

    patiently(run)
    assert world.depth("example.orders") == NOTHING
    done = world.client.peek("example.priced", 2_000)
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


def test_the_example_that_is_run_again_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    example = runpy.run_path(str(EXAMPLE))
    place = tmp_path / "example.checkpoint"

    def run_main() -> str:
        words = [sys.executable, str(EXAMPLE), broker.url, str(place)]
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def go_on() -> None:
        example["run"](spark, broker.url, str(place))

    def priced() -> int:
        found: int = broker.client.stats("example.priced")["depth"]["ready"]
        return found

    with Mortal(tmp_path / "data") as broker:
        told = patiently(run_main)
        done = priced()
        assert done >= 1_000
        assert told == f"{done} orders have a price; left: {NOTHING}\n"
        first = Ledger(broker.client, "example.priced").last()
        assert first is not None
        example["prepare"](broker.client)
        # It would be refused with another checkpoint.
        patiently(go_on)
        assert broker.client.stats("example.orders")["depth"] == NOTHING
        assert priced() == done + 1_000
        last = Ledger(broker.client, "example.priced").last()
        assert last is not None
        assert (last.query, last.batch) == (first.query, first.batch + 1)
        # Begun anew, as the example says.
        shutil.rmtree(place)
        broker.client.delete("spark.sink.example.priced")
        example["prepare"](broker.client)
        patiently(go_on)
        assert priced() == done + 2_000


def test_messages_of_two_brokers_that_number_them_alike_are_all_there_in_one_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)

    def start(url: str, checkpoint: str) -> StreamingQuery:
        stream = spark.readStream.format("ebbmq").options(url=url, queue="orders").load()
        sink = stream.select("unique_id", "body").writeStream.format("ebbmq")
        sink = sink.options(url=first.url, queue="merged", idColumn="unique_id")
        place = str(tmp_path / checkpoint)
        return sink.option("checkpointLocation", place).trigger(availableNow=True).start()

    def ids(name: str) -> list[set[str]]:
        read = spark.read.format("ebbmq")
        frames = [read.options(url=each.url, queue="orders").load() for each in (first, second)]
        return [{row[0] for row in patiently(frame.select(name).collect)} for frame in frames]

    with Running(tmp_path / "1") as first, Running(tmp_path / "2") as second:
        bodies = set[bytes]()
        for each in (first, second):
            with Client(each.url) as client:
                client.declare(QueueSpec("orders"))
                sent = [b"%d of %s" % (n, each.url.encode()) for n in range(100)]
                client.publish("orders", [Message(body) for body in sent])
                bodies.update(sent)
        theirs, others = ids("id")
        assert theirs == others
        assert len(set().union(*ids("unique_id"))) == 200
        with Client(first.url) as client:
            client.declare(QueueSpec("merged"))
            to_end(lambda: start(first.url, "checkpoint 1"))
            to_end(lambda: start(second.url, "checkpoint 2"))
            assert {each.body for each in client.peek("merged", 1_000)} == bodies
            assert client.stats("merged")["depth"]["ready"] == 200


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


@pytest.mark.parametrize("lacking", ["manage", "publish"])
def test_a_stream_that_may_not_keep_its_record_publishes_nothing(
    spark: SparkSession, tmp_path: Path, lacking: str
) -> None:
    register(spark)
    data = tmp_path / "data"
    rights = dict.fromkeys(SCOPES, ("*",))
    admin = Users(data).add("admin", rights)
    token = Users(data).add("spark", {**rights, lacking: ("out",)})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"body": "a"}\n')
    with Running(data) as server, Client(server.url, token=admin) as client:
        client.declare(QueueSpec("out"))

        def start() -> StreamingQuery:
            options = {"url": server.url, "token": token, "queue": "out", "atLeastOnce": "true"}
            sink = spark.readStream.schema("body STRING").json(str(tmp_path / "in")).writeStream
            sink = sink.format("ebbmq").options(**options).trigger(availableNow=True)
            return sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

        with pytest.raises(StreamingQueryException, match=rf"forbidden.*{lacking}.*spark\.sink\."):
            to_end(start)
        assert client.stats("out")["depth"] == NOTHING


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


def test_a_batch_that_takes_longer_than_its_leases_last_is_delivered_once(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [str(number) for number in range(5)]
    world.client.declare(QueueSpec("slow"))
    world.client.publish("slow", [Message(each.encode()) for each in bodies])
    kept: list[int] = []

    def outlast(_: int) -> None:
        """Take until every lease would be over, if nobody had extended it."""
        first = [each.deadline_ms or 0 for each in world.client.peek("slow", state="leased")]
        past_ms = max(first) + LEASE_MS
        wait_patiently(lambda: world.client.stats("slow")["now_ms"] > past_ms)
        kept.append(len(world.client.peek("slow", state="leased")))

    read: list[str] = []
    options = {"queue": "slow", "leaseTimeoutMs": str(LEASE_MS)}
    to_end(
        lambda: collecting(world, spark, tmp_path / "checkpoint", read, before=outlast, **options)
    )
    assert kept[-1] == len(bodies)
    assert sorted(read, key=int) == bodies
    assert world.depth("slow") == NOTHING
    totals = world.client.stats("slow")["totals"]
    assert (totals["leased"], totals["acked"], totals["lease_expired"]) == (5, 5, 0)


def test_leases_that_spark_had_not_noted_when_its_driver_died_are_worked_on_when_it_starts_again(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    place, read = tmp_path / "checkpoint", list[str]()
    given = {"queue": "unnoted", "leaseTimeoutMs": "3600000"}
    world.client.declare(QueueSpec("unnoted"))

    def run() -> None:
        to_end(lambda: collecting(world, spark, place, read, **given))

    world.client.publish("unnoted", [Message(b"a"), Message(b"b")])
    run()
    world.client.publish("unnoted", [Message(b"c"), Message(b"d")])
    asked = EbbMQ(CaseInsensitiveDict(world.options(**given)))
    died = LeaseStream(leasing(asked.options), asked.schema())
    noted = json.loads((place / "offsets" / "0").read_text().splitlines()[-1])
    assert died.latestOffset(noted, died.getDefaultReadLimit())["count"] == 2
    died.stop()
    assert world.depth("unnoted") == {**NOTHING, "leased": 2}
    run()
    assert read == ["a", "b", "c", "d"]
    assert world.depth("unnoted") == NOTHING
    assert world.client.stats("unnoted")["totals"]["leased"] == 4


def test_messages_of_a_batch_that_failed_come_again_when_their_leases_ended_before_it_is_restarted(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [str(number) for number in range(5)]
    world.client.declare(QueueSpec("ended", retry_delay_ms=0))
    world.client.publish("ended", [Message(each.encode()) for each in bodies])
    place, read = tmp_path / "checkpoint", list[str]()

    def fail(_: int) -> None:
        raise RuntimeError("it fails here")

    def start(lease_ms: int, **more: Any) -> Any:
        given = {"queue": "ended", "leaseTimeoutMs": str(lease_ms), **more}
        return collecting(world, spark, place, read, **given)

    with pytest.raises(StreamingQueryException, match="it fails here"):
        to_end(lambda: start(1_000, before=fail))
    assert not any((place / "commits").glob("[0-9]*"))
    wait_patiently(lambda: world.depth("ended") == {**NOTHING, "ready": len(bodies)})
    to_end(lambda: start(3_600_000))
    assert sorted(read, key=int) == bodies
    assert world.depth("ended") == NOTHING
    totals = world.client.stats("ended")["totals"]
    assert totals["acked"] == len(bodies)
    assert totals["lease_expired"] >= len(bodies)


def test_a_broker_that_restarts_in_the_middle_of_a_batch_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    data, bodies = tmp_path / "data", [str(number) for number in range(60)]
    token = Users(data).add("spark", dict.fromkeys(SCOPES, ("*",)))
    with Mortal(data, token) as broker:
        world = World(broker.servers[0], token)
        broker.client.declare(QueueSpec("q"))
        broker.client.publish("q", [Message(each.encode()) for each in bodies])

        def restart(number: int) -> None:
            if number == 0 and len(broker.servers) == 1:
                broker.again()

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


def test_a_broker_that_is_killed_while_a_queue_is_read_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    opened, reached = tmp_path / "opened", tmp_path / "reached"
    hold = held_up(reached, opened)

    def read() -> list[int]:
        # A task has the last messages, and has yet to ask whether there are more.
        options = {"queue": READ, "columns": "id,body", "rowsPerPartition": "25"}
        frame = spark.read.format("ebbmq").options(url=broker.url, **options).load()
        found = frame.mapInArrow(hold, frame.schema).collect()
        return sorted(int(row["body"]) for row in found)

    def restart() -> None:
        wait_patiently(reached.exists)
        broker.again()
        opened.touch()

    with Mortal(tmp_path / "data") as broker:
        prepared(broker.client, READ)
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(restart)
            assert patiently(read) == list(range(MESSAGES))
            killing.result()
        assert broker.client.stats(READ)["depth"]["ready"] == MESSAGES


def test_rows_are_kept_once_though_the_broker_is_killed_while_they_come_and_they_come_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    rows = 60_000
    frame = spark.range(rows, numPartitions=2).selectExpr("string(id) AS id", "'x' AS body")
    there: list[int] = []

    def ready() -> int:
        found: int = broker.client.stats("out")["depth"]["ready"]
        return found

    def restart() -> None:
        while not there or there[-1] == 0:
            there.append(ready())
        broker.again()

    def write() -> None:
        sink = frame.write.format("ebbmq").options(url=broker.url, queue="out", idColumn="id")
        sink.mode("append").save()

    with Mortal(tmp_path / "data") as broker:
        broker.client.declare(QueueSpec("out", partitions=2))
        killing = threading.Thread(target=restart)
        killing.start()
        patiently(write)
        killing.join()
        assert 0 < there[-1] < rows, "it was killed in the middle"
        assert ready() == rows
        # A task, or a batch that was not committed, is played again with the same ids.
        patiently(write)
        assert ready() == rows


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
    opened, reached, place = (tmp_path / name for name in ("opened", "reached", "checkpoint"))
    hold = held_up(reached, opened)

    def copy() -> StreamingQuery:
        def between(frame: DataFrame) -> DataFrame:
            return frame.mapInArrow(hold, frame.schema)

        return copying(spark, {"url": broker.url}, HALVED, place, between, idColumn="id")

    def restart() -> None:
        # A task has published its half, and the other one has yet to.
        half = MESSAGES // 2
        wait_patiently(lambda: reached.exists() and len(copied(broker.client, HALVED)) == half)
        broker.again()
        opened.touch()

    with Mortal(tmp_path / "data") as broker:
        prepared(broker.client, HALVED)
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(restart)
            to_end(copy)
            killing.result()
        assert copied(broker.client, HALVED) == list(range(MESSAGES))
        assert broker.client.stats(HALVED)["depth"] == NOTHING
        last = committed(broker.client, place)
        assert (last.batch, last.published) == (0, MESSAGES)


@pytest.fixture(scope="module")
def killed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a driver was that was killed when each of its queries was in the middle of a batch."""
    prepared(world.client, READ, HALVED, KEPT)
    world.client.declare(QueueSpec(f"{WRITTEN}.copied"))
    directory = tmp_path_factory.mktemp("killed")

    def is_there() -> bool:
        assert driver.poll() is None, "the driver ended by itself"
        reached = all((directory / name).exists() for name in (READ, HALVED, KEPT, WRITTEN))
        halves = [len(copied(world.client, name)) for name in (HALVED, WRITTEN)]
        return reached and min(halves) >= MESSAGES // 2

    words = (world.server.url, world.token, str(directory))
    with killed_driver("tests.pipeline.killed_driver", *words) as driver:
        wait_patiently(is_there)
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


@pytest.mark.crash
def test_rows_of_which_a_killed_driver_had_written_a_part_are_kept_once_when_they_are_written_again(
    world: World, spark: SparkSession, killed: Path
) -> None:
    assert copied(world.client, WRITTEN) == list(range(MESSAGES // 2))
    for _ in range(2):
        patiently(lambda: write(numbered(spark), world.options()))
        assert copied(world.client, WRITTEN) == list(range(MESSAGES))


def committed(client: Client, checkpoint: Path) -> Committed:
    """What the sink of a query has on record."""
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    found = Ledger(client, query).last()
    assert found is not None
    return found
