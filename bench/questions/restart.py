"""How soon after kill -9 under load is the first message leased? Counted from process start."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from bench.load import FILL_BATCH, KIB, fifo_messages, fifo_spec, fill, open_with
from bench.row import Row, at_most, stated

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

FIRST_LEASE_S: Final = 1


def measure(run: Run) -> list[Row]:
    """The worst of the restarts; each process goes on with the load until it is killed."""
    count = run.scale(1_000_000, 100_000)
    restarts = run.scale(10, 3)
    directory = run.fresh("restart")
    with open_with(directory, fifo_spec()) as broker:
        fill(run, broker, fifo_messages(FILL_BATCH, KIB), count)
    rng = random.Random(1)  # noqa: S311  # moments to kill at, not secrets
    _start_and_kill(directory, rng.uniform(3, 6))
    times = []
    for number in range(restarts):
        times.append(_start_and_kill(directory, rng.uniform(1, 5)))
        run.progress("restarts", number + 1, restarts)
    settings = {"messages": count, "body": KIB, "restarts": restarts, "page_cache": "warm"}
    return [
        at_most("kill -9 to first lease, worst", max(times), "s", FIRST_LEASE_S, **settings),
        stated("kill -9 to first lease, median", statistics.median(times), "s", **settings),
    ]


def _start_and_kill(directory: Path, after_s: float) -> float:
    """Seconds from starting a process to its first lease; it is killed `after_s` later."""
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.loaded", str(directory)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        first_lease = float(child.stdout.readline())
        time.sleep(after_s)
        child.kill()
    return first_lease - started
