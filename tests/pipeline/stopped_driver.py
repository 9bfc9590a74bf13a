"""A driver that runs the pipeline on several lakes, each up to a point, and never ends.

For who kills it: one process, and so one kill, for all points.

python -m tests.pipeline.stopped_driver DIRECTORY, which has a lake for each of POINTS and of ALONE
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbmq.cli.main import cli
from ebbmq_spark import session
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.jobs.writing import Output
from ebbmq_spark.session import Settings, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table

#: In the order in which a run comes to them.
POINTS: Final = (
    "checked",
    "profiles written",
    "rates written",
    "plans written",
    "planned",
    "reported",
    "recorded",
)
#: The same of `pipeline plan`.
ALONE: Final = ("alone: plans written", "alone: plans shown", "alone: recorded")
#: Files of commands that leave nothing else: before the first two of them one is stopped.
PAGE: Final = "page.html"
PICTURE: Final = "picture.png"
BEST: Final = "best.toml"
TRACE: Final = "trace.parquet"
SWEEP: Final = "sweep.toml"
#: Stages that begin where something else has just ended.
_STAGES: Final = {"counting": "checked", "reporting": "planned"}
#: The one that is not stopped by itself.
RUNS: Final = "runs"


class Stops:
    """Has each thread wait for ever at the point that it is named after."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        publish, end, rename = Output.publish, Output.end, Path.rename

        def publish_or_stop(output: Output, table: Table, *told: Any, **more: Any) -> None:
            self.at(f"{table.name} written")
            publish(output, table, *told, **more)
            self.at(f"{table.name} shown")

        def end_or_stop(output: Output, record: Record) -> None:
            self.at("reported")
            end(output, record)
            self.at("recorded")

        def rename_or_stop(path: Path, target: Any) -> Path:
            self.at(Path(target).name)
            return rename(path, target)

        Output.publish, Output.end = publish_or_stop, end_or_stop  # type: ignore[method-assign]
        Path.rename = rename_or_stop  # type: ignore[method-assign]

    def at(self, point: str) -> None:
        """A point."""
        if threading.current_thread().name.removeprefix("alone: ") == point:
            self._reached.release()
            threading.Event().wait()

    def stage(self, name: str) -> None:
        """A stage of a run."""
        self.at(_STAGES.get(name, name))

    def have(self, name: str, work: Callable[[], object]) -> None:
        """Let a thread work until it comes to the point of that name."""

        def to_end() -> None:
            try:
                work()
            finally:
                sys.stdout.write(f"{name}: it came to its end\n")
                self._reached.release()

        threading.Thread(target=to_end, name=name, daemon=True).start()
        self._reached.acquire()


def main(directory: Path) -> None:
    stops = Stops()
    settings = Settings(
        master="local[2]",
        memory="512m",
        shuffle_partitions=2,
        more={
            "spark.sql.session.timeZone": "America/St_Johns",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.default.parallelism": "2",
        },
    )
    with spark_session(settings, "ebbmq stopped") as spark:

        def work(lake: Path, job: Callable[..., object] = run) -> None:
            job(spark, Arguments(lake, bounded=False), stops.stage)

        for point in POINTS:
            stops.have(point, lambda: work(directory / point))  # noqa: B023  # it is waited for
        for point in ALONE:
            stops.have(point, lambda: work(directory / point, run_plan))  # noqa: B023
        # Commands would open a session of their own.
        session.spark_session = lambda *_: contextlib.nullcontext(spark)
        for point, words in commands(directory).items():
            stops.have(point, lambda: cli.main(words, standalone_mode=False))  # noqa: B023
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        work(directory / RUNS)


def commands(directory: Path) -> dict[str, list[str]]:
    """Commands, by the last file that they write."""
    files = {name: str(directory / name) for name in (PAGE, PICTURE, BEST, TRACE, SWEEP)}
    made_up = ["--generate", "overload", "--messages", "300", "--save-trace", files[TRACE]]
    out = ["--policies", files[SWEEP], "--best", files[BEST], "--picture", files[PICTURE]]
    return {
        PAGE: ["pipeline", "report", "--lake", str(directory / POINTS[-1]), "--out", files[PAGE]],
        PICTURE: ["simulate", *made_up, *out],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
