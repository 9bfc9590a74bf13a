"""The report says what brokers made of a plan: applied, refused and why, bytes that were moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import Broker, Message
from ebbmq.feed.advice import Applied
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.runs import Action, Record
from ebbmq.feed.settings import Settings
from ebbmq_spark.jobs.changes import changed, last_plan
from ebbmq_spark.jobs.fleet import Fleet, Snapshot
from ebbmq_spark.jobs.running import Arguments, figures, run
from tests.advice import until_usable
from tests.pipeline.lakes import DAY_MS, DEVICES, FADING, Node, counted, rows
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"kind": "object", "directory": "archive", "capacity_bytes": 1 << 28, "tier": "s3"}
PLANNED, LEASED, BODY_BYTES = 16, 1, 100


def take_up(tmp_path: Path, node: Node, made: Record) -> None:
    """A real broker applies a plan, while one of its messages is leased."""
    feed = {
        "lake": str(tmp_path / "lake"), "every_ms": 10, "snapshot_every_ms": 10, "plans_every_ms": 0
    }  # fmt: skip
    config = {"node": "a", "feed": feed, "devices": {**DEVICES, "archive": ARCHIVE}}
    with Broker.open(tmp_path / "a", config, node.clock) as broker:
        until_usable(broker)
        assert len(broker.lease("orders", count=LEASED)) == LEASED
        plan = {each.table: each for each in broker.apply_plans(made.run)}["plans"]
        assert (plan.applied, plan.refused) == (PLANNED - LEASED, {"not_ready": LEASED})
        moved = (PLANNED - LEASED, 0)
        wait_until(lambda: broker.engine.holdings.counts("archive") == moved, "all are moved")
        node.clock.advance(20)


def test_a_report_says_what_a_broker_made_of_the_plan_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(20 * DAY_MS)
    made = run(spark, Arguments(lake, bounded=False))
    assert counted(made) == {"archive": PLANNED}
    latest = lake / "reports" / "latest.html"
    assert "no plan asked for anything so far" in latest.read_text()
    take_up(tmp_path, node, made)

    second = run(spark, Arguments(lake, bounded=False))
    told = figures(spark, lake).changed
    assert told is not None
    assert (told.run, told.applied) == (made.run, {"archive": PLANNED - LEASED})
    assert told.copied == {"archive": Action(PLANNED - LEASED, (PLANNED - LEASED) * BODY_BYTES)}
    assert (told.refused, told.open, told.nodes) == ({"not_ready": LEASED}, 0, ["a"])
    text = latest.read_text()
    assert second.run in text
    assert f"Plan {made.run}" in text
    assert "asked for 16 actions: 15 applied, 1 refused; 1.5 KiB were moved or copied" in text
    assert "its message is leased, scheduled, waits for copies, or is about to leave" in text


def test_rows_of_profiles_do_not_grow_with_the_messages_of_a_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.broker.declare(FADING)
        for _ in range(PLANNED):
            # No two of them have the same score.
            node.broker.publish("orders", [Message(b"x" * BODY_BYTES)])
            node.clock.advance(3_600_000)
        node.clock.advance(20 * DAY_MS)
    made = run(spark, Arguments(lake, bounded=False))
    reasons = {row["reason"] for row in rows(lake)}
    assert len(reasons) == PLANNED
    take_up(tmp_path, node, made)

    run(spark, Arguments(lake, bounded=False))
    found = [row for row in rows(lake, PROFILES) if made.run in row["reason"]]
    told = ("pinned", "archived", "dropped", "copied")
    assert {(row["event"], row["reason"]) for row in found} == {
        (event, f"plan {made.run}: archive") for event in told
    }
    assert len(found) == len({(row["event"], row["hour_ms"]) for row in found})
    assert sum(row["count"] for row in found if row["event"] == "pinned") == PLANNED - LEASED


def record(run: str, **actions: int) -> Record:
    asked = {name: Action(count, count) for name, count in actions.items()}
    return Record(run=run, kind="run", started_at_ms=0, ended_at_ms=0, actions=asked)


def test_only_what_is_of_that_plan_counts_and_what_nobody_told_of_is_open() -> None:
    records = [record("r1", move=5), record("r2", move=9, drop_copy=1), record("r3")]
    plan = last_plan(records)
    assert plan is not None
    assert plan.run == "r2"
    assert last_plan(records[2:]) is None
    advice = (
        Applied(run="r2", rows=3, applied=1, refused={"gone": 2}),
        Applied(run="r1", rows=4, refused={"gone": 4}),
        Applied(run="r2", table="rates", rows=1, refused={"too_old": 1}),
    )
    snapshots = [Snapshot(node, 0, 0, (), 0, Settings(advice=advice)) for node in ("a", "b")] + [
        Snapshot("c", 0, 0, (), 0, Settings())
    ]
    counts = (
        ("pinned", "plan r2: move, decay score 1.00, copies 1 of 1", 3, 30),
        ("pinned", "plan r2: move", 1, 10),
        ("pinned", "plan r1: move", 7, 70),
        ("copied", "plan r2: move", 2, 20),
        ("copied", "move", 5, 50),
        ("unpinned", "plan r2: its time has passed", 1, 10),
        ("leased", "", 1, 10),
    )
    hours = [dict(zip(("event", "reason", "count", "bytes"), row, strict=True)) for row in counts]
    told = changed(plan, Fleet(snapshots, [], {}, []), hours)
    assert told is not None
    assert (told.applied, told.copied) == ({"move": 4}, {"move": Action(2, 20)})
    assert (told.refused, told.ended) == ({"gone": 4}, {"its time has passed": 1})
    assert (told.open, told.nodes) == (2, ["a", "b"])
