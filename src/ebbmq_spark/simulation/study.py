"""A study: traffic in, and for each queue what every policy comes to and which is the best."""

from __future__ import annotations

import json
import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import functions as F

from ebbmq.errors import UnknownQueue
from ebbmq.spelling import get_close_matches
from ebbmq_spark import soundness
from ebbmq_spark.attempts import SPARK_ERRORS, carried_through, failed
from ebbmq_spark.connector import ledger
from ebbmq_spark.lake import opened
from ebbmq_spark.simulation import fleet, front, picture, traces
from ebbmq_spark.simulation.sweep import REFERENCES
from ebbmq_spark.simulation.traffic import InvalidTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import UnknownFeed
    from ebbmq.model import QueueSpec
    from ebbmq_spark.lake import Lake, Where
    from ebbmq_spark.simulation.outcome import Outcome
    from ebbmq_spark.simulation.sweep import Sweep
    from ebbmq_spark.simulation.traffic import Traffic


class QueueStudy(NamedTuple):
    """What the policies came to for one queue."""

    queue: str
    outcomes: list[Outcome]
    specs: dict[str, QueueSpec]
    #: Fields that were given, for every queue, for this one, and by the policy.
    fields: dict[str, dict[str, Any]]
    choice: front.Choice

    def outcome(self, policy: str) -> Outcome:
        """What a policy came to."""
        return next(each for each in self.outcomes if each.policy == policy)

    def shown(self, most: int, named: Collection[str]) -> list[Outcome]:
        """The most worth done on time, and beside it whatever a reader will look for.

        That is the best, the references, and policies somebody named unless they are many.
        """
        always = {self.choice.best.policy, *REFERENCES, *(named if len(named) <= most else ())}
        ranked = sorted(self.outcomes, key=lambda each: -each.worth_on_time)
        others = [each.policy for each in ranked if each.policy not in REFERENCES]
        wanted = always.union(others[:most])
        return [each for each in ranked if each.policy in wanted]

    def row(self) -> picture.Row:
        """The queue as the picture shows it."""
        return picture.Row(self.queue, self.outcomes, self.choice)


class Study(NamedTuple):
    """What the policies came to for every queue, and what of the traffic is not in it."""

    studies: list[QueueStudy]
    #: Queues of which no message was ever done, so that nobody knows how long it takes.
    left_out: list[str]
    #: Queues that the sweep has a table for and the traffic has not, with the nearest it has.
    astray: dict[str, str | None]
    #: What of a lake could not be read.
    refused: Sequence[UnknownFeed] = ()
    #: By node, how many events between others are not in the lake.
    missing: Mapping[str, int] = MappingProxyType({})


def study(
    spark: SparkSession,
    trace: DataFrame,
    sweep: Sweep,
    *,
    queues: Collection[str] = (),
    prices: Mapping[str, float] = MappingProxyType({}),
    resolution_ms: int | None = None,
) -> Study:
    """Try every policy on the queues of a trace, as `traces.read_trace` makes it.

    Args:
        spark: where to run.
        trace: the traffic.
        sweep: what to try.
        queues: which to try it on; all but ledgers of the connector's sinks unless given.
        prices: what a GiB costs for a month, by tier.
        resolution_ms: how long a slice of time is; as the traffic asks for unless given.

    Raises:
        InvalidTrace: the trace is empty, none of its messages was ever done, or it holds what no
            broker would have taken.
        UnknownQueue: one of the queues is not in it.
        InvalidSpec: a policy is not one a queue can have.
    """
    blocks = fleet.prepare(_chosen(trace, queues), sweep)
    try:
        astray = _checked(trace, blocks, sweep, queues)
        trials = fleet.trials_of(sweep, blocks.queues, prices)
        outcomes = fleet.simulate(spark, blocks, trials, prices, resolution_ms)
    finally:
        blocks.rows.unpersist()
    studies = [_of_queue(queue, sweep, trials, outcomes) for queue in blocks.queues]
    return Study(studies, blocks.left_out, astray)


def _chosen(trace: DataFrame, queues: Collection[str]) -> DataFrame:
    queue = F.col("queue")
    if queues:
        return trace.where(queue.isin(*queues))
    # A row without a queue stays, to be named.
    return trace.where(queue.isNull() | ~queue.startswith(ledger.PREFIX))


def _checked(
    trace: DataFrame, blocks: fleet.Blocks, sweep: Sweep, queues: Collection[str]
) -> dict[str, str | None]:
    """See that there is something to simulate; returns tables of the sweep that are astray."""
    found = {*(each.queue for each in blocks.queues), *blocks.left_out}
    for queue in queues:
        if queue not in found:
            known = _names(trace)
            near = _nearest(queue, known)
            raise UnknownQueue(
                f"there is no queue {queue!r} in the traffic",
                f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(known))}",
            )
    if blocks.left_out and not blocks.queues:
        raise InvalidTrace(
            f"no message of {', '.join(blocks.left_out)} was ever done: how long is not known",
            "simulate queues that have consumers, or say it in a trace: see docs/simulate.md",
        )
    if not blocks.queues:
        raise InvalidTrace(
            "the trace has no messages",
            f"name another one; queues {ledger.PREFIX}* count where they are chosen by name",
        )
    astray = sweep.queues.keys() - found
    known = _names(trace) if astray and queues else found
    return {each: _nearest(each, known) for each in sweep.queues if each in astray - known}


def _names(trace: DataFrame) -> set[str]:
    """The queues of all the traffic."""
    return {row.queue for row in trace.select("queue").distinct().collect() if row.queue}


def _nearest(queue: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(queue, known, 1)), None)


def study_trace(spark: SparkSession, trace: str | Traffic, sweep: Sweep, **options: Any) -> Study:
    """As `study`, which `options` are of, on traffic in memory, or a trace by the path of it.

    Raises:
        InvalidTrace: there is none, or as `study` does.
        UnknownQueue: one of the queues is not in it.
        InvalidSpec: a policy is not one a queue can have.
        JobFailed: Spark did not carry it through.
    """
    try:
        rows = (
            traces.read_trace(spark, trace)
            if isinstance(trace, str)
            else traces.hand_over(spark, trace)
        )
        return study(spark, rows, sweep, **options)
    except SPARK_ERRORS as error:
        raise failed(error) from error


def study_lake(spark: SparkSession, where: Where, sweep: Sweep, **options: Any) -> Study:
    """As `study`, which `options` are of, on the traffic that nodes wrote to a lake.

    Raises:
        UnknownFeed: there is no such lake, or nothing of it can be read.
        InvalidTrace: it has no events, or as `study` does.
        UnknownQueue: one of the queues is not in it.
        InvalidSpec: a policy is not one a queue can have.
        JobFailed: Spark did not carry it through.
    """
    lake = opened(where)

    def begin(aside: Mapping[str, UnknownFeed]) -> _OfLake:
        found = traces.read_lake(spark, lake, aside)
        return _OfLake(lake, found, lambda: study(spark, found.trace, sweep, **options))

    return carried_through(lake, begin)


class _OfLake(NamedTuple):
    """A study of what was in a lake when it was begun."""

    lake: Lake
    found: traces.Recorded
    study: Callable[[], Study]

    def carry_out(self) -> Study:
        """All of it."""
        missing = {row.node: row.missing for row in self.found.missing.orderBy("node").collect()}
        return self.study()._replace(refused=self.found.refused, missing=missing)

    def damaged(self) -> dict[str, UnknownFeed]:
        """Of what was to be read: manifests that name a damaged file, and why."""
        return soundness.damaged(self.lake, self.found.manifests)

    def is_outrun(self) -> bool:
        """Whether some of what was to be read was taken away by its node."""
        return soundness.is_any_gone(self.lake, self.found.manifests)


def _of_queue(
    queue: fleet.QueueTraffic, sweep: Sweep, trials: list[fleet.Trial], outcomes: list[Outcome]
) -> QueueStudy:
    mine = [each for each in outcomes if each.queue == queue.queue]
    return QueueStudy(
        queue.queue,
        mine,
        {trial.policy: trial.spec for trial in trials if trial.queue == queue.queue},
        {
            policy.name: sweep.fields(queue.queue, policy)
            for policy in sweep.candidates(queue.useful_ms)
        },
        front.choose(mine, sweep.goal),
    )


def best_toml(studies: Iterable[QueueStudy], heading: str) -> str:
    """The best policy of each queue as TOML that `--policies` reads again."""
    lines = [f"# {heading}"]
    for each in studies:
        best = each.choice.best
        compared = [
            f"{name} {each.outcome(name).worth_on_time:.1%}"
            for name in REFERENCES
            if name != best.policy
        ]
        lines += [
            "",
            f"# {best.worth_on_time:.1%} of the importance done on time ({', '.join(compared)})",
            *_advice(each),
            f"[queues.{_toml(each.queue)}]",
            *(f"{name} = {_toml(value)}" for name, value in each.fields[best.policy].items()),
        ]
    return "\n".join(lines) + "\n"


def _advice(study: QueueStudy) -> list[str]:
    """What to do with the best policy of a queue, as comments."""
    if not study.choice.differ:
        return ["# no policy makes a difference for this traffic: leave the queue as it is"]
    return [f"# {command(study)}"]


def command(study: QueueStudy) -> str:
    """The command that gives a queue its best policy: all fields in which policies may differ."""
    words = ["ebbmq", "queues", "change", study.queue]
    best = study.specs[study.choice.best.policy]
    for name in dict.fromkeys(name for fields in study.fields.values() for name in fields):
        value = msgspec.to_builtins(getattr(best, name))
        told = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name.replace('_', '-')}", told]
    return shlex.join(words)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return msgspec.json.encode(value).decode()
