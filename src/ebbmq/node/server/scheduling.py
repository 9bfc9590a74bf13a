"""The pipeline as a child of the server: started now and then, watched, killed with it.

Spark runs in a process of its own, with Java in another; what becomes of them is nobody's trouble
here. A run that fails is told and tried again at the next time; one that hangs is killed. Where
another is at work on the lake, a run is left to it. A child whose parent is gone ends by itself:
its standard input is a pipe that only the server holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.feed import layout
from ebbmq.feed.attended import Errand, Outcome
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ebbmq.node.config import PipelineConfig

#: Of what a child says, so much is kept: the last lines tell why it failed.
_SAID_BYTES: Final = 64 * 1024
_LINES: Final = 2


class Fault(msgspec.Struct, frozen=True):
    """Why a run failed, as a command says it under `--json`."""

    #: What is the same for the same reason; details tell paths and processes, too.
    code: str
    detail: str
    action: str = ""

    @property
    def said(self) -> str:
        """For people."""
        return f"{self.detail}; {self.action}" if self.action else self.detail


#: What went wrong with a run; None if nothing did, and then what came of it, if it said so.
Ended = tuple[Fault | None, Outcome | None]


class Scheduled:
    """The runs of the pipeline that a server starts."""

    def __init__(
        self, config: PipelineConfig, lake: str, options: Mapping[str, str] | None = None
    ) -> None:
        """Name what is run; nothing is started yet.

        Args:
            config: how often, and where.
            lake: a directory, or the URL of an object store.
            options: of that store, as obstore names them.
        """
        self._config = config
        self._lake = lake
        self._options = dict(options or {})
        self._child: asyncio.subprocess.Process | None = None
        self.runs = 0
        self.failures = 0
        #: Why the last run failed; None while all is well.
        self.problem: Fault | None = None

    async def run(self) -> None:
        """Start a run every so often, one at a time, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._config.every_ms / 1_000)
                self._ended(*await self._once())
        finally:
            self._kill()

    def troubles(self) -> list[str]:
        """What is wrong with the runs, for people."""
        if self.problem is None:
            return []
        said = self.problem.said
        return [f"the pipeline did not run: {said}; messages are not touched by that"]

    def _ended(self, problem: Fault | None, outcome: Outcome | None) -> None:
        self.runs += 1
        if problem is None:
            if self.problem is not None:
                log.info("pipeline_well_again", lake=self._lake)
            if outcome is not None:
                self._tell(outcome)
        else:
            self.failures += 1
            # The same is not said again.
            if self.problem is None or problem.code != self.problem.code:
                log.warning("pipeline_failed", lake=self._lake, detail=problem.said)
        self.problem = problem

    def _tell(self, outcome: Outcome) -> None:
        report = f"{self._lake.rstrip('/')}/{layout.LATEST_REPORT}"
        if outcome.run is None:
            log.info("pipeline_left_to_another", lake=self._lake)
        else:
            log.info("pipeline_ran", **msgspec.structs.asdict(outcome), report=report)

    async def _once(self) -> Ended:
        """One run; what went wrong with it, or what came of it."""
        try:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # Java and the workers of Spark are of one group with it, and end with it.
                start_new_session=True,
            )
        except OSError as error:
            return Fault("not_started", f"it could not be started: {error.strerror}"), None
        # They may be secrets, and a command line is seen by everybody.
        assert child.stdin is not None
        errand = Errand(lake_options=self._options, conf=self._config.conf)
        child.stdin.write(msgspec.json.encode(errand) + b"\n")
        try:
            async with asyncio.timeout(self._config.timeout_ms / 1_000):
                told, said = await asyncio.gather(_last_of(child.stdout), _last_of(child.stderr))
                code = await child.wait()
        except TimeoutError:
            late = f"it took longer than {self._config.timeout_ms} ms and was ended"
            return Fault("too_long", late), None
        finally:
            self._kill()
        if code == 0:
            return None, _outcome(told)
        return _fault(said, code), None

    def _command(self) -> list[str]:
        # Who is served comes first.
        nice = shutil.which("nice")
        config = self._config
        return [
            *([nice, "-n", "10"] if nice else []),
            *(sys.executable, "-m", "ebbmq.cli", "pipeline", "run", "--attended", "--json"),
            *("--lake", self._lake, "--master", config.master, "--memory", config.memory),
            *(() if config.budget is None else ("--budget", str(config.budget))),
        ]

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            # Its group outlives it where Java does.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def address_of(lake: str, data: Path) -> str:
    """A lake as others find it: a directory is named from the data directory on."""
    return lake if "://" in lake else str(data / lake)


def _outcome(told: str) -> Outcome | None:
    """What a run says of itself in its last line; None if that is something else."""
    lines = told.splitlines() or [""]
    try:
        return msgspec.json.decode(lines[-1], type=Outcome)
    except msgspec.DecodeError:
        return None


def _fault(said: str, code: int) -> Fault:
    """Why a run failed, by its last line; else what it said, or how it ended."""
    lines = [line for line in said.splitlines() if line.strip()]
    try:
        return msgspec.json.decode(lines[-1] if lines else "", type=Fault)
    except msgspec.DecodeError:
        ended = f"it ended with {code}"
        return Fault(lines[-1] if lines else ended, " ".join(lines[-_LINES:]) or ended)


async def _last_of(stream: asyncio.StreamReader | None) -> str:
    """All that is said is read, and the end of it kept."""
    assert stream is not None
    said = b""
    while some := await stream.read(_SAID_BYTES):
        said = (said + some)[-_SAID_BYTES:]
    return said.decode(errors="replace")
