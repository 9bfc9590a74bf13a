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
from typing import TYPE_CHECKING, Any

import pyspark

from ebbmq import Client, Message, QueueSpec
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq_spark.connector import register
from ebbmq_spark.jobs.running import Arguments, run
from tests.pipeline.clustered_driver import read_queue
from tests.pipeline.lakes import DAY_MS, Node, rows
from tests.servers import free_port
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
START_TIMEOUT_S = 300
#: What is of one run: its name, when it was, in `reason` how faded a message was by then, and in
#: `sketch` the order in which its parts were put together; the percentiles it gives are compared.
ANEW = {"run", "decided_at_ms", "until_ms", "reason", "sketch"}


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A master and two workers from the Python package, on this machine; yields the address."""
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
        with (directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *options],
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


def told(lake: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What a run left in a lake, without what every run draws anew."""
    return {
        table.name: sorted(
            tuple(_shown(value) for name, value in row.items() if name not in ANEW)
            for row in rows(lake, table)
        )
        for table in (PLANS, PROFILES, RATES)
    }


def test_a_cluster_gives_the_results_of_one_machine(spark: SparkSession, tmp_path: Path) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=4_000, messages=40)
        node.clock.advance(20 * DAY_MS)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "lake", elsewhere)
    register(spark)
    run(spark, Arguments(tmp_path / "lake", full=True, bounded=False))
    with Running(tmp_path / "broker") as server, Client(server.url) as client:
        client.declare(QueueSpec("q"))
        client.publish("q", [Message(b"%d" % number) for number in range(50)])
        local = read_queue(spark, server.url)
        with cluster(tmp_path / "cluster") as master:
            code = shipped(tmp_path)
            done = subprocess.run(
                [sys.executable, "-m", "tests.pipeline.clustered_driver", master, str(code),
                 str(elsewhere), server.url],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["queue"] == [list(each) for each in local]
    assert len(local) == 50
    # Both workers took part, with the code that was shipped.
    directories, files = zip(*seen["places"], strict=True)
    assert len(set(directories)) == 2
    assert all("shipped.zip" in file for file in files)
    found = told(tmp_path / "lake")
    assert found["plans"]
    assert told(elsewhere) == found
