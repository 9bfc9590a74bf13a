"""The pipeline as a child of the server: `ebbmq pipeline run --every`, started again when it ends.

Spark runs in a process of its own, with Java in another; whatever becomes of them, messages are
served. What the child says goes to the log. Whether runs end is read from their records in the
lake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from ebbmq.errors import EbbError
from ebbmq.feed.runs import RUNS
from ebbmq.node.feeding.lake import open_lake
from ebbmq.node.log import log

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.node.config import FeedConfig, PipelineConfig

#: Records of runs are listed so often, or as often as the pipeline runs.
_LOOK_EVERY_MS_MAX: Final = 30_000
_READ_BYTES: Final = 64 * 1024


class Pipeline:
    """The child that runs the pipeline on the server's lake, and how it is doing."""

    def __init__(self, config: PipelineConfig, feed: FeedConfig, data: Path) -> None:
        assert feed.lake is not None
        self._config = config
        self._options = feed.options or {}
        self._lake = open_lake(feed.lake, self._options, data)
        # A directory is named from the data directory on.
        self._address = feed.lake if "://" in feed.lake else str(data / feed.lake)
        self._child: asyncio.subprocess.Process | None = None
        #: The record of the last run that ended; "" if there is none.
        self._newest = ""
        #: When that was, or when the child was started.
        self._since_s = 0.0
        #: What became of the last child; None once a run ended after it.
        self._failure: str | None = None

    async def run(self) -> None:
        """Keep the child alive until cancelled; it ends then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            while True:
                await asyncio.sleep(self._config.every_ms / 1_000)
                self._failure = await self._live()
                log.warning("pipeline_ended", lake=self._address, detail=self._failure)

    def troubles(self) -> list[str]:
        """What is wrong with the runs, for people."""
        if self._failure is None:
            return []
        since = self._newest or "the server was started"
        trouble = f"the pipeline {self._failure}, and no run ended since {since}"
        return [f"{trouble}; the log says why; messages are not touched by that"]

    async def _watch(self) -> None:
        """Look which runs ended, and end a child whose run takes too long."""
        config = self._config
        while True:
            # A lake that cannot be read is told by the feed.
            with contextlib.suppress(OSError, EbbError):
                newest = await asyncio.to_thread(self._newest_record)
                if newest != self._newest:
                    self._newest, self._since_s, self._failure = newest, time.monotonic(), None
            took_ms = (time.monotonic() - self._since_s) * 1_000
            if self._child is not None and took_ms > config.every_ms + config.timeout_ms:
                log.warning("pipeline_too_long", timeout_ms=config.timeout_ms)
                self._kill()
            await asyncio.sleep(min(config.every_ms, _LOOK_EVERY_MS_MAX) / 1_000)

    def _newest_record(self) -> str:
        # Names sort by instant.
        names = (name for name, _ in self._lake.list(RUNS))
        return max((name for name in names if name.endswith(".json")), default="")

    async def _live(self) -> str:
        """One child, from start to end; what became of it."""
        try:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self._settings()},
                # Java and the workers of Spark are of one group with it, and end with it.
                start_new_session=True,
            )
        except OSError as error:
            return f"could not be started: {error.strerror}"
        self._since_s = time.monotonic()
        assert child.stdout is not None
        try:
            while some := await child.stdout.read(_READ_BYTES):
                for line in some.decode(errors="replace").splitlines():
                    log.info("pipeline", line=line)
            return f"ended with {await child.wait()}"
        finally:
            self._kill()

    def _command(self) -> list[str]:
        # Who is served comes first.
        nice = shutil.which("nice")
        return [
            *([nice, "-n", "10"] if nice else []),
            *(sys.executable, "-m", "ebbmq.cli", "pipeline", "run", "--lake", self._address),
            *("--every", f"{self._config.every_ms}ms"),
        ]

    def _settings(self) -> dict[str, str]:
        """What may be secret: everybody sees a command line, and nobody else an environment."""
        config = self._config
        settings = {
            "MASTER": config.master,
            "MEMORY": config.memory,
            "CONF": "\n".join(map("=".join, config.conf.items())),
            "LAKE_OPTIONS": "\n".join(map("=".join, self._options.items())),
            "BUDGET": "" if config.budget is None else str(config.budget),
            "PARENT": str(os.getpid()),
        }
        return {f"EBBMQ_PIPELINE_{name}": value for name, value in settings.items()}

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            # Its group outlives it where Java does.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
