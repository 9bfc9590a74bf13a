"""How fast is an archive written anew on Spark, beside a bare scan and write of the same rows?

An archive in a local directory, full packs of messages of 1 KiB, of which two in five are dead. The
bare job reads all columns of all rows with Spark's own Parquet reader and writes the rows that are
alive with its own writer, uncompressed as packs are; it verifies nothing and flushes nothing.
"""

from __future__ import annotations

import secrets
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from ebbmq.bench.load import KIB
from ebbmq.bench.row import Row, at_least, stated

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.bench.run import Run

SHARE: Final = 0.6
ROUNDS: Final = 3
PACK_MESSAGES: Final = 60_000
_STORE: Final = b"u" * 16
_ROOM: Final = 1 << 40


def measure(run: Run) -> list[Row]:
    """The bare job and a run of upkeep, in turns; then the device takes what was made."""
    from ebbmq_spark.java import require_java  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import Settings, spark_session  # noqa: PLC0415
    from ebbmq_spark.upkeep.job import Asked, upkeep  # noqa: PLC0415
    from ebbmq_spark.upkeep.packs import Place  # noqa: PLC0415

    require_java()
    count = run.scale(600_000, 3_000)
    directory = run.fresh("archive")
    _fill(run, directory, count, run.scale(PACK_MESSAGES, 1_000))
    place, looking = Place(directory.as_uri()), Asked(verify=True, compact=False)
    times: dict[str, list[float]] = {"bare": [], "upkeep": [], "verify": []}
    with spark_session(Settings(), "bench") as spark:
        for number in range(run.scale(ROUNDS, 1)):
            times["bare"].append(_timed(lambda: _bare(spark, directory, run.fresh("bare"))))
            shutil.rmtree(directory / "archive" / f"store={_STORE.hex()}" / "_upkeep", True)
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


def _device(directory: Path) -> Any:
    from ebbmq.holding.bucket import Bucket  # noqa: PLC0415  # an extra
    from ebbmq.holding.contract import DeviceSpec  # noqa: PLC0415
    from ebbmq.holding.objects import ObjectDevice  # noqa: PLC0415

    spec = DeviceSpec(
        name="archive", tier="archive", durable=True, failure_domain="here", capacity_bytes=_ROOM
    )
    return ObjectDevice(spec, Bucket(directory.as_uri()), time.perf_counter, tidies=False)


def _fill(run: Run, directory: Path, count: int, each: int) -> None:
    """Packs of messages, of which two in five are deleted."""
    from crc32c import crc32c  # noqa: PLC0415

    from ebbmq.holding.contract import Copy, Key, Properties  # noqa: PLC0415

    device, done = _device(directory), 0
    for size in run.steps(f"filling {count:,}", count, each):
        bodies = [secrets.token_bytes(KIB) for _ in range(size)]
        told = Properties("q", 5, 1_700_000_000_000)
        device.put_many(
            [
                Copy(Key(_STORE, 1, done + at), body, crc32c(body), told)
                for at, body in enumerate(bodies)
            ]
        )
        done += size
    device.delete_many([Key(_STORE, 1, seq) for seq in range(count) if seq % 5 >= 3])


def _take(directory: Path) -> int:
    """Have the device take everything that is offered; how many messages that is."""
    device, taken = _device(directory), 0
    while (step := device.adopt(_STORE)) is not None:
        taken += step.messages
    assert taken == sum(1 for _ in device.scan(_STORE))
    return taken
