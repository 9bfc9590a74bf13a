"""A stream that waits for ever at a point of a batch: for who kills it.

python -m tests.pipeline.stopped_stream LAKE POINT REACHED, a file that is there once it is so far
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbmq_spark.jobs import stream
from ebbmq_spark.jobs.writing import Output
from ebbmq_spark.session import Settings, spark_session
from tests.pipeline.patience import patiently

if TYPE_CHECKING:
    from collections.abc import Callable

#: Spark has begun with a batch, what is none of it is kept aside, and its sums can be seen.
BEGUN: Final = "begun"
ASIDE: Final = "aside"
WRITTEN: Final = "written"
POINTS: Final = (BEGUN, ASIDE, WRITTEN)
PARTITIONS: Final = 4


def stopping(work: Callable[..., Any], reached: Path, *, before: bool = False) -> Any:
    """As `work`, except that it never comes to its end."""

    def stop(*args: Any, **more: Any) -> None:
        if not before:
            work(*args, **more)
        reached.touch()
        threading.Event().wait()

    return stop


def main(lake: Path, point: str, reached: Path) -> None:
    batches = stream._Batches  # noqa: SLF001  # it has no other name
    if point == BEGUN:
        batches.write = stopping(batches.write, reached, before=True)  # type: ignore[method-assign]
    elif point == ASIDE:
        Output.set_aside = stopping(Output.set_aside, reached)  # type: ignore[method-assign]
    else:
        Output.publish = stopping(Output.publish, reached)  # type: ignore[method-assign]
    settings = Settings(master="local[2]", memory="512m", shuffle_partitions=2)
    asked = stream.Arguments(lake, once=True, partitions=PARTITIONS, files_per_batch=1)
    with spark_session(settings, "ebbmq stopped stream") as spark:
        patiently(lambda: stream.stream(spark, asked))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
