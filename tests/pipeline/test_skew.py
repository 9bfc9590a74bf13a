"""One queue has nine of ten messages, one message most of the reads: what comes out is the same.

Everything is computed again here, one row after the other, and compared.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ebbmq.feed.events import EVENTS, FAILURES, READS, SETTLES
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.snapshots import CATALOG
from ebbmq.policy.advice import Kept, advised, wanted_target
from ebbmq.policy.decay import ACCESS_MEMORY_DAYS, Access
from ebbmq.policy.importance import current_importance
from ebbmq.policy.placement import Terms
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.transforms.access import hot_set, message_access
from ebbmq_spark.transforms.parameters import parameters_of
from ebbmq_spark.transforms.plans import REPAIR_VALUE, planned
from tests.feeds import rows_of
from tests.pipeline.lakes import DAY_MS, FADING, Node, rows
from tests.pipeline.rows import NOW_MS, STORED, catalog, events
from tests.pipeline.test_plans import within

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ebbmq import QueueSpec

HOUR_MS = 3_600_000
SMALL = [msgspec.structs.replace(FADING, name=f"small {n}", score_per_day=3.0) for n in range(4)]


def judged(row: dict[str, Any], spec: QueueSpec, now_ms: int) -> tuple[str, int, float] | None:
    """What is to be done with a message of a catalog, how many copies it should have, its worth."""
    terms = Terms.of(spec)
    rate = Access(row["access_rate"], row["access_at_ms"]).rate_at(now_ms)
    age_ms = now_ms - row["enqueued_at_ms"]
    phase = terms.score.phase(terms.score.at(age_ms, rate))
    kept = Kept(row["replicas"], row["replica_target"], row["copies"], row["tier"])
    action = advised(kept, terms, phase, young=age_ms < spec.evaluate_every_ms)
    if row["state"] != "ready" or action is None:
        return None
    span_ms = row["ttl_ms"] or spec.decay_unit_ms
    worth = current_importance(row["importance"], row["decay_rate"], age_ms, span_ms)
    value = worth + min(rate, 100.0) + (REPAIR_VALUE if action == "repair" else 0.0)
    return action, wanted_target(kept, terms, phase), value


def counted(told: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[float]]:
    """Count, bytes, access and the mean time of events by queue, node, hour and event."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in told:
        end_ms = row["at_ms"] // HOUR_MS * HOUR_MS + HOUR_MS
        key = row["queue"], row["node"], end_ms - HOUR_MS, row["event"]
        sums = found.setdefault(key, [0, 0, 0.0, 0, 0])
        granted_ms = row["at_ms"] - (row["latency_ms"] or 0)
        sign, at_ms = (-1, granted_ms) if row["event"] in FAILURES else (1, row["at_ms"])
        weight = math.exp((at_ms - end_ms) / DAY_MS / ACCESS_MEMORY_DAYS) / ACCESS_MEMORY_DAYS
        sums[0] += 1
        sums[1] += row["bytes"] or 0
        sums[2] += sign * weight if row["event"] in READS | FAILURES else 0.0
        if row["event"] in SETTLES - {"released"} and row["latency_ms"] is not None:
            sums[3] += 1
            sums[4] += row["latency_ms"]
    return found


def test_a_run_is_right_where_one_queue_has_nine_of_ten_messages_and_one_is_read_all_the_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Node(tmp_path, "a") as node:
        for _ in range(3):
            node.work(FADING, messages=300, took_ms=700)
            for spec in SMALL:
                node.work(spec, messages=8)
            node.clock.advance(3 * DAY_MS)
        for _ in range(400):
            node.broker.peek("small 0", count=1, counted=True)
            node.clock.advance(20)
    record = run(spark, Arguments(lake, bounded=False, full=True))
    told, stored = rows_of(lake, EVENTS), list(rows(lake, CATALOG))
    in_one = sum(row["queue"] == FADING.name for row in stored)
    assert 0.85 < in_one / len(stored) < 0.95
    specs = {spec.name: spec for spec in (FADING, *SMALL)}
    plan = {row["message_id"]: row for row in rows(lake)}
    (now_ms,) = {row["decided_at_ms"] for row in plan.values()}
    expected = {row["message_id"]: judged(row, specs[row["queue"]], now_ms) for row in stored}
    assert {
        key: (row["action"], row["target"], pytest.approx(row["value"]))
        for key, row in plan.items()
    } == {key: each for key, each in expected.items() if each is not None}
    assert (record.events, record.looked_at) == (len(told), len(stored))
    found = {
        (row["queue"], row["node"], row["hour_ms"], row["event"]): row
        for row in rows(lake, PROFILES)
    }
    sums = counted(told)
    assert found.keys() == sums.keys()
    for key, (count, size, access, samples, took) in sums.items():
        row = found[key]
        assert (row["count"], row["bytes"], row["samples"]) == (count, size, samples)
        assert row["access"] == pytest.approx(access)
        assert row["mean_ms"] == (pytest.approx(took / samples) if samples else None)


def test_room_goes_to_the_most_valuable_of_a_queue_that_has_nearly_all_messages(
    spark: SparkSession,
) -> None:
    chance = random.Random(5)
    stored = [
        {
            **STORED,
            "message_id": str(number),
            "queue": "large" if number % 10 else f"small {number % 3}",
            "tier": "ssd",
            "ttl_ms": None,
            "importance": chance.randint(1, 10),
            "bytes": chance.randint(1, 5_000),
            "enqueued_at_ms": NOW_MS - chance.randint(0, 25 * DAY_MS),
            "access_rate": 5_000.0 if number == 7 else 0.0,
            "access_at_ms": NOW_MS if number == 7 else 0,
        }
        for number in range(2_000)
    ]
    specs = {
        name: msgspec.structs.replace(FADING, name=name, score_access_bonus=1.0)
        for name in ("large", "small 0", "small 1", "small 2")
    }
    expected = {row["message_id"]: judged(row, specs[row["queue"]], NOW_MS) for row in stored}
    actions = {key: each for key, each in expected.items() if each is not None}
    assert "7" not in actions, "who is read so often stays"
    sizes = {row["message_id"]: row["bytes"] for row in stored}
    room = {
        tier: sum(sizes[key] for key, each in actions.items() if each[0] == action) // 2
        for tier, action in (("s3", "archive"), ("hdd", "move"))
    }
    parameters = parameters_of(spark, specs.values())
    plan = planned(catalog(spark, *stored), parameters, now_ms=NOW_MS, until_ms=NOW_MS + 1)
    got = within(plan, **room).collect()
    kept = {row.message_id for row in got}
    for tier, action in (("s3", "archive"), ("hdd", "move")):
        asked = {key: each[2] for key, each in actions.items() if each[0] == action}
        taken = asked.keys() & kept
        filled = sum(sizes[key] for key in taken)
        # Nearly all of the room, and nobody who is worth clearly less before who is worth more.
        assert 0.95 * room[tier] < filled <= room[tier]
        least = min(asked[key] for key in taken)
        assert max(asked[key] for key in asked.keys() - taken) <= least + 1 / 16
    assert kept <= actions.keys()


def test_the_hot_set_is_one_message_where_one_has_nearly_all_reads(spark: SparkSession) -> None:
    reads = [(str(1 + n % 40) if n % 10 == 0 else "hot", NOW_MS - 50 * n) for n in range(1_000)]
    told = events(
        spark,
        *(
            {"seq": seq, "event": "peeked", "message_id": key, "at_ms": at_ms}
            for seq, (key, at_ms) in enumerate(reads, 1)
        ),
    )
    expected: dict[str, Access] = {}
    for key, at_ms in reversed(reads):
        expected[key] = expected.get(key, Access()).credited(at_ms)
    access = message_access(told, NOW_MS)
    got = {row.message_id: row.access_rate for row in access.collect()}
    assert got == {key: pytest.approx(each.rate_at(NOW_MS)) for key, each in expected.items()}
    assert [row.message_id for row in hot_set(access, 0.8).collect()] == ["hot"]
