"""The real server in forks of one process, so that many lives import everything once.

The parent writes the arguments of `ebbmq serve` as one line and gets the pid; the fork runs the
command line. Each further line of the parent says that it has killed or stopped the fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from ebbmq.cli.main import cli, main
from ebbmq.node.server import serving
from tests.serving import wait_until

if TYPE_CHECKING:
    from typing import IO

ROOT = Path(__file__).parents[2]
#: The fork calls them without importing anything more.
SERVE = cli.commands["serve"], serving.run


class ForkedServer:
    """The parent's end: at most one server at a time."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._pid = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forked_server", str(out)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            self.end(signal.SIGKILL)
        self._stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def start(self, *arguments: str) -> str:
        """Start a server; returns its address once it takes connections."""
        self._out.write_bytes(b"")
        self._stdin.write(msgspec.json.encode(["serve", *arguments]) + b"\n")
        self._pid = self._read()
        wait_until(lambda: self._ready_line() is not None, "the server to be ready")
        return self._ready_line() or ""

    def _ready_line(self) -> str | None:
        lines = self._out.read_text().splitlines(keepends=True)
        ready = (line for line in lines if line.startswith("ready ") and line.endswith("\n"))
        return next((line.split()[1] for line in ready), None)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)
        self._pid = 0
        return self._read()


def serve(out: Path) -> None:
    """Fork for each line of standard input until it ends."""
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            _live(msgspec.json.decode(line, type=list[str]), out)
        _reply(pid)
        _, status = os.waitpid(pid, 0)
        _reply(os.waitstatus_to_exitcode(status))


def _live(arguments: list[str], out: Path) -> None:
    status = 1
    try:
        os.dup2(os.open(out, os.O_WRONLY | os.O_APPEND), 1)
        log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 2)
        main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    finally:
        os._exit(status)


def _reply(number: int) -> None:
    os.write(sys.stdout.fileno(), f"{number}\n".encode())


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
