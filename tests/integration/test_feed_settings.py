"""A snapshot says what it was judged by, and which messages a plan would do something about."""

from __future__ import annotations

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import DAY_MS
from ebbmq.model import AdaptSpec
from ebbmq.testing import ManualClock
from tests.feeds import manifests_of, rows_of

START_MS = 1_700_000_000_000


def opened(tmp_path, clock, **config) -> Broker:
    feed = {"lake": str(tmp_path / "lake"), "every_ms": 10, "snapshot_every_ms": 10}
    return Broker.open(tmp_path / "data", {"node": "n1", "feed": feed, **config}, clock)


def test_a_snapshot_has_the_parameters_of_queues_and_the_room_on_devices(tmp_path) -> None:
    clock = ManualClock(START_MS)
    log = {"log": {"tier": "ssd", "cost_per_gib_month": 0.5, "capacity_bytes": 1 << 30}}
    with opened(tmp_path, clock, devices=log) as broker:
        spec = QueueSpec("q", score_per_day=3.5, tiers=("ssd", "s3"), adapt=AdaptSpec(step=2.0))
        broker.declare(spec)
        broker.publish("q", [Message(b"1")])
        clock.advance(10)
    told = manifests_of(tmp_path / "lake", CATALOG)[-1].settings
    assert told is not None
    (queue,) = told.queues
    for name in ("name", "score_per_day", "tiers", "adapt", "evaluate_every_ms"):
        assert getattr(queue, name) == getattr(spec, name)
    assert (queue.score_medium, queue.score_high) == (7.0, 30.0)
    (device,) = told.devices
    assert (device.name, device.tier, device.cost_per_gib_month) == ("log", "ssd", 0.5)
    assert device.place == ""
    assert 0 < device.free_bytes <= 1 << 30


def test_what_is_not_kept_as_it_should_be_is_to_be_looked_at_at_once(tmp_path) -> None:
    clock = ManualClock(START_MS)
    with opened(tmp_path, clock) as broker:
        # There is no second device, so that none of them ever gets its second copy.
        broker.declare(QueueSpec("grows", score_per_day=1.0, max_replicas=2))
        broker.declare(QueueSpec("plain", score_per_day=1.0))
        broker.declare(QueueSpec("never"))
        for queue in ("grows", "plain", "never"):
            broker.publish(queue, [Message(b"1")])
        clock.advance(10)
        clock.advance(DAY_MS)
    rows = sorted(rows_of(tmp_path / "lake", CATALOG), key=lambda row: row["at_ms"])
    first, last = rows[0]["at_ms"], rows[-1]["at_ms"]
    due = {(row["at_ms"], row["queue"]): row["review_at_ms"] for row in rows}
    assert due[first, "grows"] == START_MS + 60_000
    assert due[last, "grows"] == last == START_MS + 10 + DAY_MS
    assert due[first, "plain"] == due[last, "plain"] == START_MS + 7 * DAY_MS + 1
    assert due[last, "never"] is None


def test_messages_are_in_the_order_in_which_they_are_to_be_looked_at(tmp_path) -> None:
    clock = ManualClock(START_MS)
    with opened(tmp_path, clock) as broker:
        for name, per_day in (("slow", 1.0), ("never", 0.0), ("fast", 20.0)):
            broker.declare(QueueSpec(name, score_per_day=per_day))
            broker.publish(name, [Message(b"1")] * 3)
        clock.advance(10)
    last = max(row["at_ms"] for row in rows_of(tmp_path / "lake", CATALOG))
    rows = [row for row in rows_of(tmp_path / "lake", CATALOG) if row["at_ms"] == last]
    assert [row["queue"] for row in rows] == ["fast"] * 3 + ["slow"] * 3 + ["never"] * 3
