"""A driver that keeps up several archives, each up to a point, and never ends: for who kills it.

python -m tests.pipeline.stopped_upkeep DIRECTORY URL: a store for each of POINTS is in DIRECTORY,
that of TAKING is served at URL
"""

from __future__ import annotations

import contextlib
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
#: Every pack of which a message is dead is written anew.
DEAD_SHARE: Final = 0.01


def archive(directory: Path, point: str) -> str:
    """Where the archive of a store is."""
    return (directory / point / "data" / "cold").as_uri()


def command(directory: Path, point: str, url: str) -> list[str]:
    """`ebbmq pipeline upkeep` of an archive, and the server told of it."""
    place = ["--archive", archive(directory, point), "--device", "cold", "--url", url]
    return ["pipeline", "upkeep", *place, "--dead", str(DEAD_SHARE)]


def begin(work: Callable[[], object], is_there: Callable[[], bool]) -> None:
    """Let a thread work until something is so."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not is_there():
        assert thread.is_alive(), "it came to its end"
        time.sleep(0.01)


def main(directory: Path, url: str) -> None:
    offer = job.offering.offer
    stopped = set()

    def offer_or_stop(bucket: Any, *told: Any) -> bool:
        point = bucket.root.parent.parent.name
        if point == OFFERED:
            offer(bucket, *told)
        if point in (WRITTEN, OFFERED):
            stopped.add(point)
            threading.Event().wait()
        return offer(bucket, *told)

    job.offering.offer = offer_or_stop
    settings = Settings(master="local[2]", memory="512m", shuffle_partitions=1)
    with spark_session(settings, "ebbmq stopped") as spark:

        def keep_up(point: str) -> None:
            asked = Asked(dead_share=DEAD_SHARE)
            patiently(lambda: upkeep(spark, Place(archive(directory, point)), asked))

        for point in (WRITTEN, OFFERED):
            begin(lambda: keep_up(point), lambda: point in stopped)  # noqa: B023  # waited for
        # The command would open a session of its own.
        session.spark_session = lambda *_: contextlib.nullcontext(spark)
        words = command(directory, TAKING, url)
        reached = directory / TAKING / "reached"
        begin(lambda: cli.main(words, standalone_mode=False), reached.exists)
        rewriter, packed = rewriting._rewriter, directory / PACKED / "reached"  # noqa: SLF001
        rewriting._rewriter = stopping(rewriter, packed)  # noqa: SLF001
        begin(lambda: keep_up(PACKED), packed.exists)
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
