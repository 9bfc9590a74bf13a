"""What a report shows: a few figures of the whole lake, gathered by Spark, drawn by `page`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ebbmq.feed import events as feed
from ebbmq.feed import layout
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark import soundness
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs import going_on, page
from ebbmq_spark.jobs.changes import Changed, changed
from ebbmq_spark.jobs.history import run_name
from ebbmq_spark.jobs.reads import Reads, reads
from ebbmq_spark.jobs.totals import of_parts
from ebbmq_spark.lake import read_table, visible
from ebbmq_spark.schemas import frame_of
from ebbmq_spark.transforms.profiles import HOUR_MS, latencies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.jobs.fleet import Fleet, Tier
    from ebbmq_spark.jobs.history import History
    from ebbmq_spark.jobs.totals import Total
    from ebbmq_spark.lake import Lake

LATEST: Final = layout.LATEST_REPORT
#: Ages by which the backlog is told apart: up to a minute, up to ten, and so on.
AGES_MS: Final = (60_000, 600_000, HOUR_MS, 6 * HOUR_MS, 24 * HOUR_MS, 7 * 24 * HOUR_MS)
#: Hours of which latencies and losses are shown.
HOURS: Final = 48
#: Queues of which latencies are shown: those with the most leases.
QUEUES_SHOWN: Final = 5
_SPAN_MS: Final = HOURS * HOUR_MS
#: A clock that is off by less is not spoken of.
_OFF_MS: Final = 300_000
_OF_HOURS: Final = (
    "queue", "node", "hour_ms", "event", "reason", "count", "bytes", "counted_at_ms",
)  # fmt: skip
#: A message that is lost was `removed`; `lost` is said of a copy.
_LOSSES: Final = feed.LAST - {"acked"}
_PAGES_KEPT: Final = 30
_CLOCKS: Final = (
    T.StructType()
    .add("node", T.StringType())
    .add("now_ms", T.LongType())
    .add("ahead_ms", T.LongType())
)


class Lasting(NamedTuple):
    """How long leases of a queue lasted in an hour, over all nodes."""

    queue: str
    hour_ms: int
    samples: int
    p50_ms: int
    p95_ms: int


class Rate(NamedTuple):
    """A recommended decay factor."""

    queue: str
    factor: float
    reason: str


class Clock(NamedTuple):
    """What a node's clock says, and by how much that is known to be ahead of this machine's."""

    now_ms: int
    ahead_ms: int = 0


class Sources(NamedTuple):
    """What a report is drawn from beside snapshots."""

    lake: Lake
    hours: list[Manifest]
    plan: list[Manifest]
    rates: list[Manifest]
    #: What of newer ones cannot be read; by name, why.
    refused: dict[str, UnknownFeed]

    @property
    def manifests(self) -> list[Manifest]:
        """All of them."""
        return [*self.hours, *self.plan, *self.rates]


class Figures(NamedTuple):
    """All a report shows."""

    lake: str
    record: Record | None
    nodes: list[str]
    #: By age (which of AGES_MS, or older) and importance: messages and bytes.
    backlog: dict[tuple[int, int], tuple[int, int]]
    tiers: dict[str, Tier]
    losses: list[tuple[str, str, int]]
    latencies: list[Lasting]
    reads: list[Reads]
    planned: list[Total]
    rates: list[Rate]
    changed: Changed | None = None
    #: By node, by how much its clock is ahead of this machine's, below zero behind.
    ahead_ms: Mapping[str, int] = MappingProxyType({})


def figures(
    spark: SparkSession,
    sources: Sources,
    fleet: Fleet,
    record: Record | None,
    before: Record | None,
    planned: list[Total] | None = None,
) -> Figures:
    """Gather what a report shows.

    Args:
        spark: where to run.
        sources: what runs and streams wrote.
        fleet: the last snapshots.
        record: the run that is reported.
        before: the run of which it is told what became of its plan.
        planned: what its plan asks for; that of the last plan unless given.
    """
    lake, files = sources.lake, _files(sources.lake, sources.hours)
    # There are few hours and queues: these need no Spark.
    hours = _columns(lake, files, *_OF_HOURS)
    profiles = read_table(spark, PROFILES, files, lake)
    clocks = _clocks(fleet, hours)
    known = frame_of(spark, [(node, *clock) for node, clock in clocks.items()], _CLOCKS)
    if planned is None:
        planned = of_parts(lake, [part for each in sources.plan for part in each.parts])
    rates = _columns(lake, _files(lake, sources.rates), "queue", "factor", "reason")
    return Figures(
        lake=lake.where,
        record=record,
        nodes=[each.node for each in fleet.snapshots],
        backlog=_backlog(spark, lake, fleet),
        tiers=fleets.tiers(fleet),
        losses=_losses(
            row for row in hours if row["hour_ms"] > clocks[row["node"]].now_ms - _SPAN_MS
        ),
        latencies=_latencies(_recent(profiles, known)),
        reads=reads(spark, lake, fleet, profiles, hours, known),
        planned=planned,
        rates=sorted(Rate(**row) for row in rates),
        changed=changed(before, fleet, hours),
        ahead_ms={node: clock.ahead_ms for node, clock in clocks.items() if clock.ahead_ms},
    )


def _clocks(fleet: Fleet, hours: Iterable[Mapping[str, Any]]) -> dict[str, Clock]:
    """What the clock of each node says: as its snapshot tells, or else its newest hour.

    That was what it said when it was counted; a node that tells nothing since is as much older.
    """
    newest: dict[str, tuple[int, int]] = {}
    for row in hours:
        counted_ms = row["counted_at_ms"] or min(row["hour_ms"], fleet.at_ms)
        told = counted_ms, row["hour_ms"]
        newest[row["node"]] = max(newest.get(row["node"], told), told)
    found = {
        node: Clock(hour_ms + HOUR_MS + max(0, fleet.at_ms - counted_ms))
        for node, (counted_ms, hour_ms) in newest.items()
    }
    for each in fleet.snapshots:
        ahead_ms = each.now_ms - fleet.at_ms
        is_off = abs(ahead_ms) >= _OFF_MS
        found[each.node] = Clock(each.now_ms, ahead_ms if is_off else 0)
    return found


def _recent(profiles: DataFrame, clocks: DataFrame) -> DataFrame:
    """The hours that are shown, of each node by its clock, as if all of them were right."""
    shifted = F.col("hour_ms") - F.round(F.col("ahead_ms") / HOUR_MS) * HOUR_MS
    return (
        profiles.join(F.broadcast(clocks), on="node", how="inner")
        .where(F.col("hour_ms") > F.col("now_ms") - _SPAN_MS)
        .withColumn("hour_ms", shifted.cast("long"))
        .select(*profiles.columns)
    )


def _columns(lake: Lake, files: list[str], *names: str) -> list[dict[str, Any]]:
    """Rows of a few columns; one that an older file lacks is empty."""
    rows: list[dict[str, Any]] = []
    for file in files:
        with soundness.named(file), pq.ParquetFile(lake.open(file)) as opened:
            there = [name for name in names if name in opened.schema_arrow.names]
            found = opened.read(there, use_threads=False).to_pylist()
        rows += [{**dict.fromkeys(names), **row} for row in found]
    return rows


def _files(lake: Lake, manifests: Iterable[Manifest]) -> list[str]:
    return [lake.file(part.path) for each in manifests for part in each.parts]


def sources(lake: Lake, known: History, aside: Mapping[str, UnknownFeed]) -> Sources:
    """What there is to report.

    Profiles are those of the run that counted last; without one, those of a stream. One that was
    begun anew has counted little by now, and a run that was killed nothing.

    Args:
        lake: where.
        known: its records.
        aside: manifests that are known to name a damaged file, and why.
    """
    counted = going_on.base(lake, known, aside, anew=True)
    wrong = dict(counted.refused)
    hours = [each for each in counted.manifests if each.table == PROFILES.name]
    if not hours:
        hours = _last(lake, PROFILES, aside, wrong, lambda each: each.node != layout.PIPELINE)
    ended = {each.run for each in known.records}

    def has_ended(manifest: Manifest) -> bool:
        return run_name(manifest.written_at_ms) in ended

    plan, rates = (_last(lake, table, aside, wrong, has_ended) for table in (PLANS, RATES))
    return Sources(lake, hours, plan, rates, wrong)


def _last(
    lake: Lake,
    table: Table,
    aside: Mapping[str, UnknownFeed],
    wrong: dict[str, UnknownFeed],
    counts: Callable[[Manifest], bool],
) -> list[Manifest]:
    """The newest manifest of a table that counts and can be read.

    Those that cannot be are added to `wrong`.
    """
    found = visible(lake, table)
    wrong |= zip(found.refused_names, found.refused, strict=True)
    for each in sorted(
        filter(counts, found.manifests), key=lambda each: each.written_at_ms, reverse=True
    ):
        faults = {**soundness.refused(lake, [each])}
        name = soundness.name_of(each)
        if name in aside:
            faults[name] = aside[name]
        if not faults:
            return [each]
        wrong |= faults
    return []


def _backlog(
    spark: SparkSession, lake: Lake, fleet: Fleet
) -> dict[tuple[int, int], tuple[int, int]]:
    clocks = spark.createDataFrame(
        [(each.node, each.now_ms) for each in fleet.snapshots], "node string, now_ms long"
    )
    catalog = read_table(
        spark, CATALOG, fleet.files, lake, ("node", "enqueued_at_ms", "importance", "bytes")
    )
    age_ms = F.col("now_ms") - F.col("enqueued_at_ms")
    # Nested from the back, so that the first bound that holds decides.
    which = F.lit(len(AGES_MS))
    for number, bound in reversed(list(enumerate(AGES_MS))):
        which = F.when(age_ms <= bound, F.lit(number)).otherwise(which)
    rows = (
        catalog.join(F.broadcast(clocks), on="node", how="inner")
        .groupBy(which.alias("age"), "importance")
        .agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
        .collect()
    )
    return {(row.age, row.importance): (row.messages, row.bytes) for row in rows}


def _losses(recent: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    found: dict[tuple[str, str], int] = {}
    for row in recent:
        if row["event"] in _LOSSES:
            key = row["event"], row["reason"]
            found[key] = found.get(key, 0) + row["count"]
    return sorted(((*key, times) for key, times in found.items()), key=lambda each: -each[2])


def _latencies(recent: DataFrame) -> list[Lasting]:
    # Over all nodes: a queue is one to who reads this.
    rows = latencies(recent.withColumn("node", F.lit(""))).collect()
    told = sorted(Lasting(r.queue, r.hour_ms, r.samples, r.p50_ms, r.p95_ms) for r in rows)
    leases: dict[str, int] = {}
    for each in told:
        leases[each.queue] = leases.get(each.queue, 0) + each.samples
    shown = sorted(leases, key=lambda queue: (-leases[queue], queue))[:QUEUES_SHOWN]
    return [each for each in told if each.queue in shown]


def keep(lake: Lake, run: str, told: Figures, draw: Callable[[Figures], str] = page.html) -> None:
    """Write the page of a run, and as the latest one; old ones go."""
    drawn = draw(told).encode()
    lake.replace(f"{layout.REPORTS}/{run}.html", drawn)
    lake.replace(LATEST, drawn)
    pages = [name for name in lake.list(layout.REPORTS) if name.endswith(".html")]
    lake.delete([name for name in pages if name != LATEST][:-_PAGES_KEPT])
