"""The plan job: snapshots and parameters in, actions for brokers out.

Incremental by what the snapshots say: a broker writes down when there will be something to do with
a message (`review_at_ms`), at once if it is not kept as it should be, and has messages in that
order. So a run reads the rows that are due and skips the others, needs no memory of earlier runs,
and leaves out nothing that a full one would find (ADR 0026). What happened to messages after the
snapshot is told by events: those are planned for as they are by now, and looked at also if they
were not due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from ebbmq.feed.events import EVENTS
from ebbmq.feed.plans import PLANS
from ebbmq.feed.runs import Action
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import GIB
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.lake import Reach, read_table
from ebbmq_spark.transforms.plans import NEEDED, as_plan, due, judged, within_capacity
from ebbmq_spark.transforms.quality import usable
from ebbmq_spark.transforms.touched import KEY, as_now, since, touched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.jobs.fleet import Fleet
    from ebbmq_spark.jobs.writing import Output
    from ebbmq_spark.lake import Lake

#: How long advice holds unless the caller says otherwise.
HOLD_MS: Final = 3_600_000


class Total(NamedTuple):
    """Actions of a kind between two tiers."""

    action: str
    from_tier: str | None
    to_tier: str | None
    times: int
    bytes: int
    freed_bytes: int


class Planned(NamedTuple):
    """What came of planning."""

    messages: int
    looked_at: int
    actions: dict[str, Action]
    cost_before: float
    cost_after: float
    totals: list[Total]


def plan(
    spark: SparkSession,
    fleet: Fleet,
    output: Output,
    *,
    full: bool = False,
    bounded: bool = True,
    hold_ms: int = HOLD_MS,
) -> Planned:
    """Plan for a fleet and write the plan.

    Args:
        spark: where to run.
        fleet: the snapshots to plan for.
        output: where to write to.
        full: look at every message, not only at those that are due.
        bounded: keep within the room of each tier.
        hold_ms: how long the advice holds.
    """
    changes = _changes(spark, fleet, output.lake)
    catalog = _messages(spark, fleet, output.lake, changes, full=full)
    if not full and output.lake.is_remote:
        # It is counted and then planned for, and fetched once.
        catalog = catalog.persist()
    looked_at = fleet.rows if full else catalog.count()
    # What was decided for a node is dated by its clock.
    chosen = as_plan(judged(catalog, fleets.parameters_of(spark, fleet), 0), hold_ms)
    if bounded:
        chosen = within_capacity(chosen, fleets.capacity(spark, fleet))
    parts = output.write(PLANS, chosen)
    catalog.unpersist()
    if changes is not None:
        changes.unpersist()
    files = [output.lake.file(part.path) for part in parts]
    written = read_table(spark, PLANS, files, output.lake)
    totals = summary(written)
    output.publish(PLANS, parts)
    tiers = fleets.tiers(fleet)
    before = sum(tier.cost for tier in tiers.values())
    prices = {name: tier.price for name, tier in tiers.items()}
    after = before + _change(totals, prices)
    return Planned(fleet.rows, looked_at, _by_action(totals), before, after, totals)


def _changes(spark: SparkSession, fleet: Fleet, lake: Lake) -> DataFrame | None:
    """What became of messages since the snapshots; None where nothing was told since."""
    files = [lake.file(part.path) for each in fleet.told for part in each.parts]
    if not files:
        return None
    events = usable(read_table(spark, EVENTS, files, lake))
    return touched(since(events, fleets.snapshots_of(spark, fleet))).persist()


def _messages(
    spark: SparkSession, fleet: Fleet, lake: Lake, changes: DataFrame | None, *, full: bool
) -> DataFrame:
    """The messages to be looked at, as they are by now."""
    until_ms = fleet.latest_ms
    reach = None if full else Reach("review_at_ms", until_ms)
    found = read_table(spark, CATALOG, fleet.files, lake, (*NEEDED,), reach)
    if not full:
        found = due(found, until_ms)
    if changes is None:
        return found
    if not full:
        again = changes.where(F.col("now_state").isNull() | (F.col("now_state") == "ready"))
        # Only for these is a snapshot read as a whole.
        if not again.isEmpty():
            rest = read_table(spark, CATALOG, fleet.files, lake, (*NEEDED,))
            rest = rest.where(F.coalesce("review_at_ms", F.lit(until_ms + 1)) > until_ms)
            found = found.unionByName(rest.join(again.select(*KEY), on=list(KEY), how="left_semi"))
    return as_now(found, changes)


def summary(written: DataFrame) -> list[Total]:
    """What a plan asks for: a few rows, whatever its size."""
    rows = (
        written.groupBy("action", "from_tier", "to_tier")
        .agg(
            F.count("*").alias("times"),
            F.sum("bytes").alias("bytes"),
            F.sum(F.coalesce("freed_bytes", F.lit(0))).alias("freed_bytes"),
        )
        .collect()
    )
    return sorted((Total(*row) for row in rows), key=lambda each: (each.action, -each.times))


def _by_action(totals: list[Total]) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for each in totals:
        known = found.get(each.action, Action(0, 0))
        # Of what only goes, nothing is written: what it frees says how much it is.
        size = each.freed_bytes if each.action == "drop_copy" else each.bytes
        found[each.action] = Action(known.count + each.times, known.bytes + size)
    return found


def _change(totals: list[Total], prices: dict[str, float]) -> float:
    """What the actions change of the cost of a month."""
    added = sum(each.bytes * prices.get(each.to_tier or "", 0.0) for each in totals)
    freed = sum(each.freed_bytes * prices.get(each.from_tier or "", 0.0) for each in totals)
    return (added - freed) / GIB
