"""Jobs of the pipeline end to end, on feeds that real brokers wrote."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq import AdaptSpec, Message, QueueSpec
from ebbmq.feed import claims
from ebbmq.feed.events import EVENTS
from ebbmq.feed.layout import LATEST_REPORT
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq_spark.attempts import JobFailed
from ebbmq_spark.jobs import history
from ebbmq_spark.jobs.plan import HOLD_MS
from ebbmq_spark.jobs.running import Arguments, InvalidBudget, figures, run, run_plan
from ebbmq_spark.lake import PipelineBusy, open_lake
from ebbmq_spark.soundness import name_of
from ebbmq_spark.transforms.profiles import KEY
from tests.feeds import manifests_of
from tests.pipeline.handwritten import tell
from tests.pipeline.lakes import DAY_MS, FADING, Node, counted, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def profile_of(lake: Path) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in rows(lake, PROFILES):
        key = row["node"], row["event"]
        found[key] = found.get(key, 0) + row["count"]
    return found


def test_a_run_counts_judges_plans_and_reports(spark: SparkSession, tmp_path: Path) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=4_000)
        node.clock.advance(20 * DAY_MS)
    first = run(spark, Arguments(tmp_path / "lake", bounded=False))
    assert (first.events, first.rejected, first.impossible, first.missing) == (30, 0, 0, 0)
    assert (first.messages, first.looked_at) == (16, 16)
    assert first.actions["archive"].count == 16
    assert first.cost_after < first.cost_before
    assert profile_of(tmp_path / "lake") == {
        ("a", "published"): 20, ("a", "leased"): 5, ("a", "acked"): 4, ("a", "retried"): 1,
    }  # fmt: skip
    (rate,) = rows(tmp_path / "lake", RATES)
    assert (rate["queue"], rate["factor"], rate["samples"]) == ("orders", 2.0, 5)
    page = (tmp_path / "lake" / "reports" / "latest.html").read_text()
    assert "orders" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert [each.run for each in history.read(tmp_path / "lake").records] == [first.run]


def test_the_next_run_reads_only_what_is_new_and_ends_up_with_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(10)
        one = run(spark, Arguments(lake))
        node.work()
        with Node(tmp_path, "b") as other:
            other.work(took_ms=5_000)
    two = run(spark, Arguments(lake))
    three = run(spark, Arguments(lake))
    assert (one.events, two.events, three.events) == (30, 60, 0)
    assert three.counted == two.run
    found = {key: dict(row) for row in rows(lake, PROFILES) for key in [key_of(row)]}
    run(spark, Arguments(lake, full=True))
    whole = {key: dict(row) for row in rows(lake, PROFILES) for key in [key_of(row)]}
    for name in ("count", "bytes", "samples", "p50_ms", "p99_ms"):
        assert {key: row[name] for key, row in found.items()} == {
            key: row[name] for key, row in whole.items()
        }
    assert profile_of(lake)["b", "published"] == 20
    assert profile_of(lake)["a", "published"] == 40


def test_what_is_counted_stays_also_if_all_that_is_left_is_counted_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(2 * DAY_MS)
        run(spark, Arguments(lake))
        # A node clears away what is old.
        for old in manifests_of(lake, EVENTS):
            (lake / name_of(old)).unlink()
        node.work()
    with Node(tmp_path, "b") as other:
        other.work()
    second = run(spark, Arguments(lake, full=True))
    assert (second.events, profile_of(lake)["a", "published"]) == (60, 40)
    assert profile_of(lake)["b", "published"] == 20
    for old in manifests_of(lake, EVENTS):
        (lake / name_of(old)).unlink()
    third = run(spark, Arguments(lake, full=True))
    assert (third.events, third.counted) == (0, second.run)
    assert (third.read, third.heard) == (second.read, second.heard)
    fourth = run(spark, Arguments(lake))
    assert (fourth.events, fourth.counted) == (0, second.run)


def test_a_lost_copy_is_no_message_that_left(spark: SparkSession, tmp_path: Path) -> None:
    told = [
        {"seq": 1, "event": "lost", "reason": "missing", "message_id": "has another copy"},
        {"seq": 2, "event": "lost", "reason": "evicted", "message_id": "has none"},
        {"seq": 3, "event": "removed", "reason": "lost", "message_id": "has none"},
        {"seq": 4, "event": "acked", "message_id": "done"},
    ]
    tell(tmp_path, 1, told)
    run(spark, Arguments(tmp_path))
    assert figures(spark, tmp_path).losses == [("removed", "lost", 1)]
    assert "Messages that left other than by ack" in (tmp_path / LATEST_REPORT).read_text()


def factors(
    spark: SparkSession, lake: Path, *, full: bool = False, hold_ms: int = HOLD_MS
) -> dict[str, float]:
    """What a run recommends."""
    run(spark, Arguments(lake, bounded=False, full=full, hold_ms=hold_ms))
    return {row["queue"]: row["factor"] for row in rows(lake, RATES)}


def test_factors_go_on_from_the_last_ones_and_rest_between_steps(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    eager = AdaptSpec(raise_above_ms=1_000, lower_below_ms=500, step=2.0, dwell_ms=0)
    queues = [
        QueueSpec("eager", adapt=eager),
        QueueSpec("calm", adapt=msgspec.structs.replace(eager, dwell_ms=DAY_MS)),
    ]
    with Node(tmp_path, "a") as node:

        def work(took_ms: int) -> None:
            for queue in queues:
                node.work(queue, took_ms=took_ms)
            node.clock.advance(10)

        work(5_000)
        assert factors(spark, lake) == {"eager": 2.0, "calm": 2.0}
        work(5_000)
        assert factors(spark, lake) == {"eager": 4.0, "calm": 2.0}
        # All events are there again, and none of them is new.
        assert factors(spark, lake, full=True) == {"eager": 4.0, "calm": 2.0}
        # Leases were long on the whole, and have become short.
        work(50)
        assert factors(spark, lake, full=True, hold_ms=1) == {"eager": 2.0, "calm": 2.0}
        # These are over by now; a step still rests.
        work(5_000)
        assert factors(spark, lake) == {"eager": 2.0, "calm": 1.0}


def key_of(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in KEY)


def test_an_incremental_plan_is_the_full_one(spark: SparkSession, tmp_path: Path) -> None:
    lake, grows = (
        tmp_path / "lake",
        QueueSpec("grows", max_replicas=2, score_per_day=4.0, score_medium=50, score_high=100),
    )
    with Node(tmp_path, "a") as node:
        for queue in (FADING, grows, QueueSpec("plain")):
            node.broker.declare(queue)
        for _ in range(12):
            for queue in ("orders", "grows", "plain"):
                node.broker.publish(queue, [Message(b"x", replicas=1 + n % 2) for n in range(4)])
            node.broker.peek("orders", count=3, counted=True)
            node.clock.advance(2 * DAY_MS)
        for queue in ("orders", "grows", "plain"):
            node.broker.publish(queue, [Message(b"young")])
    due = run_plan(spark, Arguments(lake, bounded=False))
    some = sorted((row["message_id"], row["action"], row["target"]) for row in rows(lake))
    full = run_plan(spark, Arguments(lake, bounded=False, full=True))
    every = sorted((row["message_id"], row["action"], row["target"]) for row in rows(lake))
    assert some == every
    assert 0 < due.looked_at < full.looked_at == 147
    assert counted(due) == counted(full)
    assert set(counted(full)) == {"move", "archive", "repair", "add_copy"}


@pytest.mark.parametrize("budget", [-0.01, float("nan"), float("inf"), -float("inf")])
def test_a_budget_that_is_no_amount_of_money_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, budget: float
) -> None:
    claims.claim(tmp_path, "a")
    with pytest.raises(InvalidBudget, match="the budget is") as refused:
        run_plan(spark, Arguments(tmp_path, budget=budget))
    assert refused.value.code == "invalid_budget"
    assert history.read(tmp_path).records == []


def test_a_lake_without_anything_in_it_is_no_fault(spark: SparkSession, tmp_path: Path) -> None:
    claims.claim(tmp_path, "a")
    for budget in (None, 0.0):
        record = run(spark, Arguments(tmp_path, budget=budget))
        assert (record.events, record.messages, record.actions) == (0, 0, {})
        assert (record.left_out, record.budget, record.notes) == ({}, budget, ())
    with pytest.raises(UnknownFeed, match="no lake"):
        run(spark, Arguments(tmp_path / "nowhere"))


def test_what_cannot_be_read_is_named_and_read_once_it_can_be(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(10)
        node.work()
    torn = lake / manifests_of(lake, EVENTS)[0].parts[0].path
    kept = torn.read_bytes()
    torn.write_bytes(kept[:-9])
    first = run(spark, Arguments(lake))
    (why,) = first.refused.values()
    assert "bytes instead of" in why
    torn.write_bytes(kept)
    # What a killed run left is not seen, and goes.
    left = lake / "plans" / "run=20000101T000000000Z"
    shutil.copytree(lake / "plans" / f"run={first.run}", left)
    second = run(spark, Arguments(lake))
    assert first.events + second.events == 60
    assert second.refused == {}
    assert profile_of(lake)["a", "published"] == 40
    assert not left.exists()
    assert (lake / "plans" / f"run={first.run}").is_dir()


def test_a_clock_that_is_wrong_does_not_make_messages_old(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for name, start_ms in (("behind", 1_000_000_000_000), ("ahead", 2_500_000_000_000)):
        with Node(tmp_path, name, start_ms) as node:
            node.work()
            node.clock.advance(7 * DAY_MS)
    record = run_plan(spark, Arguments(lake, full=True))
    assert len(record.notes) == 2
    for row in rows(lake):
        start = 1_000_000_000_000 if row["node"] == "behind" else 2_500_000_000_000
        assert 7 * DAY_MS <= row["decided_at_ms"] - start < 8 * DAY_MS
        assert row["reason"].startswith("decay score 70.")


def test_snapshots_that_go_while_a_run_is_at_work_do_not_keep_it_from_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        node.work()
        node.clock.advance(20 * DAY_MS)

        def write_others(doing: str) -> None:
            if doing == "counting":
                for _ in range(3):
                    node.clock.advance(10)

        record = run(spark, Arguments(lake, bounded=False), write_others)
        assert (record.refused, counted(record)) == ({}, {"archive": 16})
        assert len(manifests_of(lake, PROFILES)) == 1, "it was done at one go"


def test_a_run_that_snapshots_outrun_gives_up_and_says_what_to_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, begun = tmp_path / "lake", []
    with Node(tmp_path, "a") as node:
        node.work()

        def write_others(doing: str) -> None:
            if doing == "reporting":
                begun.append(doing)
                for _ in range(3):
                    node.clock.advance(10)

        with pytest.raises(JobFailed, match="before they were read, 3 times") as failed:
            run(spark, Arguments(lake), write_others)
        assert "feed.snapshot_every_ms" in failed.value.action
        assert len(begun) == 3
        assert history.read(lake).records == []
        assert run(spark, Arguments(lake)).refused == {}


def test_two_runs_at_once_are_one_too_many(spark: SparkSession, tmp_path: Path) -> None:
    claims.claim(tmp_path, "a")
    with (
        open_lake(tmp_path).only_one("run"),
        pytest.raises(PipelineBusy, match=r"process \d+ is at work"),
    ):
        run(spark, Arguments(tmp_path))
