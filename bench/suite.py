"""Runs the questions, each in a process of its own so that memory figures are clean."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench.row import Row
from bench.run import Run, calibrate_us
from ebbmq.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: In the order they are asked: module of `bench.questions`, and what it answers.
QUESTIONS: Final = {
    "publish": "What does a durable publish cost?",
    "group_commit": "What do concurrent publishers gain from one flush for all?",
    "journal": "What does the journal add to writing the bare bytes?",
    "lease": "What does it cost to lease and ack?",
    "deep_fifo": "What changes with 10 M messages, and what is left after draining?",
    "deep_banded": "What changes with 10 M messages that decay?",
    "budgets": "How many bytes for a lease, a retry, a producer's id, a further copy?",
    "backlog": "How much RAM does 1 GiB of backlog take, and is it there when it is leased?",
    "stale": "How long does it take to let go of 1 M stale messages, and who waits?",
    "restart": "How soon after kill -9 is the first message leased?",
    "stragglers": "How much disk do a few old messages hold?",
    "http": "What does the broker serve over HTTP, and what does serving cost in memory?",
    "brokers": "What do servers that people use as queues do with the same load?",
    "feed": "What does a feed cost who publishes?",
    "rules": "What does it cost to choose a device by rules?",
    "holding": "What do rules and further copies cost a publisher?",
    "moves": "How fast do messages move between devices, and does delivery notice?",
    "crossings": "What does it take to know when 10 M messages fade?",
    "archive": "How fast does a backlog go to an archive, and come back?",
    "apply": "How fast does a broker apply a plan, and does delivery notice?",
    "plan": "How long does a plan for 20 M messages take on Spark?",
    "simulation": "How fast does a simulation try policies?",
    "connector": "How fast does Spark read a lake, and lease from a queue?",
    "adaptive": "What does adaptive holding save beside three fixed copies?",
    "peers": "What would the same cost with another embedded queue?",
}


class UnansweredError(Exception):
    """A question ended without an answer."""


def ask(
    question: str, *, quick: bool, data: Path | None, tell: Callable[[str, int, int], None]
) -> list[Row]:
    """Answer one question in a child process, on a scratch directory that is removed after."""
    scratch = Path(tempfile.mkdtemp(prefix="ebbmq-bench-", dir=data))
    command = [sys.executable, "-m", "bench.child", question, str(scratch)]
    try:
        with subprocess.Popen(
            [*command, "--quick"] if quick else command, stdout=subprocess.PIPE
        ) as child:
            rows = _listen(child, tell)
        if child.returncode != 0:
            raise UnansweredError(f"{question} ended with exit code {child.returncode}")
        return rows
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _listen(child: subprocess.Popen[bytes], tell: Callable[[str, int, int], None]) -> list[Row]:
    rows: list[Row] = []
    try:
        for line in child.stdout or ():
            _hear(msgspec.json.decode(line), rows, tell)
    except BaseException:
        child.kill()
        raise
    return rows


def _hear(said: dict[str, Any], rows: list[Row], tell: Callable[[str, int, int], None]) -> None:
    if "row" in said:
        rows.append(msgspec.convert(said["row"], Row))
    elif "lacks" in said:
        raise UnansweredError(said["lacks"])
    else:
        tell(*said["progress"])


def answer(
    question: str, directory: Path, *, quick: bool, say: Callable[[dict[str, Any]], None]
) -> None:
    """Answer one question in this process, calibrated before and after; or say what it lacks."""
    run = Run(
        directory,
        quick=quick,
        tell=lambda label, done, total: say({"progress": (label, done, total)}),
    )
    before = calibrate_us()
    try:
        module = importlib.import_module(f"bench.questions.{question}")
        rows: list[Row] = module.measure(run)
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        say({"lacks": f"{question} needs {package}: pip install 'ebbmq[bench,spark]'"})
        return
    except ClientError as error:
        say({"lacks": f"{error.detail}; {error.action}"})
        return
    calibration_us = (before + calibrate_us()) / 2
    for row in rows:
        say({"row": row.with_multiple_of(calibration_us)})


def machine(names: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "calibration_us": round(calibrate_us(), 2),
        "questions": list(names),
        "quick": quick,
    }
