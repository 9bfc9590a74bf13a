"""What a report shows: a few figures of the whole lake, gathered by Spark, drawn by `page`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import functions as F

from ebbmq.feed import layout
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs import page
from ebbmq_spark.jobs.changes import Changed, changed
from ebbmq_spark.jobs.reads import Reads, reads
from ebbmq_spark.jobs.totals import summary
from ebbmq_spark.lake import read_table, visible
from ebbmq_spark.transforms.profiles import HOUR_MS, latencies

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.jobs.fleet import Fleet, Tier
    from ebbmq_spark.jobs.totals import Total
    from ebbmq_spark.lake import Lake

LATEST: Final = layout.LATEST_REPORT
#: Ages by which the backlog is told apart: up to a minute, up to ten, and so on.
AGES_MS: Final = (60_000, 600_000, HOUR_MS, 6 * HOUR_MS, 24 * HOUR_MS, 7 * 24 * HOUR_MS)
#: Hours of which latencies and losses are shown.
HOURS: Final = 48
#: Queues of which latencies are shown: those with the most leases.
QUEUES_SHOWN: Final = 5
_LOSSES: Final = ("stale", "expired", "dead_lettered", "removed", "lost")
_PAGES_KEPT: Final = 30


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


def figures(
    spark: SparkSession,
    lake: Lake,
    fleet: Fleet,
    record: Record | None,
    before: Record | None,
    planned: list[Total] | None = None,
) -> Figures:
    """Gather what a report shows.

    Args:
        spark: where to run.
        lake: which.
        fleet: its last snapshots.
        record: the run that is reported.
        before: the run of which it is told what became of its plan.
        planned: what its plan asks for; that of the last plan unless given.
    """
    files = _last(lake, PROFILES)
    # There are few hours and queues: these need no Spark.
    hours = _columns(lake, files, "queue", "hour_ms", "event", "reason", "count", "bytes")
    profiles = read_table(spark, PROFILES, files, lake)
    newest = max((row["hour_ms"] for row in hours), default=0)
    since_ms = newest - HOURS * HOUR_MS
    if planned is None:
        planned = summary(read_table(spark, PLANS, _last(lake, PLANS), lake))
    rates = _columns(lake, _last(lake, RATES), "queue", "factor", "reason")
    return Figures(
        lake=lake.where,
        record=record,
        nodes=[each.node for each in fleet.snapshots],
        backlog=_backlog(spark, lake, fleet),
        tiers=fleets.tiers(fleet),
        losses=_losses([row for row in hours if row["hour_ms"] > since_ms]),
        latencies=_latencies(profiles.where(F.col("hour_ms") > since_ms)),
        reads=reads(spark, lake, fleet, profiles, hours, newest + HOUR_MS),
        planned=planned,
        rates=sorted(Rate(**row) for row in rates),
        changed=changed(before, fleet, hours),
    )


def _columns(lake: Lake, files: list[str], *names: str) -> list[dict[str, Any]]:
    return [
        row
        for file in files
        for row in pq.read_table(
            lake.open(file), columns=list(names), partitioning=None
        ).to_pylist()
    ]


def _last(lake: Lake, table: Table) -> list[str]:
    """The files of the newest manifest of a table that every run writes as a whole."""
    found = visible(lake, table).manifests
    newest = max(found, key=lambda each: each.written_at_ms, default=None)
    return [lake.file(part.path) for part in newest.parts] if newest else []


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


def _losses(recent: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
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
