"""Who is killed with kill -9: drivers with all that they started, and brokers that come again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ebbmq import Client
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEADLINE_S = 600
STOPPED = "stopped\n"


@contextlib.contextmanager
def killed_driver(
    module: str, *words: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a module that runs Spark; it is killed, with its Java and its tasks, in the end."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA, **(environment or {})},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        try:
            yield driver
        finally:
            os.killpg(driver.pid, signal.SIGKILL)


def wait_stopped(driver: subprocess.Popen[str]) -> None:
    """Until it says that it is where it is to be killed."""
    assert driver.stdout is not None
    assert driver.stdout.readline() == STOPPED


def wait_patiently(holds: Callable[[], bool]) -> None:
    """For what Spark takes its time to come to."""
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s, "it never came so far"
        time.sleep(0.01)


class Mortal:
    """A server that can be killed, after which the next one has its address and its data."""

    def __init__(self, data: Path, token: str | None = None) -> None:
        self._data = data
        self.servers = [Running(data)]
        self.servers[0].wait_ready()
        self.url = self.servers[0].url
        self.client = Client(self.url, token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        for server in self.servers:
            server.__exit__()

    def again(self) -> None:
        """Kill it, and let the next one begin."""
        self.servers[-1].kill()
        self.servers.append(Running(self._data, port=int(self.url.rpartition(":")[2])))
