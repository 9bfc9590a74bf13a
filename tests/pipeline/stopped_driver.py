"""A driver that runs the pipeline on several lakes, each up to a point, and never ends.

For who kills it: one process, and so one kill, for all points.

python -m tests.pipeline.stopped_driver DIRECTORY, which has a lake for each of POINTS
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.jobs.writing import Output
from ebbmq_spark.session import Settings, spark_session

if TYPE_CHECKING:
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
#: Stages that begin where something else has just ended.
_STAGES: Final = {"counting": "checked", "reporting": "planned"}
#: The one that is not stopped by itself.
RUNS: Final = "runs"


class Stops:
    """Has each thread wait for ever at the point that it is named after."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        publish, end = Output.publish, Output.end

        def publish_or_stop(output: Output, table: Table, *told: Any, **more: Any) -> None:
            self.at(f"{table.name} written")
            publish(output, table, *told, **more)

        def end_or_stop(output: Output, record: Record) -> None:
            self.at("reported")
            end(output, record)
            self.at("recorded")

        Output.publish, Output.end = publish_or_stop, end_or_stop  # type: ignore[method-assign]

    def at(self, point: str) -> None:
        """A point."""
        if threading.current_thread().name == point:
            self._reached.release()
            threading.Event().wait()

    def stage(self, name: str) -> None:
        """A stage of a run."""
        self.at(_STAGES.get(name, name))

    def wait(self) -> None:
        """Until the next one has stopped."""
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
            "spark.default.parallelism": "2",
        },
    )
    with spark_session(settings, "ebbmq stopped") as spark:

        def work(lake: Path) -> None:
            run(spark, Arguments(lake, bounded=False), stops.stage)

        for point in POINTS:
            arguments = (directory / point,)
            threading.Thread(target=work, args=arguments, name=point, daemon=True).start()
            stops.wait()
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        work(directory / RUNS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
