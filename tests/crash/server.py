"""Forks a worker for each job, so that hundreds of lives import everything once.

The parent writes a job as one line, gets the pid as a line, and the exit status as another. A
broker is only ever opened in the fork.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from tests.crash import worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.worker import Job

ROOT = Path(__file__).parents[2]


class Server:
    """The parent's end: runs one job at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(
        self,
        job: Job,
        kill_after_s: float | None = None,
        before_kill: Callable[[], None] = lambda: None,
    ) -> int:
        """Run one life, kill -9 it after a while if it still runs, and return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        pid = int(self._process.stdout.readline())
        if kill_after_s is not None:
            ended, _, _ = select.select([self._process.stdout], [], [], kill_after_s)
            if not ended:
                before_kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return int(self._process.stdout.readline())


def serve() -> None:
    """Fork for each line of standard input until it ends."""
    decoder = msgspec.json.Decoder(worker.Job)
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            _live(decoder.decode(line))
        _reply(pid)
        _, status = os.waitpid(pid, 0)
        _reply(os.waitstatus_to_exitcode(status))


def _live(job: Job) -> None:
    status = 1
    try:
        worker.run(job)
        status = 0
    except BaseException:
        (Path(job.record) / f"error-{job.life}.txt").write_text(traceback.format_exc())
        raise
    finally:
        os._exit(status)


def _reply(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
