"""How fast is an archive written anew on Spark, beside a bare scan and write of the same rows?

An archive in a local directory, full packs of messages of 1 KiB, of which two in five are dead. The
bare job reads all columns of all rows with Spark's own Parquet reader and writes the rows that are
alive with its own writer, uncompressed as packs are; it verifies nothing and flushes nothing.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from bench import archives
from bench.load import KIB
from bench.row import Row, at_least, stated

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

SHARE: Final = 0.6
ROUNDS: Final = 3


def measure(run: Run) -> list[Row]:
    """The bare job and a run of upkeep, in turns; then the device takes what was made."""
    from ebbmq_spark.java import require_java  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import Settings, spark_session  # noqa: PLC0415
    from ebbmq_spark.upkeep.job import Asked, upkeep  # noqa: PLC0415
    from ebbmq_spark.upkeep.packs import Place  # noqa: PLC0415

    require_java()
    count = run.scale(600_000, 3_000)
    directory = run.fresh("archive")
    archives.fill(run, directory, count)
    archives.kill(directory, [seq for seq in range(count) if seq % 5 >= 3])
    place, looking = Place(directory.as_uri()), Asked(verify=True, compact=False)
    times: dict[str, list[float]] = {"bare": [], "upkeep": [], "verify": []}
    with spark_session(Settings(), "bench") as spark:
        for number in range(run.scale(ROUNDS, 1)):
            times["bare"].append(_timed(lambda: _bare(spark, directory, run.fresh("bare"))))
            shutil.rmtree(directory / "archive" / f"store={archives.STORE.hex()}" / "_upkeep", True)
            times["upkeep"].append(_timed(lambda: upkeep(spark, place, Asked())))
            times["verify"].append(_timed(lambda: upkeep(spark, place, looking)))
            run.progress("turns", number + 1, ROUNDS)
    best = {name: min(taken) for name, taken in times.items()}
    started = time.perf_counter()
    taken = _take(directory)
    took = time.perf_counter() - started
    settings = {"messages": count, "body": KIB, "dead": "2 of 5", "best_of": len(times["bare"])}
    return [
        stated("bare Spark scan and write of the same rows", count / best["bare"], "msg/s"),
        stated("an archive written anew", count / best["upkeep"], "msg/s", **settings),
        at_least(
            "an archive written anew against the bare job",
            best["bare"] / best["upkeep"],
            "x",
            SHARE,
            **settings,
        ),
        stated("checksums verified", count / best["verify"], "msg/s", **settings),
        stated("new packs taken by the device", taken / took, "msg/s"),
    ]


def _timed(job: Any) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def _bare(spark: Any, archive: Path, target: Path) -> None:
    rows = spark.read.parquet(str(archive / "archive"))
    alive = rows.where("seq % 5 < 3")
    alive.write.mode("overwrite").option("compression", "uncompressed").parquet(str(target))


def _take(directory: Path) -> int:
    """Have the device take everything that is offered; how many messages that is."""
    device, taken = archives.device(directory), 0
    while (step := device.adopt(archives.STORE)) is not None:
        taken += step.messages
    assert taken == sum(1 for _ in device.scan(archives.STORE))
    return taken
