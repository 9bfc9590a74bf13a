"""Ctrl-C while Spark is at work: a command ends with what it has to say, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ebbmq.feed import runs
from tests.pipeline.killing import ROOT, wait_patiently
from tests.pipeline.lakes import DAY_MS, Node
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.crash


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=4_000)
        node.clock.advance(20 * DAY_MS)
    return tmp_path / "lake"


def interrupted(lake: Path, command: str, is_at_work: Callable[[], bool]) -> Ended:
    """What a command comes to if Ctrl-C is pressed: a terminal tells all that it started, too."""
    scratch = Path(tempfile.mkdtemp(prefix="interrupted-"))
    words = ("pipeline", command, "--lake", str(lake), "--master", "local[2]", "--memory", "512m")
    with subprocess.Popen(
        [sys.executable, "-m", "ebbmq.cli", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            wait_patiently(lambda: child.poll() is not None or is_at_work())
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate()
            wait_until(lambda: not is_any_of(child.pid), "all that it started is gone")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    assert not list(scratch.glob("ebbmq-*"))
    scratch.rmdir()
    return Ended(child.returncode, out, err)


def is_any_of(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_stream_that_is_interrupted_tells_what_it_read_and_ends_well(lake: Path) -> None:
    first = lake / "_state" / "stream" / "checkpoint" / "commits" / "0"
    ended = interrupted(lake, "stream", first.exists)
    (record,) = (lake / runs.RUNS).glob("*.json")
    events = runs.decode(record.read_bytes(), record.name).events
    # Spark tells of a batch a moment after it is done, or not if it is stopped in that moment.
    assert events in (0, 30)
    assert (ended.code, ended.out) == (0, f"{events} events read, 0 rejected, 0 told before\n")


def test_a_run_that_is_interrupted_says_so_and_counts_for_nothing(lake: Path) -> None:
    ended = interrupted(lake, "run", lambda: any(lake.glob("plans/run=*/_temporary")))
    # What a terminal shows of Ctrl-C has a line of its own, and so has what Spark logs of it.
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.endswith("\nerror: interrupted\n")
    assert not list((lake / runs.RUNS).glob("*.json"))
