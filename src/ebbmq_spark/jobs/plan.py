"""The plan job: snapshots and parameters in, actions for brokers out.

Incremental by what the snapshots say: a broker writes down when there will be something to do with
a message (`review_at_ms`), at once if it is not kept as it should be, and has messages in that
order. So a run reads the rows that are due and skips the others, needs no memory of earlier runs,
and leaves out nothing that a full one would find (ADR 0026). A plan is of the instant of the
snapshot and dated by it: what happened to a message since makes its broker refuse the row.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc  # type: ignore[import-untyped]  # it has no types
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from pyarrow.fs import LocalFileSystem  # type: ignore[import-untyped]

from ebbmq.feed.plans import PLANS
from ebbmq.feed.runs import Action
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import GIB
from ebbmq_spark import soundness
from ebbmq_spark.jobs import bounding
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs import totals as totalling
from ebbmq_spark.jobs.bounding import Limits
from ebbmq_spark.lake import Reach, read_table
from ebbmq_spark.transforms.plans import NEEDED, as_plan, due, judged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.jobs.fleet import Fleet
    from ebbmq_spark.jobs.totals import Total
    from ebbmq_spark.jobs.writing import Output
    from ebbmq_spark.lake import Lake

#: How long advice holds unless the caller says otherwise.
HOLD_MS: Final = 3_600_000
#: Files that are looked at at once: it is mostly waiting.
_AT_ONCE: Final = 8
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
    catalog, looked_at = _messages(spark, fleet, output.lake, full=asked.full)
    chosen = as_plan(judged(catalog, fleets.parameters_of(spark, fleet), 0), asked.hold_ms)
    before, prices = fleets.cost(fleet), fleets.prices(fleet)
    limits = Limits(
        room=bounding.room_of(fleet) if asked.bounded else None,
        money=None if asked.budget is None else asked.budget - before,
        prices=prices,
    )
    within = bounding.bounded(chosen, limits)
    parts = output.write(PLANS, within.plan)
    catalog.unpersist()
    totals = totalling.of_parts(output.lake, parts)
    output.publish(PLANS, parts)
    after = before + _change(totals, prices)
    actions = _by_action(totals)
    return Planned(fleet.rows, looked_at, actions, before, after, within.left_out, totals)


def _messages(
    spark: SparkSession, fleet: Fleet, lake: Lake, *, full: bool
) -> tuple[DataFrame, int]:
    """The messages to be looked at, and how many there are."""
    if full:
        return read_table(spark, CATALOG, fleet.files, lake, NEEDED), fleet.rows
    latest_ms = max((each.at_ms for each in fleet.snapshots), default=0)
    until_ms = -(-latest_ms // _BOUND_MS) * _BOUND_MS
    files, rows = _due(lake, fleet.files, until_ms)
    reach = Reach("review_at_ms", until_ms)
    found = due(read_table(spark, CATALOG, files, lake, NEEDED, reach), until_ms)
    if lake.is_remote:
        # It may be gone through more than once, and is fetched once.
        found = found.persist()
    return found, rows


def _due(lake: Lake, files: Sequence[str], until_ms: int) -> tuple[list[str], int]:
    """Files that have messages to be looked at, and how many: mostly told by the ends of files."""

    def count(file: str) -> int:
        with soundness.named(file):
            fragment = ds.ParquetFileFormat().make_fragment(lake.open(file), LocalFileSystem())
            return int(fragment.count_rows(filter=pc.field("review_at_ms") <= until_ms))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        counts = dict(zip(files, pool.map(count, files), strict=True))
    return [file for file, rows in counts.items() if rows], sum(counts.values())


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
    added = sum(each.bytes * prices.get(each.to_tier or "", 0.0) for each in totals)
    freed = sum(each.freed_bytes * prices.get(each.from_tier or "", 0.0) for each in totals)
    return (added - freed) / GIB
