"""A server of Spark Connect on this machine, from the package of PySpark."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.run import wait_until
from bench.stores import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_S: Final = 120
_HOST: Final = "127.0.0.1"


class Connect(NamedTuple):
    """Where a server listens, and its process, which is Java."""

    master: str
    pid: int


@contextlib.contextmanager
def connect_server(directory: Path, cores: int, memory: str) -> Iterator[Connect]:
    """A server that has its scratch files in a directory, until the block ends."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": _HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": _HOST,
        "spark.driver.bindAddress": _HOST,
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    command = [str(home / "bin" / "spark-submit"), "--master", f"local[{cores}]"]
    command += ["--driver-memory", memory, "--class", _CLASS]
    command += [word for each in settings.items() for word in ("--conf", "=".join(each))]
    python = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST, "PYSPARK_PYTHON": sys.executable}
    with (
        (directory / "server.log").open("wb") as log,
        subprocess.Popen(
            [*command, "spark-internal"],
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**os.environ, **python},
        ) as process,
    ):
        try:
            if not wait_until(lambda: _listens(port), _START_S):
                raise TimeoutError(f"Spark Connect did not start in {_START_S} s")
            yield Connect(f"sc://{_HOST}:{port}", process.pid)
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((_HOST, port), 1):
        return True
    return False
