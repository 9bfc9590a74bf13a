"""A broker that takes what upkeep offers for its archive, and is stopped at a change of that.

python -m tests.pipeline.taking DIRECTORY CONFIG: the store in DIRECTORY/offered is copied, and a
    fork takes what is offered to the copy and is killed: that named 0 before the first change, 1
    after the first, and so on.
python -m tests.pipeline.taking DATA CONFIG copied: taken from a service, and killed when that has
    copied the first pack to its place, and not yet deleted it where it was.
python -m tests.pipeline.taking serve ..: the server; after a change in the middle it writes the
    file `reached` beside its data, and goes on once there is `go on`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore

from ebbmq import Broker
from ebbmq.cli.main import main
from ebbmq.holding.adopting import Adoption

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.holding.contract import Adopted

OFFERED: Final = "offered"
REACHED: Final = "reached"
COPIED: Final = "copied"
GO_ON: Final = "go on"
#: A new pack is in its place, and what it replaces is there, too.
MIDDLE: Final = 2


def at_change(at: int, then: Callable[[], object]) -> None:
    """Have something done after the nth change that taking makes, or with 0 before the first."""
    numbers, taking, step = itertools.count(), threading.local(), Adoption.step

    def count() -> None:
        if getattr(taking, "is_so", False) and next(numbers) == at:
            then()

    def counted_step(adoption: Adoption) -> Adopted:
        taking.is_so = True
        if adoption._is_new:  # noqa: SLF001  # nobody else asks
            count()
        try:
            return step(adoption)
        finally:
            taking.is_so = False

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(change)
        def make(*args: Any, **more: Any) -> Any:
            made = change(*args, **more)
            count()
            return made

        return make

    Adoption.step = counted_step  # type: ignore[method-assign]
    for name in ("put", "rename", "delete"):
        setattr(obstore, name, counted(getattr(obstore, name)))


def die() -> None:
    """kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def take(data: Path, config: dict[str, Any]) -> None:
    """Open a store and take what is offered."""
    with Broker.open(data, config) as broker:
        broker.tend_device("cold")


def take_in_forks(directory: Path, config: dict[str, Any]) -> int:
    """Have it taken in copies until one is not killed; returns how many were."""
    for at in itertools.count():
        data = directory / str(at)
        shutil.copytree(directory / OFFERED, data)
        pid = os.fork()
        if pid == 0:
            at_change(at, die)
            take(data, config)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != -signal.SIGKILL:
            shutil.rmtree(data)
            assert status == 0
            return at
    raise AssertionError


def copy_and_die(store: Any, path: str, to: str) -> None:
    """The first half of what a service does to give an object another name."""
    obstore.copy(store, path, to)
    die()


def serve(words: list[str]) -> None:
    """The server, which waits in the middle."""
    beside = Path(words[words.index("--data") + 1]).parent

    def wait() -> None:
        (beside / REACHED).touch()
        while not (beside / GO_ON).exists():
            time.sleep(0.01)

    at_change(MIDDLE, wait)
    main(words)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[1:])
    elif sys.argv[3:] == [COPIED]:
        obstore.rename = copy_and_die
        take(Path(sys.argv[1]), json.loads(sys.argv[2]))
    else:
        sys.stdout.write(f"{take_in_forks(Path(sys.argv[1]), json.loads(sys.argv[2]))}\n")
