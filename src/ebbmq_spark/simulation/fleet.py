"""A sweep on Spark: one task for each queue and policy, all of them at once.

The traffic of a queue is broadcast as one block, so that a task needs nothing but its own row; what
comes back is a line of JSON. Nothing is pickled but the list of what to try.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import functions as F

from ebbmq.errors import InvalidSpec
from ebbmq.model import QueueSpec, check_name
from ebbmq_spark.simulation.outcome import Outcome, outcome_of
from ebbmq_spark.simulation.replay import replay
from ebbmq_spark.simulation.traces import blocks_of
from ebbmq_spark.simulation.traffic import InvalidTrace, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.simulation.sweep import Sweep
    from ebbmq_spark.simulation.traffic import Traffic

TRIALS_MAX: Final = 20_000
#: A slice of time is at most this part of how long work is useful ..
_USEFUL_PARTS: Final = 25
#: .. and no longer than so many messages take to come: more of them make it no faster.
_SLICE_MESSAGES: Final = 512
#: A worker keeps the traffic of the queue it is at, and no more: there can be much of it.
_QUEUES_KEPT: Final = 1


class QueueTraffic(NamedTuple):
    """What is to know of a queue before it is simulated."""

    queue: str
    messages: int
    useful_ms: int


class Trial(msgspec.Struct, frozen=True):
    """One queue under one policy."""

    queue: str
    policy: str
    spec: QueueSpec


class Blocks(NamedTuple):
    """The traffic of every queue, and what is to know of it."""

    rows: DataFrame
    queues: list[QueueTraffic]
    #: Queues of which no message was ever done, so that nobody knows how long it takes.
    left_out: list[str]


def prepare(trace: DataFrame, sweep: Sweep) -> Blocks:
    """Cut a trace into blocks, which stay in memory until `Blocks.rows.unpersist`.

    Raises:
        InvalidTrace: it holds something that no broker would have taken.
    """
    spec = sweep.traffic
    rows = blocks_of(
        trace, ignore=spec.ignore, useful_ms=spec.useful_ms, consumers=spec.consumers
    ).persist()
    of_queues = rows.withColumn("block", F.col("block").isNotNull())
    queues, left_out = [], []
    # A queue is a row: sorting them is less work than asking Spark to.
    for row in sorted(of_queues.collect(), key=lambda row: str(row.queue)):
        _check_name(row.queue)
        if row.error is not None:
            detail, _, action = row.error.partition("\n")
            raise InvalidTrace(detail, action)
        if row.block:
            queues.append(QueueTraffic(row.queue, row.messages, row.useful_ms))
        else:
            left_out.append(row.queue)
    return Blocks(rows, queues, left_out)


def _check_name(queue: object) -> None:
    try:
        check_name("queue", queue)
    except InvalidSpec as error:
        raise InvalidTrace(f"column queue of the trace: {error.detail}", error.action) from error


def trials_of(
    sweep: Sweep, queues: Iterable[QueueTraffic], prices: Mapping[str, float]
) -> list[Trial]:
    """Every queue under every policy, those that take longest first.

    Raises:
        InvalidSpec: a policy is not one a queue can have, or the goal asks what none can tell.
    """
    trials: list[Trial] = []
    for queue in sorted(queues, key=lambda queue: -queue.messages):
        specs = {
            each.name: sweep.spec(queue.queue, each) for each in sweep.candidates(queue.useful_ms)
        }
        priced = any(spec.tiers and prices.keys() >= set(spec.tiers) for spec in specs.values())
        if sweep.goal.minimise == "cost" and not priced:
            raise InvalidSpec(
                f"the goal asks what storage costs, and no policy of queue {queue.queue!r} has one",
                'say tiers in [base], such as tiers = ["ssd", "hdd", "s3"], and --price of each',
            )
        trials += [Trial(queue.queue, name, spec) for name, spec in specs.items()]
    if len(trials) > TRIALS_MAX:
        raise InvalidSpec(
            f"that is {len(trials):,} simulations, the limit is {TRIALS_MAX:,}",
            "try fewer policies, or fewer queues at a time",
        )
    return trials


def simulate(
    spark: SparkSession,
    blocks: Blocks,
    trials: list[Trial],
    prices: Mapping[str, float],
    resolution_ms: int | None,
) -> list[Outcome]:
    """What every trial comes to, in the order of the trials."""
    # Every queue has as many trials, so the number of a trial tells its queue.
    names = list(dict.fromkeys(trial.queue for trial in trials))
    queue = F.get(F.array(*map(F.lit, names)), (F.col("id") * len(names) / len(trials)).cast("int"))
    asked = spark.range(0, len(trials), 1, len(trials)).withColumn("queue", queue)
    joined = asked.join(F.broadcast(blocks.rows), on="queue", how="inner").select("id", "block")
    run = _simulator(trials, dict(prices), resolution_ms)
    told = joined.mapInArrow(run, "id long, outcome string").collect()
    outcomes = {row.id: msgspec.json.decode(row.outcome, type=Outcome) for row in told}
    return [outcomes[number] for number in range(len(trials))]


def _simulator(
    trials: list[Trial], prices: Mapping[str, float], resolution_ms: int | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that runs where the tasks run; specs travel as JSON, which is checked anew."""
    encoded = [msgspec.json.encode(trial) for trial in trials]

    def outcome(number: int, block: bytes) -> str:
        trial = msgspec.json.decode(encoded[number], type=Trial)
        told = try_policy(trial, _unpacked(block), prices, resolution_ms)
        return msgspec.json.encode(told).decode()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            ids, blocks = (batch.column(name).to_pylist() for name in ("id", "block"))
            outcomes = list(map(outcome, ids, blocks))
            yield pa.RecordBatch.from_pydict({"id": ids, "outcome": outcomes})

    return run


@lru_cache(maxsize=_QUEUES_KEPT)
def _unpacked(block: bytes) -> Traffic:
    """The traffic of a block; a worker tries one policy after the other on the same."""
    return unpack(block)


def try_policy(
    trial: Trial, traffic: Traffic, prices: Mapping[str, float], resolution_ms: int | None
) -> Outcome:
    """What one queue's traffic comes to under one policy."""
    step_ms = resolution_of(traffic) if resolution_ms is None else resolution_ms
    fates = replay(traffic, trial.spec, step_ms)
    return outcome_of(
        trial.policy, trial.spec, traffic, fates, resolution_ms=step_ms, prices=prices
    )


def resolution_of(traffic: Traffic) -> int:
    """How long a slice of time may be so that the shares hardly change."""
    if not len(traffic):
        return 1
    useful_ms = float(np.percentile(traffic.useful_ms, 10))
    filled_ms = _SLICE_MESSAGES * traffic.span_ms() / len(traffic)
    return max(1, int(min(useful_ms / _USEFUL_PARTS, filled_ms)))
