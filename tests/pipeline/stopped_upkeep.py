"""A driver that keeps up several archives, each up to a point, and never ends: for who kills it.

python -m tests.pipeline.stopped_upkeep DIRECTORY URL: a store for each of POINTS is in DIRECTORY,
that of TAKING is served at URL; the file STORE says where the archives of those IN_STORE are, which
are in an object store
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbmq.cli.main import cli
from ebbmq_spark import session
from ebbmq_spark.session import Settings, spark_session
from ebbmq_spark.upkeep import job, rewriting
from ebbmq_spark.upkeep.job import Asked, upkeep
from ebbmq_spark.upkeep.packs import Place
from tests.pipeline.patience import patiently
from tests.pipeline.stopped_driver import stopping

if TYPE_CHECKING:
    from collections.abc import Callable

#: All packs are written and nothing is offered; it is offered; a broker is taking it; a task has
#: written a pack and the driver is not told.
WRITTEN: Final = "written"
OFFERED: Final = "offered"
TAKING: Final = "taking"
PACKED: Final = "packed"
POINTS: Final = (WRITTEN, OFFERED, TAKING, PACKED)
#: The same of an archive in an object store.
IN_STORE: Final = ("stored: written", "stored: offered", "stored: packed")
STORE: Final = "store.json"
#: Every pack of which a message is dead is written anew.
DEAD_SHARE: Final = 0.01


def archive(directory: Path, point: str) -> str:
    """Where the archive of a store is."""
    return (directory / point / "data" / "cold").as_uri()


def place_of(directory: Path, point: str) -> Place:
    """The archive that is kept up to a point."""
    if point not in IN_STORE:
        return Place(archive(directory, point))
    told = json.loads((directory / STORE).read_text())[point]
    return Place(told["url"], told["options"])


def command(directory: Path, point: str, url: str) -> list[str]:
    """`ebbmq pipeline upkeep` of an archive, and the server told of it."""
    place = ["--archive", archive(directory, point), "--device", "cold", "--url", url]
    return ["pipeline", "upkeep", *place, "--dead", str(DEAD_SHARE)]


def begin(point: str, work: Callable[[], object], is_there: Callable[[], bool]) -> None:
    """Let a thread, named after its point, work until something is so."""
    thread = threading.Thread(target=work, name=point, daemon=True)
    thread.start()
    while not is_there():
        assert thread.is_alive(), "it came to its end"
        time.sleep(0.01)


def main(directory: Path, url: str) -> None:
    offer = job.offering.offer
    stopped = set()

    def offer_or_stop(bucket: Any, *told: Any) -> bool:
        name = threading.current_thread().name
        point = name.removeprefix("stored: ")
        if point == OFFERED:
            offer(bucket, *told)
        if point in (WRITTEN, OFFERED):
            stopped.add(name)
            threading.Event().wait()
        return offer(bucket, *told)

    job.offering.offer = offer_or_stop
    # Two of them have a task that waits.
    settings = Settings(master="local[3]", memory="512m", shuffle_partitions=1)
    with spark_session(settings, "ebbmq stopped") as spark:

        def keep_up(point: str) -> Callable[[], object]:
            place, asked = place_of(directory, point), Asked(dead_share=DEAD_SHARE)
            return lambda: patiently(lambda: upkeep(spark, place, asked))

        for point in (WRITTEN, OFFERED, *IN_STORE[:2]):
            begin(point, keep_up(point), lambda: point in stopped)  # noqa: B023  # waited for
        # The command would open a session of its own.
        session.spark_session = lambda *_: contextlib.nullcontext(spark)
        words = command(directory, TAKING, url)
        reached = directory / TAKING / "reached"
        begin(TAKING, lambda: cli.main(words, standalone_mode=False), reached.exists)
        rewriter = rewriting._rewriter  # noqa: SLF001
        for point in (PACKED, IN_STORE[2]):
            packed = directory / f"{point} reached"
            rewriting._rewriter = stopping(rewriter, packed)  # noqa: SLF001
            begin(point, keep_up(point), packed.exists)
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
