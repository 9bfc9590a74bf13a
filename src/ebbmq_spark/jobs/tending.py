"""Upkeep of archives at the end of a run, and what the record of the run says of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ebbmq.errors import EbbError
from ebbmq.feed import runs
from ebbmq.feed.runs import Upkeep
from ebbmq_spark.lake import opened
from ebbmq_spark.upkeep.job import upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from ebbmq.feed.runs import Record
    from ebbmq_spark.lake import Where
    from ebbmq_spark.upkeep.job import Asked, Told
    from ebbmq_spark.upkeep.packs import Place


class Tended(NamedTuple):
    """What came of the upkeep of archives, by device."""

    #: Of the run that it was part of; None if the run was left to another.
    record: Record | None
    told: dict[str, Told]
    done: dict[str, Upkeep]


def tend(
    spark: SparkSession,
    where: Where,
    record: Record | None,
    places: Mapping[str, Place],
    asked: Asked,
    tell: Callable[[str], None] = lambda name: None,
) -> Tended:
    """Look after archives, each also if another one failed, and add it to the record of a run.

    The run counts already: who is killed in here leaves a record that does not tell of it.

    Args:
        spark: where it runs.
        where: the lake.
        record: of the run, as the lake has it; None if there was none, and then none is left.
        places: the archives, by device.
        asked: what is to be done.
        tell: is told which one is being looked after.

    Raises:
        EbbError: what `upkeep` raised first; the record says so, too, if there is one.
    """
    told: dict[str, Told] = {}
    done: dict[str, Upkeep] = {}
    failures: list[EbbError] = []
    for name, place in places.items():
        tell(name)
        began_ns = time.monotonic_ns()
        try:
            told[name] = upkeep(spark, place, asked)
        except EbbError as error:
            failures.append(error)
            done[name] = Upkeep(took_ms=_since_ms(began_ns), failed=error.detail)
        else:
            done[name] = _summary(told[name], _since_ms(began_ns))
    if record is not None:
        record = msgspec.structs.replace(record, archives=done)
        opened(where).replace(runs.record_file(record.run), runs.encode(record))
    if failures:
        raise failures[0]
    return Tended(record, told, done)


def _summary(told: Told, took_ms: int) -> Upkeep:
    return Upkeep(
        took_ms=took_ms,
        packs=told.packs,
        rewritten=told.rewritten,
        made=told.made,
        reclaimed_bytes=told.reclaimed_bytes,
        expired=told.expired,
        damaged=len(told.damage),
    )


def _since_ms(began_ns: int) -> int:
    return (time.monotonic_ns() - began_ns) // 1_000_000
