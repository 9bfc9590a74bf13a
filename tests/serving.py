"""The real server, `ebbmq serve`, as a process on a port of its own, and a plain way to call it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 60.0
CERTIFICATES = Path(__file__).parent / "certificates"


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Look again and again until it holds; a test never depends on how long that takes."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Answer(NamedTuple):
    """Status, headers in lower case, and the body, as JSON where it is."""

    status: int
    headers: dict[str, str]
    text: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str | None:
        """The code of an error; None for anything else."""
        return None if self.status < 400 else self.json["code"]


class Caller:
    """One connection to a server; it is opened when it is needed and again after it was lost."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        verify: str | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            self.connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname,
                parts.port,
                timeout=timeout_s,
                context=ssl.create_default_context(cafile=verify),
            )
        else:
            self.connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=timeout_s
            )
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and read the answer; OSError or HTTPException if there is none."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        told = {**self.headers, **(headers or {})}
        if sent is not None:
            told.setdefault("content-type", "application/json")
        try:
            self.connection.request(method, path, sent, told)
            answer = self.connection.getresponse()
            text = answer.read()
        except BaseException:
            self.connection.close()
            raise
        return Answer(
            answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
        )

    def queue(self, queue: str, verb: str, body: object, method: str = "POST") -> Answer:
        """A message verb."""
        return self.call(method, f"/v1/queues/{quote(queue, safe='')}/{verb}", body)


class Running:
    """A server process. Standard output and the log are kept for whoever wants to look."""

    #: What is run.
    module = "ebbmq.cli"

    def __init__(
        self, data: Path, *options: str, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data = data
        self.log_path = data.parent / f"{data.name}.log"
        self.lines: list[str] = []
        self._is_ready = threading.Event()
        command = [sys.executable, "-m", self.module, "serve", "--data", str(data)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--http-port", str(port), *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("ready"):
                self._is_ready.set()
        self._is_ready.set()

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def wait_ready(self) -> None:
        """Return once the server takes connections."""
        assert self._is_ready.wait(START_TIMEOUT_S), f"not ready: {self.log()}"
        assert self.lines, f"ended with {self.process.wait()}: {self.log()}"

    @property
    def urls(self) -> list[str]:
        """Where it listens, as the line that starts with `ready` says."""
        return next(line for line in self.lines if line.startswith("ready ")).split()[1:]

    @property
    def url(self) -> str:
        return self.urls[0]

    def caller(self, token: str | None = None, **options: Any) -> Caller:
        return Caller(self.url, token, **options)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait until the process has ended; returns its status."""
        status = self.process.wait(STOP_TIMEOUT_S)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def stop(self) -> int:
        """Have it drain, and wait for the end."""
        self.signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.end()

    def log(self) -> str:
        return self.log_path.read_text()

    def rss_bytes(self) -> int:
        """What the process holds in RAM."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


def run_to_end(data: Path, *options: str) -> tuple[int, str]:
    """Start a server that is expected to end by itself; returns its status and what it said."""
    server = Running(data, *options)
    try:
        return server.end(), server.log()
    finally:
        if server.process.poll() is None:
            server.process.kill()


def own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: connecting a datagram socket only chooses the address.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address
