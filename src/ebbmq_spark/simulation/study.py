"""A study: traffic in, and for each queue what every policy comes to and which is the best."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import functions as F

from ebbmq.errors import UnknownQueue
from ebbmq_spark import soundness
from ebbmq_spark.attempts import SPARK_ERRORS, carried_through, failed
from ebbmq_spark.connector import ledger
from ebbmq_spark.lake import opened
from ebbmq_spark.simulation import fleet, front, traces
from ebbmq_spark.simulation.sweep import REFERENCES
from ebbmq_spark.simulation.traffic import InvalidTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import UnknownFeed
    from ebbmq_spark.lake import Lake, Where
    from ebbmq_spark.simulation.outcome import Outcome
    from ebbmq_spark.simulation.sweep import Sweep
    from ebbmq_spark.simulation.traffic import Traffic


class QueueStudy(NamedTuple):
    """What the policies came to for one queue."""

    queue: str
    outcomes: list[Outcome]
    #: Fields that were given, for every queue, for this one, and by the policy.
    fields: dict[str, dict[str, Any]]
    choice: front.Choice

    def outcome(self, policy: str) -> Outcome:
        """What a policy came to."""
        return next(each for each in self.outcomes if each.policy == policy)

    def shown(self, most: int, named: Collection[str]) -> list[Outcome]:
        """The most worth done on time, the best, the references, and what somebody named."""
        ranked = sorted(self.outcomes, key=lambda each: -each.worth_on_time)
        others = [each.policy for each in ranked if each.policy not in REFERENCES]
        wanted = {self.choice.best.policy, *REFERENCES, *named, *others[:most]}
        return [each for each in ranked if each.policy in wanted]


class Study(NamedTuple):
    """What the policies came to for every queue, and what of the traffic is not in it."""

    studies: list[QueueStudy]
    #: Queues of which no message was ever done, so that nobody knows how long it takes.
    left_out: list[str]
    #: Queues that the sweep has a table for, and the traffic has not.
    astray: list[str]
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
    queue = F.col("queue")
    # A row without a queue stays, to be named.
    others = queue.isNull() | ~queue.startswith(ledger.PREFIX)
    blocks = fleet.prepare(trace.where(queue.isin(*queues) if queues else others), sweep)
    try:
        known = {*(each.queue for each in blocks.queues), *blocks.left_out}
        _check(blocks, queues, known)
        trials = fleet.trials_of(sweep, blocks.queues, prices)
        outcomes = fleet.simulate(spark, blocks, trials, prices, resolution_ms)
    finally:
        blocks.rows.unpersist()
    studies = [_of_queue(each, sweep, outcomes) for each in blocks.queues]
    astray = [] if queues else [each for each in sweep.queues if each not in known]
    return Study(studies, blocks.left_out, astray)


def _check(blocks: fleet.Blocks, queues: Collection[str], known: Collection[str]) -> None:
    """See that there is something to simulate."""
    for queue in queues:
        if queue not in known:
            raise UnknownQueue(
                f"there is no queue {queue!r} in the traffic",
                "simulate without naming queues to see which there are",
            )
    if not blocks.queues and blocks.left_out:
        raise InvalidTrace(
            f"no message of {', '.join(blocks.left_out)} was ever done: how long is not known",
            "simulate queues that have consumers, or say it in a trace: see docs/simulate.md",
        )
    if not blocks.queues:
        raise InvalidTrace(
            "the trace has no messages",
            f"name another one; queues {ledger.PREFIX}* count where they are chosen by name",
        )


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


def _of_queue(queue: fleet.QueueTraffic, sweep: Sweep, outcomes: Iterable[Outcome]) -> QueueStudy:
    mine = [each for each in outcomes if each.queue == queue.queue]
    policies = sweep.candidates(queue.useful_ms)
    fields = {each.name: sweep.fields(queue.queue, each) for each in policies}
    return QueueStudy(queue.queue, mine, fields, front.choose(mine, sweep.goal))


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
            f"[queues.{_toml(each.queue)}]",
            *(f"{name} = {_toml(value)}" for name, value in each.fields[best.policy].items()),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return msgspec.json.encode(value).decode()
