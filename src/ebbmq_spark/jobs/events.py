"""The events job: what was told since the last run, checked, counted by the hour, and judged.

How far a run read is a watermark for each node: the boot and number of its last manifest, which
only ever rise. A manifest that could not be read is noted by name and tried again by the next run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from ebbmq.feed import layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import Read
from ebbmq.limits import DAY_MS
from ebbmq_spark import soundness
from ebbmq_spark.jobs.history import run_name
from ebbmq_spark.lake import read_table, visible
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.transforms import quality
from ebbmq_spark.transforms.latency import adapting, recommended_factors
from ebbmq_spark.transforms.profiles import merged, profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.layout import Named
    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq.feed.runs import Record
    from ebbmq.feed.settings import QueueParameters
    from ebbmq.feed.table import Table
    from ebbmq_spark.jobs.writing import Output
    from ebbmq_spark.lake import Lake

#: Hours that profiles keep.
KEEP_MS: Final = 30 * DAY_MS


class Unread(NamedTuple):
    """What was told since a run."""

    manifests: list[Manifest]
    files: list[str]
    read: dict[str, Read]
    #: Numbers between the last run and this one that nobody told.
    missing: int
    refused: dict[str, str]


class Checked(NamedTuple):
    """How many events there were, and what was wrong with them."""

    events: int = 0
    rejected: int = 0
    duplicates: int = 0
    missing: int = 0
    impossible: int = 0


def unread(lake: Lake, last: Record | None, aside: Mapping[str, UnknownFeed]) -> Unread:
    """The events of a lake that a run, and those before it, did not read.

    Args:
        lake: where.
        last: the run.
        aside: manifests that are known to name a damaged file, and why.
    """
    read = dict(last.read) if last else {}
    failed = last.refused if last else {}

    def is_new_or_failed(told: Named) -> bool:
        known = read.get(told.node)
        if known is None or (known.boot, known.number) < (told.boot, told.number):
            return True
        return layout.manifest_file(EVENTS.name, *told) in failed

    found = visible(lake, EVENTS, is_new_or_failed)
    wrong = {**soundness.refused(lake, found.manifests), **aside}
    new: list[Manifest] = []
    missing = 0
    order = sorted(found.manifests, key=lambda each: (each.node, each.boot, each.number))
    for each in order:
        if soundness.name_of(each) in wrong:
            continue
        known = read.get(each.node)
        is_new = known is None or (known.boot, known.number) < (each.boot, each.number)
        if not is_new and soundness.name_of(each) not in failed:
            continue
        new.append(each)
        if is_new:
            if known is not None and known.boot == each.boot and known.last_seq:
                missing += max(0, (each.first_seq or 0) - known.last_seq - 1)
            read[each.node] = Read(each.boot, each.number, each.last_seq or 0)
    wrong |= dict(zip(found.refused_names, found.refused, strict=True))
    refused = {
        name: error.detail for name, error in wrong.items() if name.startswith(f"{EVENTS.name}/")
    }
    files = [lake.file(part.path) for each in new for part in each.parts]
    return Unread(new, files, read, missing, refused)


def check(told: DataFrame, output: Output) -> Checked:
    """Count what is wrong with events, and set aside rows that are none."""
    names = dict(zip(("rows", *Checked._fields[1:]), Checked._fields, strict=True))
    sums = dict.fromkeys(Checked._fields, 0)
    for row in quality.counts(told).collect():
        sums[names[row.what]] += row.times
    if sums["rejected"]:
        output.set_aside(EVENTS, quality.rejected(told))
    return Checked(**sums)


def count(spark: SparkSession, events: DataFrame, last: Record | None, output: Output) -> None:
    """Add what happened to the profiles of the last run, and write them anew."""
    known = of_run(spark, output.lake, PROFILES, last.counted if last else None)
    whole = merged(known.unionByName(profile(events)), output.at_ms - KEEP_MS)
    output.publish(PROFILES, output.write(PROFILES, whole.coalesce(1)))


def judge(
    spark: SparkSession,
    events: DataFrame,
    queues: Iterable[QueueParameters],
    last: Record | None,
    output: Output,
    *,
    hold_ms: int,
) -> None:
    """Recommend decay factors from what happened since the last run, and write them."""
    before = of_run(spark, output.lake, RATES, last.counted if last else None)
    until_ms = output.at_ms + hold_ms
    factors = recommended_factors(
        events, adapting(spark, queues), before, since_ms=0, until_ms=until_ms
    )
    columns = {
        "decided_at_ms": F.lit(output.at_ms),
        "samples": F.col("leases"),
        "reason": F.when(F.col("leases") == 0, F.lit("nothing was leased since")).otherwise(
            F.concat(F.lit("leases last "), F.round("mean_ms").cast("long"), F.lit(" ms"))
        ),
    }
    rows = factors.where((F.col("leases") > 0) | (F.col("factor") != 1.0)).select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in schema_of(RATES)
        )
    )
    output.publish(RATES, output.write(RATES, rows.coalesce(1)))


def of_run(spark: SparkSession, lake: Lake, table: Table, run: str | None) -> DataFrame:
    """What a run wrote of a table; nothing for a run there was not."""
    # A run is named by its instant, and so are its manifests.
    found = visible(lake, table, lambda told: run_name(told.at_ms) == run).files
    files = [file for file in found if layout.told_in(file, "run") == run]
    return read_table(spark, table, files, lake)
