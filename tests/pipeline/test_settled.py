"""The whole way round with copies in several tiers: what is asked for comes true, and once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ebbmq import Broker, Message, QueueSpec
from ebbmq.limits import KIB
from ebbmq.testing import ManualClock
from ebbmq_spark.jobs.running import Arguments, run_plan
from tests.advice import until_usable
from tests.pipeline.lakes import DAY_MS, counted
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

LOG = {"tier": "ssd", "cost_per_gib_month": 1.0}
#: One device of each tier.
OTHERS = {
    name: {
        "kind": "file", "tier": tier, "capacity_bytes": 1 << 24, "cost_per_gib_month": price,
        "status": {"every_ms": 10},
    }
    for name, tier, price in (("disk", "hdd", 0.1), ("vault", "s3", 0.01))
}  # fmt: skip
QUEUE = QueueSpec(
    "orders",
    score_per_day=10.0,
    score_medium=50,
    score_high=100,
    tiers=("ssd", "hdd", "s3"),
    max_replicas=2,
)
#: Days after the one before; they are 20, 7 and 1 day old in the end.
PUBLISHED = ((0, b"faded"), (13, b"kept"), (6, b"fresh"))
SETTLED = {b"faded": ("vault",), b"kept": ("disk",), b"fresh": ("disk", "log")}


class Fleet:
    """A broker that got two further devices when its messages were of all ages."""

    def __init__(self, root: Path) -> None:
        self.lake = root / "lake"
        self.clock = ManualClock(time.time_ns() // 1_000_000 - 25 * DAY_MS)
        with Broker.open(root / "a", {"node": "a", "devices": {"log": LOG}}, self.clock) as broker:
            broker.declare(QUEUE)
            for days, body in PUBLISHED:
                self.clock.advance(days * DAY_MS)
                broker.publish("orders", [Message(body * KIB) for _ in range(3)])
            self.clock.advance(DAY_MS)
        feed = {
            "lake": str(self.lake), "every_ms": 10, "snapshot_every_ms": 10, "plans_every_ms": 0,
        }  # fmt: skip
        config: dict[str, Any] = {"node": "a", "feed": feed, "devices": {"log": LOG, **OTHERS}}
        self.broker = Broker.open(root / "a", config, self.clock)
        until_usable(self.broker)
        self.tell()

    def tell(self) -> None:
        """Have the broker measure what is where, and write it down."""
        for _ in range(2):
            self.clock.advance(10)

    def where(self) -> dict[bytes, tuple[str, ...]]:
        """The devices that have the messages, by the first word of these."""
        found: dict[bytes, set[tuple[str, ...]]] = {}
        for each in self.broker.peek("orders", 10):
            found.setdefault(each.body[: len(each.body) // KIB], set()).add(each.copies)
        return {body: copies.pop() for body, copies in found.items() if len(copies) == 1}

    def apply(self, run: str) -> tuple[int, int]:
        told = {each.table: each for each in self.broker.apply_plans(run)}["plans"]
        assert told.refused == {}
        return told.applied, told.in_force


def test_what_a_plan_asks_for_comes_true_and_is_not_asked_for_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path)
    with fleet.broker:
        first = run_plan(spark, Arguments(fleet.lake, full=True))
        assert counted(first) == {"archive": 3, "move": 3, "add_copy": 3}
        assert fleet.apply(first.run) == (9, 0)
        wait_until(lambda: fleet.where() == SETTLED, "copies are where they should be")
        fleet.tell()
        again = run_plan(spark, Arguments(fleet.lake, full=True))
        assert counted(again) == {}
        assert (again.left_out, again.cost_after) == ({}, again.cost_before)
