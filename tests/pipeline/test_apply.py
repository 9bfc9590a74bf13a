"""The whole way round: brokers tell, Spark plans and recommends, brokers do it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq import Broker, Client, Message
from ebbmq.cli.main import main
from ebbmq.errors import UnknownRun
from ebbmq.feed.plans import PLANS
from ebbmq.feed.rates import RATES
from ebbmq_spark.jobs.running import Arguments, run
from tests.advice import until_usable
from tests.feeds import manifests_of
from tests.pipeline.lakes import ADAPT, DAY_MS, DEVICES, FADING, Node, counted, rows
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
ARCHIVE = {"kind": "object", "directory": "archive", "capacity_bytes": 1 << 28, "tier": "s3"}


def test_what_spark_plans_really_moves_and_what_is_slow_here_fades_sooner_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=5_000)
        node.clock.advance(20 * DAY_MS)
    record = run(spark, Arguments(tmp_path / "lake", bounded=False))
    feed = {"lake": str(tmp_path / "lake"), "plans_every_ms": 0}

    # The archive came after the messages had faded: only the plan asks for it at once.
    devices = {**DEVICES, "archive": ARCHIVE}
    config = {"node": "a", "feed": feed, "devices": devices}
    with Broker.open(tmp_path / "a", config, node.clock) as broker:
        until_usable(broker)
        plan = {each.table: each for each in broker.apply_plans(record.run)}["plans"]
        assert (plan.applied, plan.refused) == (16, {})
        wait_until(lambda: broker.engine.holdings.counts("archive") == (16, 0), "all are moved")
        assert broker.engine.holdings.without_log() == 16
        shown = broker.peek("orders", 1)[0]
        assert (shown.tier, shown.copies, shown.body) == ("s3", ("archive",), b"x" * 100)
        assert broker.why(shown.id)["pinned"]["run"] == record.run

    with Broker.open(tmp_path / "b", {"node": "b", "feed": feed}) as other:
        other.declare(FADING)
        (rates, of_others) = other.apply_plans()
        assert (rates.table, rates.applied) == ("rates", 1)
        assert of_others.rows == 0
        other.publish("orders", [Message(b"y", decay_rate=0.1)])
        assert other.peek("orders", 1)[0].decay_rate == pytest.approx(0.2)


def test_a_run_that_did_not_end_has_no_effect_and_is_in_the_history(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work(took_ms=5_000)
        node.clock.advance(20 * DAY_MS)

    def fail_at(point: str) -> Callable[[str], None]:
        def stage(name: str) -> None:
            if name == point:
                raise RuntimeError(point)

        return stage

    # Its rates are visible, and of the second one the plan is, too.
    for point in ("planning", "reporting"):
        with pytest.raises(RuntimeError, match=point):
            run(spark, Arguments(lake, bounded=False), fail_at(point))
    assert (len(manifests_of(lake, RATES)), len(manifests_of(lake, PLANS))) == (2, 1)
    cut = [place.stem for place in sorted((lake / "runs").glob("*.begun"))]
    feed = {"lake": str(lake), "plans_every_ms": 60_000}
    devices = {**DEVICES, "archive": ARCHIVE}
    # Factors are dated by Spark's clock, and so is the second broker.
    with (
        Broker.open(
            tmp_path / "a", {"node": "a", "feed": feed, "devices": devices}, node.clock
        ) as a,
        Broker.open(tmp_path / "b", {"node": "b", "feed": feed}) as b,
    ):
        b.declare(FADING)
        until_usable(a)
        node.clock.advance(120_000)
        assert b.apply_plans() == a.plans().runs == []
        assert (a.plans().pinned, b.stats("orders")["decay_factor"]) == (0, 1.0)
        for name in cut:
            with pytest.raises(UnknownRun, match="pipeline history"):
                a.apply_plans(name)
        record = run(spark, Arguments(lake, bounded=False))
        taken = [each for broker in (a, b) for each in broker.apply_plans()]
        assert {each.run for each in taken} == {record.run}
        assert [each.applied for each in taken] == [0, 16, 1, 0]
    for words in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            main(("pipeline", "history", "--lake", str(lake), *words))
        assert not ended.value.code
    shown = capsys.readouterr().out
    lines = {name: [line for line in shown.splitlines() if name in line] for name in cut}
    assert all("not ended" in line for (line, *_) in lines.values())
    listed = json.loads(shown[shown.index("[") :])
    assert [(each["run"], bool(each["ended_at_ms"])) for each in listed] == [
        *((name, False) for name in cut), (record.run, True),
    ]  # fmt: skip


def test_slow_consumers_here_make_what_is_published_on_a_server_elsewhere_fade_sooner(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=5_000)
    record = run(spark, Arguments(tmp_path / "lake"))
    feed = {"lake": str(tmp_path / "lake"), "plans_every_ms": 0}
    with Served(tmp_path / "b", node="b", feed=feed) as served:
        url = f"http://127.0.0.1:{served.port}"
        rated = Message(b"rated", decay_rate=0.1)
        spec = msgspec.structs.replace(FADING, decay_rate=0.3)
        with Client(url) as client:
            client.declare(spec)
            client.publish("orders", [rated])
            with pytest.raises(SystemExit) as ended:
                main(("pipeline", "apply", "--url", url))
            assert (ended.value.code or 0) == 0, capsys.readouterr().err
            assert record.run in capsys.readouterr().out
            client.publish("orders", [rated, Message(b"of the queue")])
            rates = [each.decay_rate for each in client.peek("orders", 3)]
            assert sorted(rates) == pytest.approx([0.1, 0.2, 0.6])
            assert client.stats("orders")["decay_factor"] == ADAPT.step
            (known,) = (each for each in client.plans().runs if each.table == "rates")
            assert (known.run, known.applied, known.refused) == (record.run, 1, {})


def test_clocks_that_are_two_hours_apart_do_not_keep_a_plan_from_being_applied_or_make_it_young(
    spark: SparkSession, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    clocks = {}
    for name, ahead_ms in (("right", 0), ("ahead", 2 * HOUR_MS)):
        with Node(tmp_path, name, now_ms - 20 * DAY_MS + ahead_ms) as node:
            node.work(took_ms=5_000)
            node.clock.advance(20 * DAY_MS)
        clocks[name] = node.clock
    record = run(spark, Arguments(tmp_path / "lake", bounded=False))
    assert any(each.startswith("the clock of node ahead differs by 7") for each in record.notes)
    assert counted(record) == {"archive": 32}
    config = {
        "feed": {"lake": str(tmp_path / "lake"), "plans_every_ms": 0},
        "devices": {**DEVICES, "archive": ARCHIVE},
    }
    for name, clock in clocks.items():
        with Broker.open(tmp_path / name, {**config, "node": name}, clock) as broker:
            until_usable(broker)
            applied = {each.table: each for each in broker.apply_plans(record.run)}
            assert (applied["plans"].applied, applied["plans"].refused) == (16, {})
            # Factors are dated by Spark's clock: to who is two hours ahead they have run out.
            factors = applied["rates"].applied, applied["rates"].refused
            assert factors == ((1, {}) if name == "right" else (0, {"run_out": 1}))


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_a_plan_is_of_its_snapshot_and_what_happened_since_makes_the_broker_refuse_the_row(
    spark: SparkSession, tmp_path: Path, ahead_ms: int
) -> None:
    with Node(tmp_path, "a", feed={"snapshot_every_ms": 0}) as node:
        broker, engine = node.broker, node.broker.engine
        node.work(msgspec.structs.replace(FADING, score_access_bonus=1.0))
        node.clock.advance(20 * DAY_MS)
        # The calendar was set: what is decided is dated by queue time.
        node.clock.ahead_ms = ahead_ms
        engine.feed.ask_snapshot()
        node.clock.advance(10)
        assert engine.feed.snapshots == 1
        now_ms = engine.now_ms()
        node.clock.advance(10)
        broker.peek("orders", 3, counted=True)
        acked, released = broker.lease("orders", 2)
        broker.ack("orders", [acked.token])
        broker.release("orders", [released.token])
        node.clock.advance(10)
        record = run(spark, Arguments(tmp_path / "lake", bounded=False))
        assert counted(record) == {"archive": 16}
        assert {row["decided_at_ms"] for row in rows(tmp_path / "lake")} == {now_ms}
        told = {each.table: each for each in broker.apply_plans(record.run)}["plans"]
        # There is no such device: of the others what was decided is of the present.
        assert told.refused == {"gone": 1, "generation": 1, "crossed": 1, "unknown_tier": 13}


def test_what_is_due_at_once_by_a_clock_half_a_minute_ahead_is_planned_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    ahead_ms = 30_000
    with Node(tmp_path, "a", time.time_ns() // 1_000_000 - 20 * DAY_MS + ahead_ms) as node:
        node.work()
        node.clock.advance(20 * DAY_MS)
    record = run(spark, Arguments(tmp_path / "lake", bounded=False))
    assert counted(record) == {"archive": 16}


def test_a_plan_that_is_older_than_an_hour_is_refused_with_a_count_and_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node(tmp_path, "a", time.time_ns() // 1_000_000 - 20 * DAY_MS) as node:
        node.work()
        node.clock.advance(20 * DAY_MS)
    record = run(spark, Arguments(tmp_path / "lake", bounded=False, hold_ms=DAY_MS))
    node.clock.advance(HOUR_MS + 300_000)
    feed = {"lake": str(tmp_path / "lake"), "plans_every_ms": 0}
    config = {"node": "a", "feed": feed, "devices": {**DEVICES, "archive": ARCHIVE}}
    with Broker.open(tmp_path / "a", config, node.clock) as broker:
        until_usable(broker)
        told = {each.table: each for each in broker.apply_plans(record.run)}
        assert (told["plans"].applied, told["plans"].refused) == (0, {"too_old": 16})
        assert (told["rates"].applied, told["rates"].refused) == (0, {"too_old": 1})
        assert broker.plans().pinned == 0
