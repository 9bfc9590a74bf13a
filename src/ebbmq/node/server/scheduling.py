"""The pipeline as a child of the server: started now and then, watched, killed with it.

Spark runs in a process of its own, with Java in another; what becomes of them is nobody's trouble
here. A run that fails is told and tried again at the next time; one that hangs is killed. Where
another is at work on the lake, a run is left to it, and only archives are looked after. A child
whose parent is gone ends by itself: its standard input is a pipe that only the server holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.feed import layout
from ebbmq.feed.attended import ArchivePlace, Errand, Outcome
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ebbmq.node.config import PipelineConfig
    from ebbmq.node.devices.settings import DeviceConfig

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
        self,
        config: PipelineConfig,
        lake: str,
        options: Mapping[str, str] | None = None,
        archives: Mapping[str, ArchivePlace] = MappingProxyType({}),
    ) -> None:
        """Name what is run; nothing is started yet.

        Args:
            config: how often, and where.
            lake: a directory, or the URL of an object store.
            options: of that store, as obstore names them.
            archives: what is looked after now and then, by device.
        """
        self._config = config
        self._lake = lake
        self._options = dict(options or {})
        self._archives = dict(archives)
        #: When archives are looked after again, by the clock of the loop.
        self._upkeep_at_s = 0.0
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
        told = msgspec.structs.asdict(outcome)
        kept = told.pop("archives")
        if outcome.run is None:
            log.info("pipeline_left_to_another", lake=self._lake)
        else:
            log.info("pipeline_ran", **told, report=report)
        for device, each in kept.items():
            tell = log.warning if each.damaged else log.info
            done = msgspec.structs.asdict(each)
            del done["failed"]  # a run in which something did ends as failed
            tell("archive_looked_after", device=device, **done)

    def _errand(self) -> Errand:
        """What the next run is asked for beside its command line: archives, if it is time."""
        config, now_s = self._config, asyncio.get_running_loop().time()
        archives = self._archives
        if not config.upkeep_every_ms or now_s < self._upkeep_at_s:
            archives = {}
        return Errand(
            lake_options=self._options,
            conf=config.conf,
            archives=archives,
            keep_ms=config.upkeep_keep_ms,
            verify=config.upkeep_verify,
        )

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
        errand = self._errand()
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
            if errand.archives:
                every_s = self._config.upkeep_every_ms / 1_000
                self._upkeep_at_s = asyncio.get_running_loop().time() + every_s
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


def archives_of(devices: Mapping[str, DeviceConfig], data: Path) -> dict[str, ArchivePlace]:
    """The archives of a node that are left to the pipeline, by device."""
    return {
        name: ArchivePlace(
            each.url or (data / each.directory).resolve().as_uri(), each.options, each.timeout_ms
        )
        for name, each in devices.items()
        if each.kind == "object" and each.upkeep == "pipeline"
    }


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
