"""Plans for a fleet: what a broker would decide for each message, and what there is room for."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.testing import assertDataFrameEqual

from ebbmq.feed.plans import ACTIONS, PLANS
from ebbmq.model import QueueSpec
from ebbmq.policy.advice import Kept, advised
from ebbmq.policy.decay import Phase
from ebbmq.policy.placement import Placed, Terms, place
from ebbmq.policy.rules.choose import Chooser, Strategy
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet
from ebbmq_spark.jobs.bounding import Limits, Room, bounded
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.transforms.parameters import parameters_of
from ebbmq_spark.transforms.plans import planned, wanted_target
from tests.pipeline.rows import DAY_MS, NOW_MS, catalog, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPEC = QueueSpec(
    "q",
    score_per_day=10,
    score_medium=50,
    score_high=100,
    score_access_bonus=1,
    max_replicas=3,
    tiers=("ssd", "hdd", "s3"),
)
YOUNG, MIDDLE, OLD = (NOW_MS - days * DAY_MS for days in (1, 7, 20))


def test_targets_are_those_of_the_broker(spark: SparkSession) -> None:
    devices = Chooser(RuleSet(), Strategy()).view({f"d{n}": DeviceState() for n in range(12)})
    cases = [
        (enqueued, replicas, target, min_copies, max_replicas)
        for enqueued in (YOUNG, MIDDLE, OLD)
        for replicas in (1, 3)
        for target in (1, 2, 4)
        for min_copies in (1, 2)
        for max_replicas in (None, 2, 5)
    ]
    rows = []
    for enqueued, replicas, target, min_copies, max_replicas in cases:
        spec = QueueSpec(
            "q",
            score_per_day=10,
            score_medium=50,
            score_high=100,
            min_copies=min_copies,
            max_replicas=max_replicas,
        )
        wanted = place(
            Placed(
                properties=Properties(), terms=Terms.of(spec), replicas=replicas, target=target,
                copies=tuple(f"d{n}" for n in range(target)), enqueued_at_ms=enqueued,
                review_at_ms=NOW_MS,
            ),
            NOW_MS,
            devices,
        )  # fmt: skip
        rows.append((int(wanted.phase), replicas, target, min_copies, max_replicas, wanted.target))
    frame = spark.createDataFrame(
        rows,
        "phase int, replicas int, replica_target int, min_copies int, max_replicas int, want int",
    )
    got = frame.select(wanted_target().alias("got"), "want").collect()
    assert [row.got for row in got] == [row.want for row in got]
    assert {row[0] for row in rows} == {int(phase) for phase in Phase}


def test_each_message_gets_the_most_urgent_thing_to_do(spark: SparkSession) -> None:
    rows = catalog(
        spark,
        {"message_id": "rises", "tier": "ssd", "enqueued_at_ms": YOUNG},
        {"message_id": "full", "tier": "ssd", "enqueued_at_ms": YOUNG, "replica_target": 3,
         "copies": 3},
        {"message_id": "cools", "tier": "ssd", "enqueued_at_ms": MIDDLE},
        {"message_id": "faded", "tier": "hdd", "enqueued_at_ms": OLD, "replica_target": 2,
         "copies": 2},
        {"message_id": "archived", "tier": "s3", "enqueued_at_ms": OLD, "copies": 2},
        {"message_id": "read again", "tier": "s3", "enqueued_at_ms": OLD, "access_rate": 170.0,
         "access_at_ms": NOW_MS},
        {"message_id": "lost one", "tier": "hdd", "enqueued_at_ms": MIDDLE, "replicas": 2,
         "replica_target": 2, "copies": 1},
        {"message_id": "settled", "tier": "hdd", "enqueued_at_ms": MIDDLE},
        {"message_id": "worked on", "tier": "ssd", "enqueued_at_ms": OLD, "state": "leased"},
    )  # fmt: skip
    plan = planned(rows, parameters_of(spark, [SPEC]), now_ms=NOW_MS, until_ms=NOW_MS + 1)
    assert plan.schema.names == list(PLANS.names)
    got = {row.message_id: (row.action, row.to_tier, row.target) for row in plan.collect()}
    assert got == {
        "rises": ("add_copy", "ssd", 2),
        "cools": ("move", "hdd", 1),
        "faded": ("archive", "s3", 1),
        "archived": ("drop_copy", "s3", 1),
        "read again": ("promote", "ssd", 2),
        "lost one": ("repair", "hdd", 2),
    }
    reasons = {row.message_id: row.reason for row in plan.collect()}
    assert reasons["faded"] == "decay score 200.00, copies 2 of 1"


def test_a_plan_is_all_that_a_broker_needs_to_know(spark: SparkSession) -> None:
    rows = catalog(
        spark,
        {"node": "n", "message_id": "lost one", "partition": 3, "generation": 2, "tier": "hdd",
         "enqueued_at_ms": MIDDLE, "replicas": 2, "replica_target": 2, "bytes": 700,
         "importance": 8, "policy_version": 5},
        {"message_id": "faded", "tier": "hdd", "enqueued_at_ms": OLD, "replica_target": 2,
         "copies": 2, "importance": 6, "decay_rate": 0.5, "ttl_ms": 40 * DAY_MS},
        {"message_id": "spare", "enqueued_at_ms": MIDDLE, "copies": 2, "access_rate": 2.0,
         "access_at_ms": NOW_MS},
    )  # fmt: skip
    until_ms = NOW_MS + 3_600_000
    base = {
        "node": "a", "queue": "q", "partition": 0, "generation": 0, "policy_version": 0,
        "decided_at_ms": NOW_MS, "until_ms": until_ms,
    }  # fmt: skip
    expected: list[dict[str, Any]] = [
        {"node": "n", "message_id": "lost one", "partition": 3, "generation": 2,
         "action": "repair", "from_tier": "hdd", "to_tier": "hdd", "target": 2, "bytes": 700,
         "freed_bytes": 0, "value": 1_008.0, "reason": "decay score 70.00, copies 1 of 2",
         "policy_version": 5},
        # Half of its time has passed, at half of the rate.
        {"message_id": "faded", "action": "archive", "from_tier": "hdd", "to_tier": "s3",
         "target": 1, "bytes": 1_000, "freed_bytes": 2_000, "value": 4.5,
         "reason": "decay score 200.00, copies 2 of 1"},
        {"message_id": "spare", "action": "drop_copy", "from_tier": None, "to_tier": "hdd",
         "target": 1, "bytes": 0, "freed_bytes": 1_000, "value": 7.0,
         "reason": "decay score 68.00, copies 2 of 1"},
    ]  # fmt: skip
    assertDataFrameEqual(
        planned(rows, parameters_of(spark, [SPEC]), now_ms=NOW_MS, until_ms=until_ms),
        frame(spark, PLANS, base, expected),
    )


def test_what_is_written_and_freed_counts_all_copies_that_come_and_go(spark: SparkSession) -> None:
    rows = catalog(
        spark,
        {"message_id": "repair", "tier": "hdd", "enqueued_at_ms": MIDDLE, "replicas": 3,
         "replica_target": 3, "copies": 1},
        {"message_id": "move", "tier": "ssd", "enqueued_at_ms": MIDDLE, "replicas": 2,
         "replica_target": 2, "copies": 2},
        {"message_id": "archive", "tier": "hdd", "enqueued_at_ms": OLD, "copies": 3},
        {"message_id": "promote", "tier": "s3", "enqueued_at_ms": YOUNG},
        {"message_id": "drop_copy", "tier": "hdd", "enqueued_at_ms": MIDDLE, "copies": 3},
    )  # fmt: skip
    plan = planned(rows, parameters_of(spark, [SPEC]), now_ms=NOW_MS, until_ms=NOW_MS + 1)
    told = {
        row.message_id: (row.bytes // 1_000, row.freed_bytes // 1_000)
        for row in plan.collect()
        if row.action == row.message_id
    }
    assert told == {
        "repair": (2, 0), "archive": (1, 3), "drop_copy": (0, 2), "move": (2, 2), "promote": (2, 1),
    }  # fmt: skip


def test_a_reason_tells_the_score_to_two_digits(spark: SparkSession) -> None:
    rates = {"1": 30.25, "2": 10.004, "3": 10.006, "4": 9.5, "5": 9.0, "6": 1.0}
    rows = catalog(
        spark,
        *(
            {"message_id": name, "tier": "ssd", "enqueued_at_ms": YOUNG, "access_rate": rate,
             "access_at_ms": NOW_MS}
            for name, rate in rates.items()
        ),
    )  # fmt: skip
    plan = planned(rows, parameters_of(spark, [SPEC]), now_ms=NOW_MS, until_ms=NOW_MS + 1)
    scores = {row.message_id: row.reason.partition(",")[0] for row in plan.collect()}
    told = ("-20.25", "0.00", "-0.01", "0.50", "1.00", "9.00")
    assert scores == {name: f"decay score {score}" for name, score in zip(rates, told, strict=True)}


def test_what_is_advised_is_what_a_broker_says_is_to_be_looked_at(spark: SparkSession) -> None:
    specs = [
        msgspec.structs.replace(SPEC, name=f"{on_faded} {most}", on_faded=on_faded, **changes)
        for on_faded in ("archive", "remove")
        for most, changes in (("few", {"max_replicas": None}), ("many", {"min_copies": 2}))
    ]
    ages = (NOW_MS - 1, NOW_MS - 60_000, YOUNG, MIDDLE, OLD)
    rows, expected = [], {}
    for number, (spec, enqueued, tier, replicas, target, copies) in enumerate(
        itertools.product(specs, ages, (None, "ssd", "hdd", "s3", "odd"), (1, 2), (1, 3), (0, 1, 3))
    ):
        terms = Terms.of(spec)
        phase = terms.score.phase(terms.score.at(NOW_MS - enqueued, 0.0))
        kept = Kept(replicas, target, copies, tier)
        expected[str(number)] = advised(kept, terms, phase, young=NOW_MS - enqueued < 60_000)
        rows.append(
            {"queue": spec.name, "message_id": str(number), "enqueued_at_ms": enqueued,
             "tier": tier, "replicas": replicas, "replica_target": target, "copies": copies}
        )  # fmt: skip
    plan = planned(
        catalog(spark, *rows), parameters_of(spark, specs), now_ms=NOW_MS, until_ms=NOW_MS + 1
    )
    got = {row.message_id: row.action for row in plan.collect()}
    assert got == {number: action for number, action in expected.items() if action is not None}
    assert set(got.values()) == set(ACTIONS)


def actions(spark: SparkSession, *rows: tuple):
    base = {
        "node": "a", "queue": "q", "partition": 0, "generation": 0, "from_tier": None, "target": 1,
        "reason": "", "policy_version": 0, "decided_at_ms": 0, "until_ms": 0, "freed_bytes": 0,
    }  # fmt: skip
    named = [
        {
            **base,
            **dict(zip(("message_id", "action", "to_tier", "bytes", "value"), row, strict=True)),
        }
        for row in rows
    ]
    values = [tuple(row[name] for name in PLANS.names) for row in named]
    return spark.createDataFrame(values, schema_of(PLANS))


def within(plan: DataFrame, **free_bytes: int) -> DataFrame:
    """What there is room for on the devices of each tier of node a."""
    room = Room({("a", tier): tier for tier in free_bytes}, free_bytes)
    return bounded(plan, Limits(room, None, {})).plan


def test_where_room_is_short_the_most_valuable_goes_first(spark: SparkSession) -> None:
    plan = actions(
        spark,
        ("best", "promote", "ssd", 400, 9.0),
        ("good", "add_copy", "ssd", 400, 5.0),
        ("poor", "add_copy", "ssd", 100, 1.0),
        ("lost", "repair", "ssd", 100, 1_001.0),
        ("goes", "drop_copy", "ssd", 0, 0.0),
        ("elsewhere", "archive", "s3", 10**12, 0.5),
        ("without tiers", "repair", None, 10**12, 1_000.0),
    )
    kept = within(plan, ssd=800).collect()
    # What is worth less does not jump the queue, though it would fit.
    assert {row.message_id for row in kept} == {
        "best", "lost", "goes", "elsewhere", "without tiers",
    }  # fmt: skip
    assert sum(row.bytes for row in kept if row.to_tier == "ssd") <= 800


def test_of_messages_that_are_worth_the_same_as_many_go_as_there_is_room_for(
    spark: SparkSession,
) -> None:
    plan = actions(spark, *((f"m{n}", "move", "hdd", 10, 5.0) for n in range(1_000)))
    for room, least in ((9_990, 960), (5_000, 460), (300, 1)):
        kept = within(plan, hdd=room).collect()
        assert least <= len(kept) <= room // 10
        # The same ones each time: a plan that is made again asks for nothing else.
        again = {row.message_id for row in within(plan, hdd=room).collect()}
        assert {row.message_id for row in kept} == again


def test_with_room_for_all_of_it_nothing_is_left_out(spark: SparkSession) -> None:
    plan = actions(spark, *((f"m{n}", "move", "hdd", 10, float(n % 3)) for n in range(20)))
    assert within(plan, hdd=200).count() == 20
    assert within(plan, hdd=0).count() == 0
