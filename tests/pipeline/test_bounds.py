"""Plans within room and money: the most valuable is in, and what is not is counted."""

from __future__ import annotations

import contextlib
import io
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.testing import assertDataFrameEqual

from bench import catalogs
from ebbmq.feed.plans import PLANS
from ebbmq.feed.runs import Action
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import GIB
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs.bounding import Limits, Room, bounded, room_of
from ebbmq_spark.lake import opened, read_table
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.transforms import bounds
from ebbmq_spark.transforms.plans import NEEDED, as_plan, judged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

#: Of methods that are longer HotSpot makes no machine code: ten times as slow, without a word.
JAVA_COMPILES_BYTES = 8_000
PRICES = {"ssd": 0.1, "hdd": 0.02, "s3": 0.005, "": 0.3}
BASE: dict[str, Any] = {
    "node": "a", "queue": "q", "partition": 0, "generation": 0, "action": "add_copy", "target": 1,
    "from_tier": None, "to_tier": "ssd", "bytes": GIB, "freed_bytes": None, "value": 5.0,
    "reason": "", "policy_version": 0, "decided_at_ms": 0, "until_ms": 0,
}  # fmt: skip
FADED = {"action": "archive", "from_tier": "ssd", "to_tier": "s3", "freed_bytes": GIB, "value": 1.0}
DROPPED = {"action": "drop_copy", "from_tier": "ssd", "bytes": 0, "freed_bytes": GIB, "value": 0.5}


def plan_of(spark: SparkSession, **messages: dict[str, Any]) -> DataFrame:
    rows = [{**BASE, "message_id": name, **fields} for name, fields in messages.items()]
    return spark.createDataFrame(
        [tuple(row[name] for name in PLANS.names) for row in rows], schema_of(PLANS)
    )


def room(**free: int) -> Room:
    return Room({("a", tier): tier for tier in free}, {each: n * GIB for each, n in free.items()})


def ids(plan: DataFrame) -> set[str]:
    return {row.message_id for row in plan.select("message_id").collect()}


def test_without_a_bound_a_plan_is_as_it_was(spark: SparkSession) -> None:
    plan = plan_of(spark, a={"value": 9.0}, b={"value": 5.0}, c=FADED, d=DROPPED)
    assert bounded(plan, Limits(None, None, PRICES)) == (plan, {})
    for free, expected in ((1, {"a", "c", "d"}), (9, {"a", "b", "c", "d"})):
        found = bounded(plan, Limits(room(ssd=free), None, PRICES))
        assert ids(found.plan) == expected
        assert found.left_out == ({"room": Action(1, GIB)} if free == 1 else {})
    found = bounded(plan, Limits(room(ssd=9), 100.0, PRICES))
    assertDataFrameEqual(found.plan, plan)
    assert found.left_out == {}


@pytest.mark.parametrize("money", [0.0, -7.0])
def test_without_money_nothing_is_added_and_what_saves_goes_on(
    spark: SparkSession, money: float
) -> None:
    plan = plan_of(
        spark,
        more={"value": 9.0},
        repair={"action": "repair", "value": 1_009.0},
        tierless={"to_tier": None, "bytes": 2 * GIB},
        free={"to_tier": "unpriced"},
        **({"faded": FADED, "dropped": DROPPED} if money else {}),
    )
    found = bounded(plan, Limits(None, money, PRICES))
    assert ids(found.plan) == {"free", "faded", "dropped"} & ids(plan)
    assert found.left_out == {"money": Action(3, 4 * GIB)}


def test_money_for_half_of_it_is_spent_on_the_more_valuable_half(spark: SparkSession) -> None:
    plan = plan_of(
        spark,
        fourth={"action": "promote", "value": 6.0, "bytes": 2 * GIB, "from_tier": "hdd"},
        first={"action": "repair", "value": 1_001.0},
        third={"value": 7.0},
        fifth={"value": 1.0},
        second={"value": 8.0},
        last={"value": 0.5, "to_tier": "s3"},
    )
    for tenths, expected in ((3, {"first", "second", "third"}), (2.9, {"first", "second"})):
        found = bounded(plan, Limits(None, tenths / 10, PRICES))
        # What is worth less does not jump the queue, though it would be paid.
        assert ids(found.plan) == expected
        assert found.left_out["money"].count == 6 - len(expected)


def test_of_messages_that_are_worth_the_same_as_many_are_paid_as_there_is_money_for(
    spark: SparkSession,
) -> None:
    plan = plan_of(spark, **{f"m{number}": {} for number in range(1_000)})
    for money, least in ((99.9, 960), (50.0, 460), (3.0, 1)):
        found = bounded(plan, Limits(None, money, PRICES))
        paid = ids(found.plan)
        assert least <= len(paid) <= money * 10
        assert found.left_out == {"money": Action(1_000 - len(paid), (1_000 - len(paid)) * GIB)}
        # The same ones each time: a plan that is made again asks for nothing else.
        assert ids(bounded(plan, Limits(None, money, PRICES)).plan) == paid


def test_what_is_saved_can_be_spent(spark: SparkSession) -> None:
    plan = plan_of(spark, faded=FADED, dropped=DROPPED, first={"value": 9.0}, second={"value": 8.0})
    found = bounded(plan, Limits(None, 0.0, PRICES))
    # An archive saves 0.095, a copy 0.1.
    assert ids(found.plan) == {"faded", "dropped", "first"}
    # Not so if there is no room to save it.
    found = bounded(plan, Limits(room(s3=0), 0.095, PRICES))
    assert ids(found.plan) == {"dropped", "first"}
    assert found.left_out == {"room": Action(1, GIB), "money": Action(1, GIB)}


def test_where_room_and_money_are_short_both_are_kept_to(spark: SparkSession) -> None:
    plan = plan_of(
        spark,
        best={"value": 9.0},
        good={"value": 8.0},
        crowded={"value": 7.0},
        cheap={"value": 6.0, "to_tier": "hdd"},
        poor={"value": 5.0, "to_tier": "hdd"},
        poorer={"value": 4.0},
        elsewhere={"value": 4.5, "node": "b"},
        faded=FADED,
        dropped=DROPPED,
    )
    capacity = Room(
        {("a", "ssd"): "ssd of a", ("a", "s3"): "s3", ("b", "ssd"): "s"},
        {"ssd of a": 2 * GIB, "s3": GIB, "s": 0},
    )
    # 0.195 are saved; what there is no room for is not paid.
    found = bounded(plan, Limits(capacity, 0.03, PRICES))
    assert ids(found.plan) == {"best", "good", "cheap", "faded", "dropped"}
    assert found.left_out == {"room": Action(1, GIB), "money": Action(3, 3 * GIB)}


def test_what_is_not_paid_for_takes_no_room_from_what_saves(spark: SparkSession) -> None:
    plan = plan_of(
        spark, repair={"action": "repair", "to_tier": "s3", "value": 1_005.0}, faded=FADED
    )
    found = bounded(plan, Limits(room(s3=1), -5.0, PRICES))
    assert ids(found.plan) == {"faded"}
    assert found.left_out == {"money": Action(1, GIB)}


@contextlib.contextmanager
def made_to_code(spark: SparkSession) -> Iterator[None]:
    """Have Spark make code of what is asked for, which takes tests too long elsewhere."""
    more = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in more}
    try:
        for name, value in more.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            spark.conf.set(name, known)


def test_the_code_that_spark_makes_of_a_plan_is_short_enough_for_java_to_compile(
    spark: SparkSession, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    parts = catalogs.write(tmp_path, 100, 1.0, now_ms, lambda done: None)
    catalogs.publish(tmp_path, parts, now_ms, 1, GIB)
    found = fleets.read(tmp_path, now_ms)
    parameters, prices = fleets.parameters_of(spark, found), fleets.prices(found)
    messages = read_table(spark, CATALOG, found.files, opened(tmp_path), NEEDED)
    plan = as_plan(judged(messages, parameters, 0), 1)
    cuts = {("bench", "ssd"): 9}
    paid = bounds.affordable(plan, prices, 9)
    with made_to_code(spark):
        for frame in (
            plan,
            bounds.histogram(plan, room_of(found).pools, prices),
            bounds.fitting(plan, cuts),
            bounds.fitting(paid, cuts),
        ):
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                frame.explain("codegen")
            sizes = [int(each) for each in re.findall(r"maxMethodCodeSize:(\d+)", shown.getvalue())]
            assert 1_000 < max(sizes) < JAVA_COMPILES_BYTES
