"""A driver that runs the pipeline on several lakes, each up to a point, and never ends.

For who kills it: one process, and so one kill, for all points.

python -m tests.pipeline.stopped_driver DIRECTORY, which has a lake for each of POINTS and of ALONE,
and the file STORE that says where there is one for each of those in an object store
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbmq_spark import object_tables
from ebbmq_spark.jobs import stream
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.jobs.stream import WRITER
from ebbmq_spark.jobs.writing import Output
from ebbmq_spark.object_lake import ObjectLake
from ebbmq_spark.session import Settings, spark_session
from tests.pipeline.patience import patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.lake import Where

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
#: Those of a run, and of a plan, at which one is stopped on a lake in an object store, too.
IN_STORE: Final = ("checked", "plans written", "reported", "recorded")
ALONE_IN_STORE: Final = ("alone: plans shown",)
#: There, a plan of which a task has stored a file, and the driver is not told yet.
STORED: Final = "stored"
#: And a stream that has shown what its first batch comes to, of which Spark knows nothing yet.
STREAMED: Final = "streamed"
STORE: Final = "store.json"
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
            self.at(f"{table.name} shown")
            if output.run.startswith(WRITER):
                self._wait()

        def end_or_stop(output: Output, record: Record) -> None:
            self.at("reported")
            end(output, record)
            self.at("recorded")

        Output.publish, Output.end = publish_or_stop, end_or_stop  # type: ignore[method-assign]

    def at(self, point: str) -> None:
        """A point."""
        if threading.current_thread().name.removeprefix("alone: ") == point:
            self._wait()

    def _wait(self) -> None:
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
        self.one_is_there()

    def one_is_there(self) -> None:
        """Wait for who was let go."""
        self._reached.acquire()

    def have_task(self, reached: Path, work: Callable[[], object]) -> None:
        """Let a thread work until one of its tasks has stored a file."""
        write = object_tables._writer  # noqa: SLF001  # what tasks do has no other name
        object_tables._writer = stopping(write, reached)  # noqa: SLF001
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive() and not reached.exists():
            time.sleep(0.01)
        object_tables._writer = write  # noqa: SLF001


def stopping(write: Callable[..., Any], reached: Path) -> Callable[..., Any]:
    """As `write`, except that the first task to have stored a file never says so."""

    def writer(*args: Any) -> Callable[..., Iterator[pa.RecordBatch]]:
        store = write(*args)

        def stop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for told in store(batches):
                with contextlib.suppress(FileExistsError):
                    reached.touch(exist_ok=False)
                    threading.Event().wait()
                yield told

        return stop

    return writer


def lake_in_store(directory: Path, point: str) -> ObjectLake:
    """The one of a point."""
    told = json.loads((directory / STORE).read_text())
    return ObjectLake(f"{told['url']}/{named(point)}", told["options"])


def named(point: str) -> str:
    """A point as a part of an address."""
    return point.replace(": ", "-").replace(" ", "-")


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

        def work(lake: Where, job: Callable[..., object] = run) -> None:
            patiently(lambda: job(spark, Arguments(lake, bounded=False), stops.stage))

        for point in POINTS:
            stops.have(point, lambda: work(directory / point))  # noqa: B023  # it is waited for
        for point in ALONE:
            stops.have(point, lambda: work(directory / point, run_plan))  # noqa: B023
        for point in (*IN_STORE, *ALONE_IN_STORE):
            lake, job = lake_in_store(directory, point), run if point in IN_STORE else run_plan
            stops.have(point, lambda: work(lake, job))  # noqa: B023

        def rest() -> None:
            stops.one_is_there()
            # From here on one of the two cores is taken.
            lake = lake_in_store(directory, STORED)
            stops.have_task(directory / STORED, lambda: work(lake, run_plan))
            sys.stdout.write("stopped\n")
            sys.stdout.flush()
            try:
                work(directory / RUNS)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=rest, daemon=True).start()
        # Only in the thread that has opened the session does Spark find sources in Python.
        follow(spark, lake_in_store(directory, STREAMED), directory)


def follow(spark: SparkSession, lake: ObjectLake, directory: Path) -> Record:
    """Stream what there is of the lake in the store."""
    asked = stream.Arguments(lake, once=True, partitions=2, state=directory / "state")
    return patiently(lambda: stream.stream(spark, asked))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
