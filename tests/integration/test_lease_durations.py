"""How long leases lasted, where the broker was away when they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import AdaptSpec, Broker, Message, QueueSpec
from ebbmq.testing import ManualClock
from tests.feeds import rows_of

if TYPE_CHECKING:
    from pathlib import Path

LEASE_MS = 1_000
AWAY_MS = 20_000
SPEC = QueueSpec(
    "q",
    lease_timeout_ms=LEASE_MS,
    retry_delay_ms=0,
    decay_rate=0.1,
    adapt=AdaptSpec(raise_above_ms=5_000, lower_below_ms=2_000, dwell_ms=0),
)


def test_a_broker_that_was_down_does_not_take_its_absence_for_slow_consumers(
    tmp_path: Path,
) -> None:
    clock, config = ManualClock(), {"feed": {"lake": "lake", "snapshot_every_ms": 0}}
    with Broker.open(tmp_path, config, clock=clock) as broker:
        broker.declare(SPEC)
        broker.publish("q", [Message(b"x")] * 4)
        assert len(broker.lease("q", count=4)) == 4
    clock.advance(AWAY_MS)
    with Broker.open(tmp_path, config, clock=clock) as broker:
        clock.advance(1)
        again = broker.lease("q", count=4)
        histories = [lease.latency_history for lease in again]
        assert [[each.duration_ms for each in known] for known in histories] == [[LEASE_MS]] * 4
        assert broker.stats("q")["decay_factor"] == 1
    ended = [row for row in rows_of(tmp_path / "lake") if row["event"] == "lease_expired"]
    assert [row["latency_ms"] for row in ended] == [LEASE_MS] * 4


def test_a_lease_that_is_longer_than_its_queue_says_lasts_as_long_as_it_did(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(SPEC)
        broker.publish("q", [Message(b"x")])
        broker.lease("q", lease_timeout_ms=7 * LEASE_MS)
        clock.advance(7 * LEASE_MS)
        (again,) = broker.lease("q")
        assert [each.duration_ms for each in again.latency_history] == [7 * LEASE_MS]
