"""`pipeline run` and `pipeline plan`: everything once, from where the last one ended.

Tables become visible one by one, the record of the run comes last, and only it is what the next run
goes on from and makes its advice count for brokers. So a run that is killed counts nothing twice,
leaves nothing out, and has no effect.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ebbmq.errors import ClientError
from ebbmq.feed import money
from ebbmq.feed.events import EVENTS
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import Record
from ebbmq.feed.snapshots import CATALOG
from ebbmq.feed.steps import STEPS
from ebbmq_spark import soundness
from ebbmq_spark.attempts import carried_through
from ebbmq_spark.jobs import events, fleet, going_on, history, reporting, writing
from ebbmq_spark.jobs.changes import last_plan
from ebbmq_spark.jobs.plan import HOLD_MS, Asked, plan
from ebbmq_spark.jobs.writing import Output
from ebbmq_spark.lake import opened, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq.feed.runs import Kind
    from ebbmq_spark.jobs.reporting import Figures
    from ebbmq_spark.jobs.totals import Total
    from ebbmq_spark.lake import Lake, Where

    #: What is left to do with Spark; it is told to whom to say what is being done.
    Job = Callable[[SparkSession, Callable[[str], None]], Record]


class InvalidBudget(ClientError):
    """What a month may cost is no amount of money."""

    code = "invalid_budget"


class Arguments(NamedTuple):
    """What a run is to do."""

    #: Its directory, or what `open_lake` returned.
    lake: Where
    #: Look at every message and every event that is there, also where a run before this one did.
    full: bool = False
    #: Keep within the room of each tier.
    bounded: bool = True
    #: What a month may cost with the plan; None for no bound.
    budget: float | None = None
    #: How long plans and rates hold.
    hold_ms: int = HOLD_MS


#: Sums that differ by less may be the same, added up in another order.
_SAME: Final = 1e-9
_NOTED = ("messages", "looked_at", "actions", "cost_before", "cost_after", "left_out")
STAGES = ("reading", "checking", "counting", "judging", "planning", "reporting")


def run(
    spark: SparkSession, arguments: Arguments, stage: Callable[[str], None] = lambda name: None
) -> Record:
    """Do all of it once: check what was told, count it, recommend rates, plan, report.

    Args:
        spark: where to run.
        arguments: what to do.
        stage: is told what is being done, one of STAGES.

    Raises:
        InvalidBudget: the budget is no amount of money.
        UnknownFeed: there is no lake.
        PipelineBusy: another run is at work on it.
        JobFailed: Spark did not carry it through; nothing counts as done.
    """
    with alone(arguments, "run") as carry_out:
        return carry_out(spark, stage)


def run_plan(
    spark: SparkSession, arguments: Arguments, stage: Callable[[str], None] = lambda name: None
) -> Record:
    """Plan alone, as `run` does.

    Raises:
        InvalidBudget: the budget is no amount of money.
        UnknownFeed: there is no lake.
        PipelineBusy: another run is at work on it.
        JobFailed: Spark did not carry it through; nothing counts as done.
    """
    with alone(arguments, "plan") as carry_out:
        return carry_out(spark, stage)


def figures(spark: SparkSession, where: Where) -> Figures:
    """What a report shows: the last run, and messages as they are by now.

    Raises:
        UnknownFeed: there is no lake.
        JobFailed: Spark did not carry it through.
    """
    lake = opened(where)
    return carried_through(lake, lambda aside: _Report(spark, lake, aside))


class _Report:
    """A report alone."""

    def __init__(self, spark: SparkSession, lake: Lake, aside: Mapping[str, UnknownFeed]) -> None:
        self._spark = spark
        self._lake = lake
        self._fleet = fleet.read(lake, _now_ms(), aside)
        known = history.read(lake)
        # A stream plans nothing, so that there is little to report of it.
        self._records = [each for each in known.records if each.kind != "stream"]
        self._sources = reporting.sources(lake, known, aside)

    def carry_out(self) -> Figures:
        """All of it."""
        last = self._records[-1] if self._records else None
        if last is not None:
            wrong = {**self._fleet.refused, **self._sources.refused}
            refused = {name: error.detail for name, error in wrong.items()}
            last = msgspec.structs.replace(last, refused={**last.refused, **refused})
        before = last_plan(self._records)
        return reporting.figures(self._spark, self._sources, self._fleet, last, before)

    def damaged(self) -> dict[str, UnknownFeed]:
        """See Attempt."""
        return soundness.damaged(self._lake, self._manifests())

    def is_outrun(self) -> bool:
        """See Attempt."""
        return soundness.is_any_gone(self._lake, self._manifests())

    def _manifests(self) -> list[Manifest]:
        return [*self._fleet.manifests, *self._sources.manifests]


class _Run:
    """One run, from the lock to its record."""

    def __init__(
        self,
        spark: SparkSession,
        arguments: Arguments,
        kind: Kind,
        stage: Callable[[str], None],
        aside: Mapping[str, UnknownFeed],
    ) -> None:
        self._spark = spark
        self._aside = aside
        self._arguments = arguments
        self._lake = lake = opened(arguments.lake)
        self._stage = stage
        self._totals: list[Total] | None = None
        self._figures: Figures | None = None
        self._base_notes: tuple[str, ...] = ()
        at_ms = _now_ms()
        self._output = Output(lake, history.run_name(at_ms), at_ms)
        self._fleet = fleet.read(lake, at_ms, aside)
        #: What is read, to find out which of it was damaged.
        self._manifests = list(self._fleet.manifests)
        self._record = Record(
            run=self._output.run,
            kind=kind,
            started_at_ms=at_ms,
            ended_at_ms=at_ms,
            full=arguments.full,
            budget=arguments.budget,
            refused={name: error.detail for name, error in self._fleet.refused.items()},
            notes=tuple(self._fleet.notes),
        )

    def carry_out(self) -> Record:
        """All of it."""
        self._output.begin(msgspec.structs.replace(self._record, ended_at_ms=0))
        if self._record.kind == "run":
            self.read_events()
        self.plan()
        if self._record.kind == "run":
            self.report()
        return self.end()

    def damaged(self) -> dict[str, UnknownFeed]:
        """Of what was to be read: manifests that name a damaged file, and why."""
        return soundness.damaged(self._lake, self._manifests)

    def is_outrun(self) -> bool:
        """Whether some of what was to be read was taken away by its node: there is newer."""
        return soundness.is_any_gone(self._lake, self._manifests)

    def read_events(self) -> None:
        """Check, count and judge what was told since the last run."""
        spark, output = self._spark, self._output
        known, full = history.read(self._lake), self._arguments.full
        base = going_on.base(self._lake, known, self._aside, anew=full)
        self._base_notes = base.notes
        self._manifests += base.manifests
        before = base.record
        last = None if full else before
        unread = events.unread(self._lake, last, self._aside)
        self._manifests += unread.manifests
        wrong = {name: error.detail for name, error in base.refused.items()}
        refused = {**self._record.refused, **wrong, **unread.refused}
        # Of nodes of which nothing is there any more it stays as it was.
        self._note(
            refused=refused,
            read={**(before.read if before else {}), **unread.read},
            heard=events.heard_by(before),
            counted=before.counted if before else None,
            notes=(*self._fleet.notes, *base.notes),
        )
        if not unread.files:
            return
        told = read_table(spark, EVENTS, unread.files, self._lake)
        if self._lake.is_remote:
            # It is gone through three times, and fetched once.
            told = told.persist()
        try:
            self._stage("checking")
            checked, sound = events.check(spark, told, last, output)
            self._stage("counting")
            events.count(spark, sound, before, output, full=full)
            self._stage("judging")
            # A factor is a step from the one before, also where all the rest is looked at anew.
            new = events.since(spark, sound, before) if full else sound
            queues, hold_ms = fleet.queues(self._fleet), self._arguments.hold_ms
            events.judge(spark, new, queues, before, output, hold_ms=hold_ms)
        finally:
            told.unpersist()
        heard = {**self._record.heard, **checked.heard}
        self._note(**checked._replace(heard=heard)._asdict(), counted=output.run)

    def plan(self) -> None:
        """Write the plan."""
        self._stage("planning")
        told = self._arguments
        if self._record.kind == "run":
            self._look_again()
        asked = Asked(told.full, told.bounded, told.budget, told.hold_ms)
        planned = plan(self._spark, self._fleet, self._output, asked)
        self._totals = planned.totals
        self._note(**{name: getattr(planned, name) for name in _NOTED})
        if told.budget is not None and planned.cost_after > told.budget * (1 + _SAME):
            dear = f"a month costs {money.show(planned.cost_after)} with the plan, and may cost "
            dear += f"{money.show(told.budget)}: nothing was added"
            self._note(notes=(*self._record.notes, dear))

    def _look_again(self) -> None:
        """Plan for the snapshots as they are by now: older ones may go at any moment."""
        self._fleet = fleet.read(self._lake, _now_ms(), self._aside)
        told = [each for each in self._manifests if each.table != CATALOG.name]
        self._manifests = told + self._fleet.manifests
        refused = {name: error.detail for name, error in self._fleet.refused.items()}
        notes = (*self._fleet.notes, *self._base_notes)
        self._note(refused={**self._record.refused, **refused}, notes=notes)

    def report(self) -> None:
        """Find out what the page for people shows."""
        self._stage("reporting")
        self._note(ended_at_ms=_now_ms())
        # Nobody can have taken up the plan of this run yet: it is told of the one before.
        known = history.read(self._lake)
        records = [*known.records, self._record]
        sources = reporting.sources(self._lake, known._replace(records=records), self._aside)
        self._manifests += sources.manifests
        refused = {name: error.detail for name, error in sources.refused.items()}
        self._note(refused={**self._record.refused, **refused})
        self._figures = reporting.figures(
            self._spark,
            sources,
            self._fleet,
            self._record,
            last_plan(known.records),
            self._totals,
        )

    def end(self) -> Record:
        """Let the run count, and clear away what it makes superfluous."""
        self._note(ended_at_ms=_now_ms())
        self._output.end(self._record)
        if self._figures is not None:
            reporting.keep(self._lake, self._record.run, self._figures)
        known = history.read(self._lake)
        needed = known.needed()
        for table in (PLANS, RATES):
            writing.sweep(self._lake, table, writing.RUNS_KEPT, needed=needed)
        for table in (PROFILES, STEPS):
            writing.sweep(self._lake, table, writing.WHOLE_KEPT, needed=needed)
        writing.sweep_records(self._lake, known)
        return self._record

    def _note(self, **changes: object) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)


@contextlib.contextmanager
def alone(arguments: Arguments, kind: Kind) -> Iterator[Job]:
    """Be the only one at work on a lake, before Spark is there; yields what is done with Spark.

    Raises:
        InvalidBudget: the budget is no amount of money.
        UnknownFeed: there is no lake.
        PipelineBusy: another run is at work on it.
    """
    budget = arguments.budget
    if budget is not None and not 0 <= budget < math.inf:
        raise InvalidBudget(
            f"the budget is {budget!r}",
            "give what a month may cost, 0 or more, in the currency of cost_per_gib_month",
        )
    lake = opened(arguments.lake)
    told = arguments._replace(lake=lake)

    def carry_out(spark: SparkSession, stage: Callable[[str], None]) -> Record:
        stage("reading")
        return carried_through(lake, lambda aside: _Run(spark, told, kind, stage, aside))

    with lake.only_one("run"):
        yield carry_out


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
