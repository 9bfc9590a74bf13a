"""The events job: what was told since the last run, checked, counted by the hour, and judged.

How far a run read is a watermark for each node: the boot and number of its last manifest, which
only ever rise. A manifest that could not be read is noted by name and tried again by the next run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ebbmq.feed import heard, layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import Checks, Read
from ebbmq.feed.steps import STEPS, STEPS_KEPT
from ebbmq.limits import DAY_MS
from ebbmq_spark import soundness
from ebbmq_spark.jobs.history import run_name
from ebbmq_spark.lake import read_table, visible
from ebbmq_spark.schemas import frame_of, schema_of
from ebbmq_spark.transforms import quality
from ebbmq_spark.transforms.latency import last_factors, recommended_factors
from ebbmq_spark.transforms.profiles import merged, profile, recounted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.heard import Heard
    from ebbmq.feed.layout import Named
    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq.feed.runs import Record
    from ebbmq.feed.settings import QueueParameters
    from ebbmq.feed.table import Table
    from ebbmq_spark.jobs.writing import Output
    from ebbmq_spark.lake import Lake

#: Hours that profiles keep.
KEEP_MS: Final = 30 * DAY_MS
#: What is counted of events.
_COUNTS: Final = ("events", "rejected", "duplicates", "missing", "recovered", "impossible")
_NOTHING: Final = heard.add({}, ())


def _of_boots(*numbers: str) -> T.StructType:
    schema = T.StructType().add("node", T.StringType()).add("boot", T.LongType())
    for name in numbers:
        schema = schema.add(name, T.LongType())
    return schema


_PLACES: Final = _of_boots("first", "last")
_BOOTS: Final = _of_boots("told_to", "kept_from").add(
    "stretches", T.ArrayType(T.ArrayType(T.LongType()))
)
_READ: Final = (
    T.StructType()
    .add("node", T.StringType())
    .add("read_boot", T.LongType())
    .add("read_seq", T.LongType())
)


class Unread(NamedTuple):
    """What was told since a run."""

    manifests: list[Manifest]
    files: list[str]
    read: dict[str, Read]
    refused: dict[str, str]


class Checked(NamedTuple):
    """How many events there were, what was wrong with them, and which numbers there were so far.

    By the names of `Record`.
    """

    events: int
    rejected: int
    duplicates: int
    missing: int
    recovered: int
    impossible: int
    nodes: dict[str, Checks]
    heard: Heard


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
            read[each.node] = Read(each.boot, each.number, each.last_seq or 0)
    wrong |= dict(zip(found.refused_names, found.refused, strict=True))
    refused = {
        name: error.detail for name, error in wrong.items() if name.startswith(f"{EVENTS.name}/")
    }
    files = [lake.file(part.path) for each in new for part in each.parts]
    return Unread(new, files, read, refused)


def check(
    spark: SparkSession, told: DataFrame, last: Record | None, output: Output
) -> tuple[Checked, DataFrame]:
    """See what is wrong with events, by themselves and after what was told to the runs before.

    Rows that are none are set aside, and what this run has of messages is written for the next.

    Returns:
        what was found, and the events that count: each once, in all runs
    """
    sound = quality.usable(told)
    rejected, stretches = _told(told)
    if rejected:
        output.set_aside(EVENTS, quality.rejected(told))
    before = heard_by(last)
    added = {
        node: heard.add({node: before.get(node, {})}, some) for node, some in stretches.items()
    }
    again = [place for each in added.values() for place in each.again]
    if again:
        sound = quality.without(sound, frame_of(spark, again, _PLACES))
    after = before | {node: each.heard[node] for node, each in added.items()}
    impossible = _judge_steps(spark, sound, (before, after), last, output)
    nodes = {
        node: Checks(
            events=rejected.get(node, 0) + sum(each.rows for each in stretches.get(node, ())),
            rejected=rejected.get(node, 0),
            duplicates=known.duplicates,
            missing=known.missing,
            recovered=known.recovered,
            impossible=impossible.get(node, 0),
        )
        for node in sorted({*rejected, *added})
        for known in (added.get(node, _NOTHING),)
    }
    totals = {name: sum(getattr(each, name) for each in nodes.values()) for name in _COUNTS}
    return Checked(**totals, nodes=nodes, heard=after), sound


def heard_by(last: Record | None) -> Heard:
    """Which numbers there were for a run and those before it."""
    if last is None:
        return {}
    # Records of an earlier version say only which number was the last.
    ends: Heard = {
        node: {read.boot: (heard.Stretch(read.last_seq, read.last_seq),)}
        for node, read in last.read.items()
        if read.last_seq
    }
    return {**ends, **last.heard}


def _told(told: DataFrame) -> tuple[dict[str, int], dict[str, list[heard.Told]]]:
    """By node: how many rows cannot be used, and the stretches of those that can."""
    judged = quality.with_faults(told)
    found = quality.stretches(judged.where(F.col("fault").isNull()))
    # A row that does not say whose it is counts as that of a node without a name.
    node = F.coalesce("node", F.lit("")).alias("node")
    faulty = judged.where("fault IS NOT NULL").groupBy(node).agg(F.count("*").alias("times"))
    rejected: dict[str, int] = {}
    stretches: dict[str, list[heard.Told]] = {}
    for row in found.unionByName(faulty, allowMissingColumns=True).collect():
        if row.boot is None:
            rejected[row.node] = row.times
            continue
        holes = row.last_seq - row.first_seq + 1 - row.numbers
        stretch = heard.Stretch(row.first_seq, row.last_seq, holes)
        stretches.setdefault(row.node, []).append(
            heard.Told(row.node, row.boot, stretch, row.times)
        )
    return rejected, stretches


def _judge_steps(
    spark: SparkSession,
    events: DataFrame,
    heard: tuple[Heard, Heard],
    last: Record | None,
    output: Output,
) -> dict[str, int]:
    """By node, how many events cannot have happened; the last steps are written, to go on from.

    Args:
        spark: where to run.
        events: each once, in all runs.
        heard: which numbers there were before, and are now.
        last: the run before.
        output: where to write to.
    """
    before, after = heard
    known = of_run(spark, output.lake, STEPS, last.counted if last else None)
    boots = [
        (
            node,
            boot,
            before[node][boot][-1].last if boot in before.get(node, {}) else None,
            stretches[-1].last - STEPS_KEPT + 1 if boot == max(found) else None,
            [[each.first, each.holes] for each in stretches],
        )
        for node, found in after.items()
        for boot, stretches in found.items()
    ]
    # In the same job, and in its last stage, of which each task counts once.
    observed, nodes = Observation(), sorted(after)
    counts = [
        F.sum(F.when(F.col("node") == node, F.col("impossible"))).alias(f"of_{number}")
        for number, node in enumerate(nodes)
    ]
    steps = (
        quality.next_steps(events, known, frame_of(spark, boots, _BOOTS))
        .observe(observed, F.count("*").alias("messages"), *counts)
        .where("is_kept")
        .select(*STEPS.names)
    )
    output.publish(STEPS, output.write(STEPS, steps))
    return {node: observed.get[f"of_{number}"] or 0 for number, node in enumerate(nodes)}


def count(
    spark: SparkSession,
    events: DataFrame,
    last: Record | None,
    output: Output,
    *,
    full: bool = False,
) -> None:
    """Add what happened to the profiles of the last run, and write them anew.

    Args:
        spark: where to run.
        events: each once, in all runs.
        last: the run before.
        output: where to write to.
        full: these are all events that are there, also those that runs before counted.
    """
    known = of_run(spark, output.lake, PROFILES, last.counted if last else None)
    new = profile(events, output.at_ms)
    if full:
        # Of what an earlier version wrote, too, each key has one row then.
        known = merged(known, output.at_ms, KEEP_MS)
    parts = recounted(known, new) if full else known.unionByName(new)
    whole = merged(parts, output.at_ms, KEEP_MS)
    output.publish(PROFILES, output.write(PROFILES, whole.coalesce(1)))


def since(spark: SparkSession, events: DataFrame, last: Record | None) -> DataFrame:
    """Of all events those that were told after a run had read."""
    read = [(node, each.boot, each.last_seq) for node, each in (last.read if last else {}).items()]
    is_later = F.struct("boot", "seq") > F.struct("read_boot", "read_seq")
    return (
        events.join(F.broadcast(frame_of(spark, read, _READ)), on="node", how="left")
        .where(F.col("read_boot").isNull() | is_later)
        .select(*events.columns)
    )


def judge(
    spark: SparkSession,
    events: DataFrame,
    queues: Iterable[QueueParameters],
    last: Record | None,
    output: Output,
    *,
    hold_ms: int,
) -> None:
    """Recommend decay factors from what happened since a run, a step from its own; write them."""
    before = of_run(spark, output.lake, RATES, last.counted if last else None)
    factors = recommended_factors(
        events,
        queues,
        last_factors(before, output.at_ms),
        now_ms=output.at_ms,
        until_ms=output.at_ms + hold_ms,
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
    return read_table(spark, table, files_of(lake, table, run), lake)


def files_of(lake: Lake, table: Table, run: str | None) -> list[str]:
    """The files of a table that a run wrote; none for a run there was not."""
    # A run is named by its instant, and so are its manifests.
    found = visible(lake, table, lambda told: run_name(told.at_ms) == run).files
    return [file for file in found if layout.told_in(file, "run") == run]
