"""A study on Spark: what comes back is what one process finds, and slips are named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq.errors import InvalidSpec, UnknownQueue
from ebbmq_spark.simulation import fleet
from ebbmq_spark.simulation.front import choose
from ebbmq_spark.simulation.picture import draw
from ebbmq_spark.simulation.study import QueueStudy, best_toml, study, study_lake
from ebbmq_spark.simulation.sweep import Policy, Sweep, TrafficSpec, read_sweep
from ebbmq_spark.simulation.traces import IN_ORDER, read_trace
from ebbmq_spark.simulation.traffic import InvalidTrace, from_table, to_table
from tests.pipeline.handwritten import tell
from tests.pipeline.loads import random_traffic, save
from tests.pipeline.test_sweep import told

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ebbmq.model import QueueSpec

SWEEP = Sweep(
    sweep={"decay_rate": [0.5, 1.0], "decay_unit_ms": [1_000]},
    queues={"small": {"default_importance": 3}},
)
LARGE = random_traffic(1, 300, consumers=4)


def spec_of(sweep: Sweep, of: QueueStudy, policy: str) -> QueueSpec:
    changes = of.fields[policy]
    return sweep.spec(of.queue, Policy(policy, changes))


def test_a_study_on_spark_finds_what_one_process_finds(spark: SparkSession, tmp_path: Path) -> None:
    small = random_traffic(2, 60)
    rows = to_table(small).set_column(0, "queue", pa.array(["small"] * 60))
    save(LARGE, tmp_path / "trace" / "0.parquet")
    pq.write_table(rows, tmp_path / "trace" / "1.parquet")
    studies = study(spark, read_trace(spark, str(tmp_path / "trace")), SWEEP).studies
    assert [each.queue for each in studies] == ["q", "small"]
    for each, load in zip(studies, (LARGE, small), strict=True):
        assert len(each.outcomes) == 4
        # What was published at one instant has an order of its own.
        in_order = from_table(to_table(load).sort_by(IN_ORDER))
        for outcome in each.outcomes:
            trial = fleet.Trial(each.queue, outcome.policy, spec_of(SWEEP, each, outcome.policy))
            alone = fleet.try_policy(trial, in_order, {}, None)
            assert outcome.messages == len(load)
            assert outcome.worth_done_on_time == alone.worth_done_on_time
            assert outcome.left == alone.left
            assert outcome.wait_p99_ms == alone.wait_p99_ms
    again = read_sweep(best_toml(studies, "two queues").encode(), "best.toml")
    assert set(again.queues) == {"q", "small"}
    # What every policy had counts as well.
    assert again.queues["small"]["default_importance"] == 3
    draw(studies, SWEEP.goal, tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_hundreds_of_policies_are_tried_and_each_has_its_own_outcome(
    spark: SparkSession, tmp_path: Path
) -> None:
    loads = {f"q{n}": replace(random_traffic(n, 40, load=3.0), queue=f"q{n}") for n in (1, 2)}
    for queue, load in loads.items():
        save(load, tmp_path / "trace" / f"{queue}.parquet")
    sweep = Sweep(
        sweep={
            "decay_rate": [n / 20 for n in range(1, 21)],
            "band_width": [0.0, 1.0, 2.0, 5.0, 10.0],
            "decay_unit_ms": [300],
        }
    )
    studies = study(spark, read_trace(spark, str(tmp_path / "trace")), sweep).studies
    assert sum(len(each.outcomes) for each in studies) == 2 * (2 + 20 * 5)
    for each in studies:
        load = from_table(to_table(loads[each.queue]).sort_by(IN_ORDER))
        names = [policy.name for policy in sweep.candidates(1_000)]
        assert [outcome.policy for outcome in each.outcomes] == names
        assert {(outcome.queue, outcome.messages) for outcome in each.outcomes} == {
            (each.queue, 40)
        }
        for name in ("fifo", "importance", *names[2::17], names[-1]):
            trial = fleet.Trial(each.queue, name, spec_of(sweep, each, name))
            assert each.outcome(name) == fleet.try_policy(trial, load, {}, None)
    # They are not all the same one.
    assert len({outcome.byte_days for outcome in studies[0].outcomes}) > 20


def test_what_somebody_named_is_shown_however_it_did() -> None:
    outcomes = [told("today", 0.1, 5), *(told(f"p{n:02}", n / 20, n) for n in range(19))]
    found = QueueStudy("q", outcomes, {}, choose(outcomes, SWEEP.goal))
    shown = [each.policy for each in found.shown(3, ["today"])]
    assert shown == ["p18", "p17", "p16", "today"]


def test_rows_of_a_trace_may_come_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    at_once = replace(LARGE, at_ms=LARGE.at_ms // 1_000 * 1_000)
    found = []
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(300)
        pq.write_table(to_table(at_once).take(order), tmp_path / "t.parquet")
        rows = read_trace(spark, str(tmp_path / "t.parquet"))
        found += study(spark, rows, Sweep(policies={"only": {}})).studies
    assert found[0].outcomes == found[1].outcomes


@pytest.mark.parametrize(
    ("drop", "what"),
    [
        (["service_ms", "bytes"], "no column bytes, service_ms"),
        (["useful_ms"], "does not say how long a message is useful"),
        (["consumers"], "does not say how many work on it at once"),
    ],
)
def test_what_a_trace_lacks_is_named(
    spark: SparkSession, tmp_path: Path, drop: list[str], what: str
) -> None:
    pq.write_table(to_table(LARGE).drop_columns(drop), tmp_path / "t.parquet")
    with pytest.raises(InvalidTrace, match=what) as refused:
        study(spark, read_trace(spark, str(tmp_path / "t.parquet")), SWEEP)
    assert refused.value.action


def test_what_a_trace_lacks_can_be_said(spark: SparkSession, tmp_path: Path) -> None:
    rows = to_table(LARGE).drop_columns(["useful_ms", "consumers"])
    pq.write_table(rows, tmp_path / "t.parquet")
    sweep = Sweep(traffic=TrafficSpec(useful_ms=500, consumers=2), policies={"only": {}})
    (found,) = study(spark, read_trace(spark, str(tmp_path / "t.parquet")), sweep).studies
    assert [each.policy for each in found.outcomes] == ["only", "fifo", "importance"]


def test_what_a_trace_says_counts_whatever_else_is_said(
    spark: SparkSession, tmp_path: Path
) -> None:
    # One message of which nobody knows it makes no difference: the most of a queue counts.
    told = pa.array([None, *[1] * 299], pa.int32())
    at = to_table(LARGE).schema.get_field_index("consumers")
    pq.write_table(to_table(LARGE).set_column(at, "consumers", told), tmp_path / "t.parquet")
    trace = read_trace(spark, str(tmp_path / "t.parquet"))
    one, other = (
        study(spark, trace, Sweep(traffic=spec, policies={"only": {}})).studies[0].outcomes
        for spec in (TrafficSpec(), TrafficSpec(useful_ms=1, consumers=100))
    )
    assert one == other
    assert one[0].on_time_share < 0.5


def worked_on(queue: str, at: int) -> list[dict[str, object]]:
    """A message of a queue that was leased and done, as a node tells it."""
    said = {"queue": queue, "message_id": f"{queue} {at}"}
    return [
        {**said, "seq": at},
        {**said, "seq": at + 1, "event": "leased"},
        {**said, "seq": at + 2, "event": "acked", "latency_ms": 250},
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A queue of which a message was done, two of which none was, and the ledger of a sink."""
    waiting = [{"seq": n, "queue": "dead", "message_id": f"d{n}"} for n in (11, 12)]
    failed = {"queue": "bad", "message_id": "b"}
    told = [
        *worked_on("orders", 1),
        *waiting,
        {**failed, "seq": 21},
        {**failed, "seq": 22, "event": "leased"},
        {**failed, "seq": 23, "event": "retried", "latency_ms": 5},
        *worked_on("spark.sink.orders", 31),
    ]
    tell(tmp_path / "lake", 1, told)
    return tmp_path / "lake"


QUICKLY = Sweep(traffic=TrafficSpec(useful_ms=60_000), policies={"today": {}})


@pytest.mark.parametrize("consumers", [None, 4])
def test_queues_of_which_nothing_was_ever_done_are_left_out_and_named(
    spark: SparkSession, lake: Path, consumers: int | None
) -> None:
    # How many would work on them may be said; how long it would take, nobody knows.
    spec = TrafficSpec(useful_ms=60_000, consumers=consumers)
    found = study_lake(spark, lake, Sweep(traffic=spec, policies={"today": {}}))
    assert [each.queue for each in found.studies] == ["orders"]
    assert {each.messages for each in found.studies[0].outcomes} == {1}
    assert found.left_out == ["bad", "dead"]


def test_queues_can_be_chosen_and_one_that_is_not_there_is_named(
    spark: SparkSession, lake: Path
) -> None:
    chosen = study_lake(spark, lake, QUICKLY, queues=["spark.sink.orders", "dead"])
    assert [each.queue for each in chosen.studies] == ["spark.sink.orders"]
    assert chosen.left_out == ["dead"]
    with pytest.raises(UnknownQueue, match="no queue 'ordres' in the traffic") as refused:
        study_lake(spark, lake, QUICKLY, queues=["dead", "ordres"])
    assert "without naming queues" in refused.value.action
    with pytest.raises(InvalidTrace, match="no message of bad, dead was ever done"):
        study_lake(spark, lake, QUICKLY, queues=["bad", "dead"])


def test_a_table_of_a_queue_that_is_not_in_the_traffic_is_named(
    spark: SparkSession, lake: Path
) -> None:
    tables = {"ordres": {}, "dead": {}, "xyz": {}, "orders": {}}
    sweep = msgspec.structs.replace(QUICKLY, queues=tables)
    assert study_lake(spark, lake, sweep).astray == ["ordres", "xyz"]


@pytest.mark.parametrize("name", [None, "", " orders"])
def test_a_name_that_no_queue_has_is_blamed_on_the_trace(
    spark: SparkSession, tmp_path: Path, name: str | None
) -> None:
    names = pa.array([name, *["q"] * 299], pa.string())
    pq.write_table(to_table(LARGE).set_column(0, "queue", names), tmp_path / "t.parquet")
    with pytest.raises(InvalidTrace, match=f"column queue of the trace: .* {name!r} is not"):
        study(spark, read_trace(spark, str(tmp_path / "t.parquet")), SWEEP)


@pytest.mark.parametrize("name", ["m[1]", "a{b,c}", "every*", "who?", "back\\slash", "50%20 #1"])
def test_a_file_of_any_name_is_read_and_no_other_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for number, other in enumerate(("m1", "ab", "every", "whom", "backslash", name)):
        save(random_traffic(1, 10 + number), tmp_path / f"{other}.parquet")
    monkeypatch.chdir(tmp_path)
    assert read_trace(spark, f"{name}.parquet").count() == 15
    assert read_trace(spark, str(tmp_path / "*.parquet")).count() == 75


def test_a_file_that_is_no_trace_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="nowhere"):
        study(spark, read_trace(spark, str(tmp_path / "nowhere.parquet")), SWEEP)
    wrong = to_table(LARGE).set_column(1, "at_ms", pa.array(["noon"] * 300))
    pq.write_table(wrong, tmp_path / "t.parquet")
    with pytest.raises(InvalidTrace, match="column at_ms"):
        study(spark, read_trace(spark, str(tmp_path / "t.parquet")), SWEEP)
    pq.write_table(to_table(LARGE).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(InvalidTrace, match="no messages"):
        study(spark, read_trace(spark, str(tmp_path / "empty.parquet")), SWEEP)


def test_a_value_no_broker_takes_is_named_though_an_executor_found_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    wrong = to_table(LARGE).set_column(2, "importance", pa.array([77] * 300, pa.int32()))
    pq.write_table(wrong, tmp_path / "t.parquet")
    with pytest.raises(InvalidTrace, match="importance is 77"):
        study(spark, read_trace(spark, str(tmp_path / "t.parquet")), SWEEP)


def test_the_best_of_a_queue_of_any_name_can_be_read_again() -> None:
    outcomes = [told("fifo", 0.5, 1), told("importance", 0.6, 1)]
    fields = {each.policy: {"max_attempts": 2} for each in outcomes}
    name = 'Züge \U0001f682 "quoted" a.b\\c'
    found = QueueStudy(name, outcomes, fields, choose(outcomes, SWEEP.goal))
    again = read_sweep(best_toml([found], "trains").encode(), "best.toml")
    assert again.queues == {name: {"max_attempts": 2}}


def test_too_many_simulations_are_refused() -> None:
    queues = [fleet.QueueTraffic(f"q{n}", 1, 1_000) for n in range(900)]
    with pytest.raises(InvalidSpec, match="23,400 simulations"):
        fleet.trials_of(Sweep(), queues, {})
