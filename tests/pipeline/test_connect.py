"""The same jobs over Spark Connect, where the driver is elsewhere: the results are the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from ebbmq import Client, Message, QueueSpec
from ebbmq_spark.connector import register
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.session import SHIPPED
from ebbmq_spark.simulation.generate import generate
from tests.pipeline.clustered_driver import read_archive, read_events, read_queue, simulated
from tests.pipeline.lakes import DAY_MS, Node
from tests.pipeline.loads import save
from tests.pipeline.patience import patiently
from tests.pipeline.test_cluster import (
    HOME,
    ROOT,
    START_TIMEOUT_S,
    bounded_here,
    listens,
    told,
)
from tests.pipeline.test_connector_archive import thinned
from tests.pipeline.test_object_lake import Bucket
from tests.pipeline.test_stream import counts, expected
from tests.servers import free_port
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers import Weed


COPIED = {b"copy %d" % number for number in range(60)}


@contextlib.contextmanager
def connect(directory: Path) -> Iterator[str]:
    """A server from the Python package, on this machine; yields its address."""
    port = free_port()
    # Where it starts there is no package of ours: tasks have what was sent to them.
    directory.mkdir()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2,4]"]
    command += ["--driver-memory", "700m"]
    command += [word for each in settings.items() for word in ("--conf", "=".join(each))]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True,
        )  # fmt: skip
    try:
        until_s = time.monotonic() + START_TIMEOUT_S
        while not listens(port):
            assert process.poll() is None, (directory / "server.log").read_text()[-2000:]
            assert time.monotonic() < until_s, "the server did not start"
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        # Its Python is of its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_traffic_that_is_here_is_simulated_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text("[policies.today]\n")
    generated = ("--generate", "bursts", "--messages", "200")

    def simulate(*arguments: str) -> object:
        # What is named is here, not where the server is.
        done = subprocess.run(
            [sys.executable, "-m", "ebbmq.cli", "simulate", *arguments, "--policies", "sweep.toml",
             "--json", "--master", master],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)["queues"]

    with connect(tmp_path / "connect") as master:
        found = simulate(*generated)
        save(generate("bursts", 200), tmp_path / "m[1].parquet")
        assert simulate("--trace", "m[1].parquet") == found
    master = "local[2]"
    assert simulate(*generated) == found


def fill(client: Client) -> None:
    """A queue to read, one to copy from, and those to copy to."""
    for name in ("q", "from", "twice", "streamed", "replayed"):
        client.declare(QueueSpec(name))
    client.publish("q", [Message(b"%d" % number) for number in range(50)])
    client.publish("from", [Message(body) for body in COPIED])


def assert_copied(client: Client, replayed: list[Any]) -> None:
    """Everything is there once, and a batch that was committed was not published again."""
    for name in ("twice", "streamed"):
        assert client.stats(name)["depth"]["ready"] == len(COPIED)
        assert {each.body for each in client.peek(name, 100)} == COPIED
    assert not any(client.stats("from")["depth"].values())
    assert replayed == [50, 0, True]
    sinks = {each.name for each in client.queues() if each.name.startswith("spark.sink.")}
    assert sinks == {"spark.sink.streamed", "spark.sink.replayed"}


def test_spark_connect_gives_the_results_of_one_machine(
    spark: SparkSession, tmp_path: Path, weed: Weed
) -> None:
    bucket = Bucket(weed, f"connect-{tmp_path.name}")
    with Node(tmp_path, "a", feed=bucket.feed) as node:
        node.work(took_ms=4_000, messages=40)
        node.clock.advance(20 * DAY_MS)
    followed = Bucket(weed, f"followed-{tmp_path.name}")
    with Node(tmp_path, "b", feed=followed.feed) as node:
        node.work()
    here, elsewhere = bucket.copied(tmp_path / "here"), tmp_path / "elsewhere"
    shutil.copytree(here, elsewhere)
    register(spark)
    run(spark, Arguments(here, full=True, bounded=False))
    thinned(tmp_path / "archive")
    within = bounded_here(spark, tmp_path / "bounded")
    with Running(tmp_path / "broker") as server, Client(server.url) as client:
        fill(client)
        asked = {
            "lake": str(elsewhere), "store": bucket.url, "options": bucket.options,
            "url": server.url, "archive": (tmp_path / "archive").as_uri(),
            "followed": followed.url, "state": str(tmp_path / "state"),
            "bounded": str(within.elsewhere),
        }  # fmt: skip
        queue = [list(each) for each in read_queue(spark, server.url)]
        with connect(tmp_path / "connect") as master:
            done = subprocess.run(
                [sys.executable, "-m", "tests.pipeline.connected_driver", master],
                cwd=ROOT, input=json.dumps(asked), capture_output=True, text=True, check=False,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        seen = json.loads(done.stdout)
        assert seen["drained"] == sorted(str(number) for number in range(50))
        assert not any(client.stats("q")["depth"].values())
        assert seen["queue"] == queue
        assert_copied(client, seen["replayed"])
    assert SHIPPED in seen["places"]
    found = told(here)
    assert found["plans"]
    assert told(elsewhere) == found == told(bucket.copied(tmp_path / "there"))
    within.assert_same(seen["bounded"])
    # There it is Python that reads, and that is said.
    assert seen["events"] == {**read_events(spark, str(here)), "in_python": True}
    assert seen["events"]["late"] > 0
    archived = read_archive(spark, (tmp_path / "archive").as_uri())
    assert seen["archive"] == {**archived, "in_python": True}
    assert len(archived["rows"]) == 40
    assert done.stderr.count("lakes and archives are read by Python") == 1
    local = patiently(lambda: simulated(spark, here))
    assert seen["simulated"] == [list(each) for each in local]
    assert seen["streamed"] == [30, 0]
    assert counts(followed.copied(tmp_path / "followed")) == expected({"b": 1})
