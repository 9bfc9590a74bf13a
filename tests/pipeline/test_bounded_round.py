"""The whole way round within bounds: what is worth most really moves, the rest really stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.runs import Action
from ebbmq.limits import GIB, KIB
from ebbmq.testing import ManualClock
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from tests.advice import until_usable
from tests.pipeline.lakes import DAY_MS, counted
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ebbmq.feed.runs import Record

BODY_BYTES = 100 * KIB
LOG = {"tier": "ssd", "cost_per_gib_month": 0.1}
#: Dearer than what is here, as what is kept far away may be, with room for five and a half.
VAULT = {
    "kind": "file", "tier": "vault", "cost_per_gib_month": 0.5, "capacity_bytes": 550 * KIB,
    "status": {"every_ms": 10},
}  # fmt: skip
MESSAGES = [
    Message(bytes([importance]) * BODY_BYTES, importance=importance)
    for importance in (3, 9, 1, 7, 5, 10, 2, 8, 4, 6)
]
QUEUE = QueueSpec(
    "orders", score_per_day=10.0, score_medium=50, score_high=100, tiers=("ssd", "vault")
)


class Fleet:
    """A broker that got a second device when its messages, one of each importance, had faded.

    A broker decides at thresholds: of what crossed them before, only a plan asks for that device.
    """

    def __init__(self, root: Path, messages: Sequence[Message] = MESSAGES) -> None:
        self.lake = root / "lake"
        self._clock = ManualClock(time.time_ns() // 1_000_000 - 25 * DAY_MS)
        with Broker.open(root / "a", {"node": "a", "devices": {"log": LOG}}, self._clock) as broker:
            broker.declare(QUEUE)
            broker.publish("orders", messages)
            self._clock.advance(20 * DAY_MS)
        feed = {
            "lake": str(self.lake), "every_ms": 10, "snapshot_every_ms": 10, "plans_every_ms": 0,
        }  # fmt: skip
        self.broker = Broker.open(
            root / "a",
            {"node": "a", "feed": feed, "devices": {"log": LOG, "vault": VAULT}},
            self._clock,
        )
        until_usable(self.broker)
        self.tell(moved=0)

    def tell(self, moved: int) -> None:
        """Have the broker measure what is where, and write it down."""
        for _ in range(2):
            self._clock.advance(10)
        (vault,) = (each for each in self.broker.devices() if each.name == "vault")
        assert moved * BODY_BYTES <= vault.used_bytes <= vault.capacity_bytes

    def apply(self, record: Record, moved: int) -> None:
        """Apply a plan, and wait until so many are moved in all."""
        told = {each.table: each for each in self.broker.apply_plans(record.run)}["plans"]
        planned = sum(action.count for action in record.actions.values())
        assert (told.applied, told.refused) == (planned, {})
        holdings = self.broker.engine.holdings
        wait_until(
            lambda: (holdings.counts("vault"), holdings.without_log()) == ((moved, 0), moved),
            f"{moved} are moved",
        )
        self.tell(moved)

    def where(self) -> dict[str, list[int]]:
        """The importance of messages by the devices that have them."""
        found: dict[str, list[int]] = {}
        for each in self.broker.peek("orders", 10):
            assert each.body == bytes([each.importance]) * BODY_BYTES
            found.setdefault(" ".join(each.copies), []).append(each.importance)
        return {devices: sorted(those) for devices, those in found.items()}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *failed: object) -> None:
        self.broker.close()


def test_what_there_is_money_and_then_room_for_moves_by_value_and_the_rest_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Fleet(tmp_path) as fleet:
        every = run_plan(spark, Arguments(fleet.lake, bounded=False))
        assert counted(every) == {"archive": 10}
        assert fleet.where() == {"log": list(range(1, 11))}
        a_body = every.actions["archive"].bytes // 10
        a_move = a_body * (VAULT["cost_per_gib_month"] - LOG["cost_per_gib_month"]) / GIB

        budget = every.cost_before + 3.5 * a_move
        poor = run(spark, Arguments(fleet.lake, budget=budget))
        assert (counted(poor), poor.left_out) == ({"archive": 3}, {"money": Action(7, 7 * a_body)})
        assert poor.cost_after == pytest.approx(poor.cost_before + 3 * a_move)
        assert poor.cost_after <= budget
        page = (fleet.lake / "reports" / "latest.html").read_text()
        assert "Left out for want of money: 7 of what would be done" in page
        fleet.apply(poor, moved=3)
        assert fleet.where() == {"log": [1, 2, 3, 4, 5, 6, 7], "vault": [8, 9, 10]}

        full = run_plan(spark, Arguments(fleet.lake))
        assert (counted(full), full.left_out) == ({"archive": 2}, {"room": Action(5, 5 * a_body)})
        fleet.apply(full, moved=5)
        assert fleet.where() == {"log": [1, 2, 3, 4, 5], "vault": [6, 7, 8, 9, 10]}

        none = run_plan(spark, Arguments(fleet.lake, budget=0.0))
        assert (counted(none), none.left_out) == ({}, {"money": Action(5, 5 * a_body)})
        assert any(each.endswith("may cost 0.00: nothing was added") for each in none.notes)
        fleet.apply(none, moved=5)
        assert fleet.where() == {"log": [1, 2, 3, 4, 5], "vault": [6, 7, 8, 9, 10]}
