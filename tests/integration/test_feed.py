"""The feed of a real broker, read back from its lake with pyarrow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import InvalidSpec
from ebbmq.feed.events import COPIES, EVENTS
from ebbmq.feed.snapshots import CATALOG
from ebbmq.model import AdaptSpec
from ebbmq.testing import ManualClock
from tests.feeds import manifests_of, rows_of, shown
from tests.served import Served
from tests.serving import wait_until

START_MS = 1_700_000_000_000


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def clock():
    return ManualClock(START_MS)


def opened(tmp_path, clock=None, **feed) -> Broker:
    config = {"node": "n1", "feed": {"lake": str(tmp_path / "lake"), **feed}}
    return Broker.open(tmp_path / "data", config, clock)


def test_published_leased_and_acked_are_in_the_lake(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        broker.declare(QueueSpec("orders"))
        messages = [Message(b"four", importance=9, ttl_ms=60_000, decay_rate=0.5)] * 2
        ids = [receipt.id for receipt in broker.publish("orders", messages)]
        clock.advance(100)
        leases = broker.lease("orders", count=2, name="worker-1")
        clock.advance(30)
        broker.ack("orders", [lease.token for lease in leases])
    rows = rows_of(lake)
    assert shown(rows, "event", "message_id", "at_ms", "generation", "latency_ms") == [
        ("published", ids[0], START_MS, 0, None),
        ("published", ids[1], START_MS, 0, None),
        ("leased", ids[0], START_MS + 100, 1, None),
        ("leased", ids[1], START_MS + 100, 1, None),
        ("acked", ids[0], START_MS + 130, 1, 30),
        ("acked", ids[1], START_MS + 130, 1, 30),
    ]
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5, 6]
    same = ("node", "boot", "queue", "partition", "importance", "decay_rate", "ttl_ms", "bytes")
    assert set(shown(rows, *same)) == {("n1", 1, "orders", 0, 9, 0.5, 60_000, 4)}
    assert {row["enqueued_at_ms"] for row in rows} == {START_MS}
    assert [row["consumer"] for row in rows] == [None, None, "worker-1", "worker-1", None, None]


@pytest.mark.parametrize("together", [True, False], ids=["one publish", "one by one"])
def test_a_publish_says_what_its_publisher_gave(tmp_path, lake, clock, together) -> None:
    messages = [
        Message(b"1"),
        Message(b"2"),
        Message(b"3", importance=5, ttl_ms=1_000),
        Message(b"4", decay_rate=0.0, headers={"a": "b"}),
        Message(b"5", decay_rate=0.4, delay_ms=50),
    ]
    with opened(tmp_path, clock) as broker:
        broker.declare(QueueSpec("q", decay_rate=0.3, default_ttl_ms=9_000))
        for batch in [messages] if together else [[each] for each in messages]:
            broker.publish("q", batch)
    rows = [row for row in rows_of(lake) if row["event"] == "published"]
    assert shown(rows, "given", "given_decay_rate", "importance", "ttl_ms", "decay_rate") == [
        ("nothing", None, 5, 9_000, 0.3),
        ("nothing", None, 5, 9_000, 0.3),
        ("importance ttl_ms", None, 5, 1_000, 0.3),
        ("decay_rate", 0.0, 5, 9_000, 0.0),
        ("decay_rate", 0.4, 5, 9_000, 0.4),
    ]


def test_a_rate_is_told_as_it_was_given_and_as_it_counts(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        broker.declare(QueueSpec("q", decay_rate=0.1, adapt=AdaptSpec()))
        broker.engine.catalog.queues["q"].shards[0].partition.set_factor(3.0)
        broker.publish("q", [Message(b"1", decay_rate=0.5), Message(b"2")])
    assert shown(rows_of(lake), "given_decay_rate", "decay_rate") == [(0.5, 1.0), (None, 0.3)]


def test_a_peek_that_counts_is_told_and_one_that_does_not_is_not(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        broker.declare(QueueSpec("q", score_access_bonus=1.0))
        (receipt,) = broker.publish("q", [Message(b"1", delay_ms=50)])
        broker.peek("q", state="scheduled")
        broker.peek("q", state="scheduled", counted=True)
    rows = rows_of(lake)
    assert [row["event"] for row in rows] == ["published", "scheduled", "peeked"]
    assert shown(rows[2:], "message_id", "generation", "delay_ms") == [(receipt.id, 0, None)]


def test_files_are_by_day_and_hour_and_seen_by_their_manifest(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"1")])
        clock.advance(3_600_000)
        broker.publish("q", [Message(b"2")])
    first, second = manifests_of(lake)
    assert [part.path for part in first.parts] == [
        "events/date=2023-11-14/hour=22/node=n1/00000001-000000001.parquet"
    ]
    assert second.parts[0].path.startswith("events/date=2023-11-14/hour=23/node=n1/")
    assert (first.first_seq, first.last_seq, second.first_seq) == (1, 1, 2)
    assert (first.first_at_ms, second.last_at_ms) == (START_MS, START_MS + 3_600_000)
    assert first.version == EVENTS.version


def test_what_happened_in_two_hours_becomes_visible_together(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock, every_ms=86_400_000) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"1")])
        clock.advance(3_600_000)
        broker.publish("q", [Message(b"2")])
    (manifest,) = manifests_of(lake)
    assert [part.rows for part in manifest.parts] == [1, 1]
    assert [row["seq"] for row in rows_of(lake)] == [1, 2]


def test_instant_0_is_one_also_beside_what_has_none(tmp_path, lake) -> None:
    with opened(tmp_path, ManualClock(0)) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"1")] * 2)
        broker.lease("q", count=1)
        broker.purge("q")
    found = {row["event"]: row["enqueued_at_ms"] for row in rows_of(lake)}
    assert found == {"published": 0, "leased": 0, "removed": 0}


def test_without_a_lake_nothing_of_the_feed_is_loaded_or_started(tmp_path) -> None:
    script = (
        "import sys, threading; from ebbmq import Broker, Message, QueueSpec\n"
        f"with Broker.open({str(tmp_path)!r}) as broker:\n"
        "    broker.declare(QueueSpec('q')); broker.publish('q', [Message(b'1')])\n"
        "    names = {thread.name for thread in threading.enumerate()}\n"
        "assert 'ebbmq-feed' not in names, names\n"
        "assert 'pyarrow' not in sys.modules and 'ebbmq.node.feeding.feed' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("feed", "what"),
    [
        ({"lake": ""}, "feed.lake"),
        ({"lake": "ftp://host/lake"}, "feed.lake"),
        ({"lake": "x", "every_ms": 0}, "feed.every_ms"),
        ({"lake": "x", "buffer": 1}, "feed.buffer"),
    ],
)
def test_a_feed_that_cannot_be_is_refused_by_name(tmp_path, feed, what) -> None:
    with pytest.raises(InvalidSpec, match=what):
        Broker.open(tmp_path / "data", {"feed": feed})


def test_what_becomes_of_copies_is_in_the_lake_with_its_reason(tmp_path, lake) -> None:
    devices = {
        "ssd": {"kind": "file", "capacity_bytes": 64 << 20, "tier": "fast"},
        "hdd": {"kind": "file", "capacity_bytes": 64 << 20, "tier": "slow"},
    }
    rules = [{"id": "W-001", "weight": 90, "device": "ssd", "when": "TYPE == TEXT"}]
    feed = {"lake": str(lake), "snapshot_every_ms": 10, "every_ms": 50}
    config = {"node": "n1", "devices": devices, "rules": rules, "feed": feed}
    with Broker.open(tmp_path / "data", {**config, "upkeep_every_ms": 20}) as broker:
        broker.declare(QueueSpec("q", score_base=7.0))
        (moved,) = broker.publish("q", [Message(b"text", type="TEXT")])
        (twice,) = broker.publish("q", [Message(b"text", type="TEXT", replicas=2)])
        wait_until(lambda: broker.why(moved.id)["copies"] == ("ssd",), "it is moved")
        wait_until(lambda: len(broker.why(twice.id)["copies"]) == 2, "it is copied")
        wait_until(
            lambda: any(row["devices"] == ["ssd"] for row in rows_of(lake, CATALOG)), "a snapshot"
        )
    rows = [row for row in rows_of(lake) if row["event"] in COPIES]
    told = [row for row in rows if row["message_id"] == moved.id]
    assert {row["latency_ms"] for row in told} == {None}
    assert shown(told, "event", "device", "reason") == [
        ("placed", "ssd", "rule W-001"),
        ("copied", "ssd", "move"),
        ("moved", "ssd", "from log"),
    ]
    assert set(shown(told, "queue", "generation", "bytes")) == {("q", 0, told[0]["bytes"])}
    beside = [row for row in rows if row["message_id"] == twice.id]
    assert shown(beside, "event", "reason") == [
        ("placed", "rule W-001; log as the message wants 2 copies"),
        ("copied", "replica"),
    ]
    snapshot = [row for row in rows_of(lake, CATALOG) if row["devices"] == ["ssd"]][-1]
    assert (snapshot["message_id"], snapshot["tier"], snapshot["copies"]) == (moved.id, "fast", 1)
    assert snapshot["decay_score"] == pytest.approx(7.0)


def test_a_server_shows_its_feed(tmp_path, lake) -> None:
    lake.write_bytes(b"not a directory")
    feed = {"lake": str(lake), "every_ms": 10}
    with Served(tmp_path / "data", feed=feed) as served:
        wait_until(
            lambda: served.ask("GET", "/health/ready").json["feed"] != [], "the feed has failed"
        )
        answer = served.ask("GET", "/health/ready")
        assert (answer.status, answer.json["ready"]) == (200, True)
        assert str(lake) in answer.json["feed"][0]
        assert b"ebbmq_feed_ok 0" in served.ask("GET", "/metrics").body
        lake.unlink()
        wait_until(lambda: not served.ask("GET", "/health/ready").json["feed"], "it is well again")
        assert b"ebbmq_feed_ok 1" in served.ask("GET", "/metrics").body
