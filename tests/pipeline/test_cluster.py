"""The same jobs on a real Spark cluster, a master and two workers: the results are the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark
import pytest

from ebbmq import Client, Message, QueueSpec
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq_spark.connector import register
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from tests.pipeline.clustered_driver import (
    bounded,
    read_archive,
    read_events,
    read_queue,
    simulated,
)
from tests.pipeline.kept import SIGNATURES, KeptInStore, options_of
from tests.pipeline.lakes import DAY_MS, Node, rows
from tests.pipeline.test_bounded_round import Fleet
from tests.pipeline.test_connector_archive import thinned
from tests.pipeline.test_stream import counts
from tests.servers import free_port
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from ebbmq.feed.table import Table
    from tests.servers import Weed

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
START_TIMEOUT_S = 300
#: What is of one run: its name, when it was, in `reason` how faded a message was by then, and in
#: `sketch` the order in which its parts were put together; the percentiles it gives are compared.
ANEW = {
    "run", "decided_at_ms", "stepped_at_ms", "until_ms", "reason", "sketch", "counted_at_ms",
}  # fmt: skip


@contextlib.contextmanager
def cluster(directory: Path, unseen: Path | None = None) -> Iterator[str]:
    """A master and two workers from the Python package, on this machine; yields the address.

    Workers have an empty directory of their own in the place of one that is `unseen`.
    """
    apart = []
    if unseen is not None:
        apart = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(unseen)]
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
    (directory / "work").mkdir(parents=True)

    def start(name: str, kind: str, *options: str) -> subprocess.Popen[bytes]:
        before = apart if kind == "worker.Worker" else []
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with (directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*before, *command, *options],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    here = ("--host", "127.0.0.1", "--webui-port", "0")
    processes = [start("master", "master.Master", *here, "--port", str(port))]
    try:
        until_s = time.monotonic() + START_TIMEOUT_S
        while not listens(port):
            assert processes[0].poll() is None, (directory / "master.log").read_text()[-2000:]
            assert time.monotonic() < until_s, "the master did not start"
            time.sleep(0.1)
        for number in (1, 2):
            room = ("--cores", "1", "--memory", "900m")
            processes.append(start(f"worker-{number}", "worker.Worker", *here, *room, master))
        yield master
    finally:
        for process in reversed(processes):
            # Its executors and their Python are of its session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def shipped(directory: Path) -> Path:
    """The code as it is shipped to executors."""
    path = directory / "shipped.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in ("ebbmq", "ebbmq_spark"):
            for file in (ROOT / "src" / package).rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(ROOT / "src"))
    return path


def _shown(value: object) -> str:
    """A value without the last digits of a sum, which depend on the order of what is added."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def told(
    lake: Path, tables: Sequence[Table] = (PLANS, PROFILES, RATES)
) -> dict[str, list[tuple[Any, ...]]]:
    """What a run left in a lake, without what every run draws anew."""
    return {
        table.name: sorted(
            tuple(_shown(value) for name, value in row.items() if name not in ANEW)
            for row in rows(lake, table)
        )
        for table in tables
    }


class Within(NamedTuple):
    """A lake that was planned for within bounds, and the same lake before that."""

    here: Path
    elsewhere: Path
    left_out: list[Any]

    def assert_same(self, left_out: list[Any]) -> None:
        """See that the other one was planned for alike."""
        assert left_out == self.left_out
        assert told(self.elsewhere, [PLANS]) == told(self.here, [PLANS])


def bounded_here(spark: SparkSession, root: Path) -> Within:
    """Messages of which hundreds are worth the same, with room for some and money for fewer."""
    messages = [Message(b"%1024d" % number, importance=1 + number % 3) for number in range(900)]
    with Fleet(root, messages) as fleet:
        pass
    shutil.copytree(fleet.lake, root / "elsewhere")
    room, money = left_out = bounded(spark, fleet.lake)
    assert 0 < room["room"][0] < money["money"][0] < len(messages)
    return Within(fleet.lake, root / "elsewhere", left_out)


def assert_both_took_part(places: list[list[str]], cluster: Path) -> None:
    """Both workers, with the code that was shipped, in executors of the size that was asked for."""
    directories, files = zip(*places, strict=True)
    assert len(set(directories)) == 2
    assert all("shipped.zip" in file for file in files)
    started = [each.read_text() for each in cluster.glob("work/app-*/*/stderr")]
    assert len(started) == 2
    assert all('"-Xmx512M"' in each for each in started)


def with_history(directory: Path) -> dict[str, str]:
    """Have Spark keep its history in a directory, as people can read it."""
    directory.mkdir()
    told = {"enabled": "true", "compress": "false", "dir": directory.as_uri()}
    return {f"spark.eventLog.{name}": value for name, value in told.items()}


def in_a_store(weed: Weed, lake: Path, archive: Path) -> dict[str, Any]:
    """Both as they are, in a store."""
    kept = [
        KeptInStore(place, f"s3://{weed.bucket}/cluster", options_of(weed))
        for place in (lake, archive)
    ]
    names = ("stored lake", "stored archive")
    found = ([each.place.address, each.options] for each in kept)
    return dict(zip(names, found, strict=True))


def assert_no_urls_are_told(told: Path, cluster: Path) -> None:
    """By which objects are read: neither the history of Spark nor what executors log has any."""
    texts = [each.read_text() for each in told.rglob("events_*")]
    texts += [each.read_text() for each in cluster.glob("work/app-*/*/stderr")]
    assert len(texts) == 3
    assert all("ebbmq-object:/s3/" in text for text in texts)
    assert not any(secret in text for secret in SIGNATURES for text in texts)


def test_a_cluster_gives_the_results_of_one_machine(
    spark: SparkSession, tmp_path: Path, weed: Weed
) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=4_000, messages=40)
        node.clock.advance(20 * DAY_MS)
    lake, elsewhere, followed = (tmp_path / name for name in ("lake", "elsewhere", "followed"))
    for other in (elsewhere, followed, tmp_path / "streamed"):
        shutil.copytree(lake, other)
    for archive in ("archive", "archive here"):
        thinned(tmp_path / archive)
    register(spark)
    within = bounded_here(spark, tmp_path / "bounded")
    run(spark, Arguments(lake, full=True, bounded=False))
    stream(spark, Streaming(tmp_path / "streamed", once=True, partitions=2))
    here = (tmp_path / "archive here").as_uri()
    with Running(tmp_path / "broker") as server, Client(server.url) as client:
        for name in ("q", "copies"):
            client.declare(QueueSpec(name))
        client.publish("q", [Message(b"%d" % number) for number in range(50)])
        local = read_queue(spark, server.url)
        asked = {
            "code": str(shipped(tmp_path)), "lake": str(elsewhere), "followed": str(followed),
            "url": server.url, "archive": (tmp_path / "archive").as_uri(),
            "checkpoint": str(tmp_path / "checkpoint"), "bounded": str(within.elsewhere),
            "settings": with_history(tmp_path / "history"),
            **in_a_store(weed, elsewhere, tmp_path / "archive"),
        }  # fmt: skip
        with cluster(tmp_path / "cluster") as master:
            done = subprocess.run(
                [sys.executable, "-m", "tests.pipeline.clustered_driver", master],
                cwd=ROOT, input=json.dumps(asked), capture_output=True, text=True, check=False,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert not any(client.stats("q")["depth"].values())
        copies = sorted(each.body.decode() for each in client.peek("copies", 100))
        assert copies == sorted(body for _, body in local)
    seen = json.loads(done.stdout)
    assert seen["queue"] == [list(each) for each in local]
    assert len(local) == 50
    assert_both_took_part(seen["places"], tmp_path / "cluster")
    assert told(lake)["plans"]
    assert told(elsewhere) == told(lake)
    within.assert_same(seen["bounded"])
    events, archived = read_events(spark, str(lake)), read_archive(spark, here)
    assert (events["late"] > 0, archived["count"]) == (True, 26)
    assert not events["in_python"] | archived["in_python"]
    for where in ("", "stored "):
        assert [seen[f"{where}events"], seen[f"{where}archive"]] == [events, archived]
    assert_no_urls_are_told(tmp_path / "history", tmp_path / "cluster")
    assert seen["simulated"] == [list(each) for each in simulated(spark, lake)]
    assert seen["streamed"] == [60, 0]
    assert counts(followed) == counts(tmp_path / "streamed")


def test_a_command_runs_on_a_cluster_that_is_named(tmp_path: Path) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=4_000, messages=40)
        node.clock.advance(20 * DAY_MS)
    lake, elsewhere = tmp_path / "lake", tmp_path / "elsewhere"
    shutil.copytree(lake, elsewhere)
    with cluster(tmp_path / "cluster") as master:
        for where, address in ((lake, "local[2]"), (elsewhere, master)):
            words = ("pipeline", "run", "--lake", str(where), "--master", address, "--json")
            # Workers have not more than this.
            sizes = ("--memory", "512m", "--conf", "spark.executor.memory=512m")
            done = subprocess.run(
                [sys.executable, "-m", "ebbmq", *words, *sizes],
                # Not where the code is, which executors on this machine could find there.
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
            assert json.loads(done.stdout)["kind"] == "run"
    assert any((tmp_path / "cluster").glob("work/app-*/*/stderr")), "executors did it"
    assert told(elsewhere)["profiles"]
    assert told(elsewhere) == told(lake)


WRITING = """
import sys
from pathlib import Path
from ebbmq_spark.lake import opened
from ebbmq_spark.session import Settings, spark_session

with spark_session(Settings(master=sys.argv[1], more={"spark.executor.memory": "512m"})) as spark:
    opened(Path(sys.argv[2])).write(spark.range(3), "plans/run=x")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have workers see other directories")
def test_what_a_cluster_wrote_to_directories_of_its_own_is_not_taken_for_nothing(
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    with cluster(tmp_path / "cluster", unseen=lake) as master:
        done = subprocess.run(
            [sys.executable, "-c", WRITING, master, str(lake)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "nothing is there" in done.stderr
    assert "see the lake under the same path" in done.stderr


def test_a_job_is_submitted_with_its_code_by_py_files(tmp_path: Path) -> None:
    sizes = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    settings = [f"--conf={name}={value}" for name, value in sizes.items()]
    with Running(tmp_path / "broker") as server, Client(server.url) as client:
        client.declare(QueueSpec("q"))
        client.publish("q", [Message(b"%d" % number) for number in range(50)])
        with cluster(tmp_path / "cluster") as master:
            done = subprocess.run(
                [
                    *(str(HOME / "bin" / "spark-submit"), "--master", master, *settings),
                    *("--py-files", str(shipped(tmp_path))),
                    *(str(ROOT / "tests" / "pipeline" / "submitted_job.py"), server.url),
                ],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert len(seen["code"]) == 4
    assert all("shipped.zip" in file for file in seen["code"])
    assert seen["bodies"] == sorted(str(number) for number in range(50))
