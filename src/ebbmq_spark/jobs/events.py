"""The events job: what was told since the last run, checked, counted by the hour, and judged.

How far a run read is a watermark for each node: the boot and number of its last manifest, which
only ever rise. A manifest that could not be read is noted by name and tried again by the next run.
"""

from __future__ import annotations

from collections import Counter
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
from ebbmq_spark.jobs import going_on
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
    sound, unknown = quality.usable(told), None
    new = _told(told)
    if new.rejected:
        output.set_aside(EVENTS, quality.rejected(told))
        unknown = quality.unknown_steps(told)
    before = heard_by(last)
    added = {
        node: heard.add({node: before.get(node, {})}, some) for node, some in new.stretches.items()
    }
    again = [place for each in added.values() for place in each.again]
    if again:
        sound = quality.without(sound, frame_of(spark, again, _PLACES))
    after = before | {node: each.heard[node] for node, each in added.items()}
    steps = sound if unknown is None else sound.unionByName(unknown)
    boots = _boots(before, after, new.nameless)
    impossible = _judge_steps(spark, steps, boots, last, output)
    nodes = {
        node: Checks(
            events=new.events[node],
            rejected=new.rejected[node],
            duplicates=known.duplicates,
            missing=known.missing,
            recovered=known.recovered,
            impossible=impossible.get(node, 0),
        )
        for node in sorted(new.events)
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


class _Told(NamedTuple):
    """What rows say, by node; a row that does not say whose it is is of a node without a name."""

    events: Counter[str]
    rejected: Counter[str]
    #: Of numbers, whatever else is wrong with their rows.
    stretches: dict[str, list[heard.Told]]
    #: By boot, too: from the first to the last number that does not say which message it is about.
    nameless: dict[tuple[str, int], heard.Stretch]


def _told(told: DataFrame) -> _Told:
    judged = quality.with_faults(told)
    found = quality.stretches(judged.where(quality.is_numbered()))
    node = F.coalesce("node", F.lit("")).alias("node")
    # Of no boot where there is no number: it is none of those that were told.
    boot = F.when(quality.is_numbered(), F.col("boot")).alias("boot")
    nameless = F.when(quality.is_numbered() & ~quality.is_of_message(), F.col("seq"))
    faulty = (
        judged.where("fault IS NOT NULL")
        .groupBy(node, boot)
        .agg(
            F.count("*").alias("rejected"),
            F.min(nameless).alias("from_seq"),
            F.max(nameless).alias("to_seq"),
        )
    )
    out = _Told(Counter(), Counter(), {}, {})
    for row in found.unionByName(faulty, allowMissingColumns=True).collect():
        if row.rejected is None:
            holes = row.last_seq - row.first_seq + 1 - row.numbers
            stretch = heard.Stretch(row.first_seq, row.last_seq, holes)
            each = heard.Told(row.node, row.boot, stretch, row.times)
            out.stretches.setdefault(row.node, []).append(each)
            out.events[row.node] += row.times
            continue
        out.rejected[row.node] += row.rejected
        if row.boot is None:
            out.events[row.node] += row.rejected
        if row.from_seq is not None:
            out.nameless[row.node, row.boot] = heard.Stretch(row.from_seq, row.to_seq)
    return out


def _boots(
    before: Heard, after: Heard, nameless: Mapping[tuple[str, int], heard.Stretch]
) -> list[tuple[object, ...]]:
    """Rows of _BOOTS, for each boot of which numbers are known."""
    rows: list[tuple[object, ...]] = []
    for node, found in after.items():
        for boot, stretches in found.items():
            earlier, odd = before.get(node, {}).get(boot), nameless.get((node, boot))
            told_to = earlier[-1].last if earlier else None
            kept_from = stretches[-1].last - STEPS_KEPT + 1 if boot == max(found) else None
            if odd is not None and kept_from is not None:
                # It may have been about any message.
                kept_from = max(kept_from, odd.last + 1)
            rows.append((node, boot, told_to, kept_from, _apart(stretches, odd)))
    return rows


def _apart(stretches: Iterable[heard.Stretch], odd: heard.Stretch | None) -> list[list[int]]:
    """The first number of each stretch and how many of it nobody knows; `odd` is one by itself."""
    out: list[list[int]] = []
    for each in stretches:
        if odd is None or odd.last < each.first or each.last < odd.first:
            out.append([each.first, each.holes])
            continue
        if each.first < odd.first:
            out.append([each.first, each.holes])
        out.append([max(each.first, odd.first), 1])
        if odd.last < each.last:
            out.append([odd.last + 1, each.holes])
    return out


def _judge_steps(
    spark: SparkSession,
    events: DataFrame,
    boots: list[tuple[object, ...]],
    last: Record | None,
    output: Output,
) -> dict[str, int]:
    """By node, how many events cannot have happened; the last steps are written, to go on from.

    Args:
        spark: where to run.
        events: each once, in all runs, and those of which nobody knows what they are.
        boots: rows of _BOOTS.
        last: the run before.
        output: where to write to.
    """
    known = of_run(spark, output.lake, STEPS, last.counted if last else None)
    # In the same job, and in its last stage, of which each task counts once.
    observed, nodes = Observation(), sorted({str(node) for node, *_ in boots})
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
    found = [] if run is None else going_on.of_run(lake, table, run)[0]
    files = [lake.file(part.path) for each in found for part in each.parts]
    return read_table(spark, table, files, lake)
