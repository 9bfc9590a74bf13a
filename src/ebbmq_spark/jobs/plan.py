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
from ebbmq_spark import reaching
from ebbmq_spark.jobs import bounding, room
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs import totals as totalling
from ebbmq_spark.jobs.bounding import Limits
from ebbmq_spark.jobs.ways import Ways
from ebbmq_spark.lake import Reach, read_table
from ebbmq_spark.transforms.plans import NEEDED, as_plan, due, judged
from ebbmq_spark.transforms.quality import usable
from ebbmq_spark.transforms.touched import KEY, as_now, since, touched

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.jobs.fleet import Fleet
    from ebbmq_spark.jobs.totals import Total
    from ebbmq_spark.jobs.writing import Output
    from ebbmq_spark.lake import Lake

#: How long advice holds unless the caller says otherwise.
HOLD_MS: Final = 3_600_000
#: Messages that were used since the snapshots, about 100 MB of them.
_FEW: Final = 500_000
#: Of so many messages that are due those that are there are kept, about 200 MB of them.
_KEPT: Final = 1_000_000
#: What becomes due before the next full hour is looked at, too: the bound is part of what Spark
#: compiles, and of what Java makes quick once it has run a while.
_BOUND_MS: Final = 3_600_000


class Asked(NamedTuple):
    """How to plan."""

    #: Look at every message, not only at those that are due.
    full: bool = False
    #: Keep within the room of each tier.
    bounded: bool = True
    #: What a month may cost with the plan; None for no bound.
    budget: float | None = None
    #: How long the advice holds.
    hold_ms: int = HOLD_MS


class Planned(NamedTuple):
    """What came of planning."""

    messages: int
    looked_at: int
    actions: dict[str, Action]
    cost_before: float
    cost_after: float
    left_out: dict[str, Action]
    totals: list[Total]


def plan(spark: SparkSession, fleet: Fleet, output: Output, asked: Asked) -> Planned:
    """Plan for a fleet and write the plan.

    Args:
        spark: where to run.
        fleet: the snapshots to plan for.
        output: where to write to.
        asked: how.
    """
    changes = _changes(spark, fleet, output.lake)
    told = changes.told if changes is not None and changes.messages else None
    catalog, looked_at = _messages(spark, fleet, output.lake, told, full=asked.full)
    # What was decided for a node is dated by its clock.
    ways = Ways()
    parameters = fleets.parameters_of(spark, fleet, ways)
    chosen = as_plan(judged(catalog, parameters, 0, ways.frame(spark)), asked.hold_ms)
    before, prices = fleets.cost(fleet), ways.priced(fleets.prices(fleet))
    limits = Limits(
        capacity=room.capacity(spark, fleet, ways.texts) if asked.bounded else None,
        money=None if asked.budget is None else asked.budget - before,
        prices=prices,
    )
    within = bounding.bounded(chosen, limits)
    parts = output.write(PLANS, within.plan)
    catalog.unpersist()
    if changes is not None:
        changes.kept.unpersist()
    totals = totalling.of_parts(spark, output.lake, parts)
    output.publish(PLANS, parts)
    after = before + _change(totals, prices)
    actions = _by_action(totals)
    return Planned(fleet.rows, looked_at, actions, before, after, within.left_out, totals)


class _Changes(NamedTuple):
    """What became of messages since the snapshots."""

    #: To be let go of when the plan is written.
    kept: DataFrame
    #: The same, to be joined with a catalog.
    told: DataFrame
    messages: int


def _changes(spark: SparkSession, fleet: Fleet, lake: Lake) -> _Changes | None:
    """What became of messages since the snapshots; None where nothing was told since."""
    files = [lake.file(part.path) for each in fleet.told for part in each.parts]
    if not files:
        return None
    events = usable(read_table(spark, EVENTS, files, lake))
    kept = touched(since(events, fleets.snapshots_of(spark, fleet))).persist()
    count = kept.count()
    # Where they are few, no message of a catalog is moved to meet them.
    return _Changes(kept, F.broadcast(kept) if count <= _FEW else kept, count)


def _messages(
    spark: SparkSession, fleet: Fleet, lake: Lake, changes: DataFrame | None, *, full: bool
) -> tuple[DataFrame, int]:
    """The messages to be looked at, as they are by now, and how many there are."""
    if full:
        every = read_table(spark, CATALOG, fleet.files, lake, NEEDED)
        return (every if changes is None else as_now(every, changes)), fleet.rows
    until_ms = -(-fleet.latest_ms // _BOUND_MS) * _BOUND_MS
    reach = Reach("review_at_ms", until_ms)
    files, rows = reaching.within(lake, fleet.files, reach)
    found = due(read_table(spark, CATALOG, files, lake, NEEDED, reach), until_ms)
    if changes is not None:
        again = changes.where(F.col("now_state").isNull() | (F.col("now_state") == "ready"))
        # Only for these is a snapshot read as a whole.
        if not again.isEmpty():
            rest = read_table(spark, CATALOG, fleet.files, lake, NEEDED)
            rest = rest.where(F.coalesce("review_at_ms", F.lit(until_ms + 1)) > until_ms)
            found = found.unionByName(rest.join(again.select(*KEY), on=list(KEY), how="left_semi"))
        found = as_now(found, changes)
    if lake.is_remote or (changes is not None and rows <= _KEPT):
        # It may be gone through more than once, and is fetched, or looked for, once.
        found = found.persist()
    return found, rows if changes is None else found.count()


def _by_action(totals: list[Total]) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for each in totals:
        known = found.get(each.action, Action(0, 0))
        # Of what only goes, nothing is written: what it frees says how much it is.
        size = each.freed_bytes if each.action == "drop_copy" else each.bytes
        found[each.action] = Action(known.count + each.times, known.bytes + size)
    return found


def _change(totals: list[Total], prices: Mapping[str, float]) -> float:
    """What the actions change of the cost of a month."""
    added = sum(
        each.bytes * prices.get(each.written_to or each.to_tier or "", 0.0) for each in totals
    )
    freed = sum(
        each.freed_bytes * prices.get(each.freed_from or each.from_tier or "", 0.0)
        for each in totals
    )
    return (added - freed) / GIB
