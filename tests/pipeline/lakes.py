"""Lakes written by real brokers, for the jobs to read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.plans import PLANS
from ebbmq.model import AdaptSpec
from ebbmq.testing import ManualClock
from tests.feeds import manifests_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table

DAY_MS = 86_400_000
ADAPT = AdaptSpec(raise_above_ms=1_000, lower_below_ms=500, step=2.0)
#: The only device, so that what queues ask for is planned, and never done.
DEVICES = {"log": {"tier": "ssd", "cost_per_gib_month": 0.1}}
FADING = QueueSpec("orders", score_per_day=10.0, tiers=("ssd", "hdd", "s3"), adapt=ADAPT)


class SteppedClock(ManualClock):
    """A clock whose calendar can be set, as a machine's can; queue time does not follow."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Node:
    """A broker on a clock of its own, which writes a feed."""

    def __init__(
        self,
        root: Path,
        name: str,
        start_ms: int | None = None,
        feed: dict[str, Any] | None = None,
        directory: str | None = None,
    ) -> None:
        self.lake = root / "lake"
        self.clock = SteppedClock(start_ms or time.time_ns() // 1_000_000 - 25 * DAY_MS)
        feed = {
            "lake": str(self.lake),
            "every_ms": 10,
            "snapshot_every_ms": 10,
            **(feed or {}),
        }
        self.broker = Broker.open(
            root / (directory or name), {"node": name, "feed": feed, "devices": DEVICES}, self.clock
        )

    def work(self, queue: QueueSpec = FADING, *, took_ms: int = 50, messages: int = 20) -> None:
        """Publish, and work on a quarter of it, some of it in vain."""
        self.broker.declare(queue)
        self.broker.publish(
            queue.name, [Message(b"x" * 100, importance=1 + n % 10) for n in range(messages)]
        )
        leases = self.broker.lease(queue.name, count=messages // 4)
        self.clock.advance(took_ms)
        tokens = [lease.token for lease in leases]
        self.broker.ack(queue.name, tokens[1:])
        self.broker.retry(queue.name, tokens[:1])

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *failed: object) -> None:
        self.clock.advance(10)
        self.broker.close()


def rows(root: Path, table: Table = PLANS) -> Iterator[dict[str, Any]]:
    """The rows of the last manifest of a table."""
    last = max(manifests_of(root, table), key=lambda each: each.written_at_ms)
    for part in last.parts:
        yield from pq.read_table(root / part.path, partitioning=None).to_pylist()


def counted(record: Record) -> dict[str, int]:
    """Actions of a run by kind."""
    return {name: action.count for name, action in record.actions.items()}
