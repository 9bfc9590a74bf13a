"""A lake that is full, broken, gone, slow or shared: the feed says so, and no message minds."""

from __future__ import annotations

import json
import random
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.happened import LEASED, PUBLISHED, Happened
from ebbmq.core.row import READY, ROW
from ebbmq.feed.snapshots import CATALOG
from ebbmq.node.feeding.joining import BATCH_BYTES, EVENTS_MAX
from ebbmq.testing import ManualClock
from tests.crash.mounts import enlarge, run, tmpfs
from tests.feeds import manifests_of, rows_of, shown
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def opened(tmp_path: Path, clock=None, *, node="n1", data="data", lake=None, **feed) -> Broker:
    given = {"lake": str(lake or tmp_path / "lake"), "every_ms": 10, "snapshot_every_ms": 0, **feed}
    broker = Broker.open(tmp_path / data, {"node": node, "feed": given}, clock)
    broker.declare(QueueSpec("q"))
    return broker


def published(broker: Broker, count: int) -> list[str]:
    return [receipt.id for receipt in broker.publish("q", [Message(b"body")] * count)]


def told(broker: Broker) -> dict[str, int]:
    figures = broker.feed()
    assert figures is not None
    return figures


def drained(broker: Broker) -> list[str]:
    out: list[str] = []
    while leases := broker.lease("q", count=100):
        out += [lease.id for lease in leases]
        broker.ack("q", [lease.token for lease in leases])
    return out


def test_a_lake_that_cannot_be_written_is_told_and_loses_no_message(tmp_path, lake, clock) -> None:
    lake.write_bytes(b"a file where a directory should be")
    with opened(tmp_path, clock) as broker:
        ids = published(broker, 10)
        clock.advance(10)
        health = broker.health()
        assert health["ready"]
        assert [str(lake) in trouble for trouble in health["feed"]] == [True]
        assert (told(broker)["ok"], told(broker)["failures"]) == (0, 1)
        assert drained(broker) == ids
        lake.unlink()
        clock.advance(1_000)
        assert broker.health()["feed"] == []
        assert told(broker)["ok"] == 1
    assert len(rows_of(lake)) == 30


def test_a_lake_that_fails_is_tried_again_with_growing_pauses(tmp_path, lake, clock) -> None:
    lake.write_bytes(b"")
    with opened(tmp_path, clock) as broker:
        tries = []
        for _ in range(70):
            clock.advance(1_000)
            tries.append(told(broker)["failures"])
        assert tries[0] == 1
        assert tries[-1] == 7


def test_what_the_buffer_cannot_hold_is_left_out_and_counted(tmp_path, lake, clock) -> None:
    lake.write_bytes(b"")
    with opened(tmp_path, clock, buffer_bytes=64 * KIB) as broker:
        for _ in range(2_000):
            published(broker, 1)
        missed = told(broker)["events_missed"]
        assert 0 < missed < 2_000
        assert told(broker)["pending_bytes"] <= 64 * KIB
        lake.unlink()
        clock.advance(30_000)
        published(broker, 1)
        clock.advance(10)
        for _ in range(21):
            leases = broker.lease("q", count=100)
            broker.ack("q", [lease.token for lease in leases])
            clock.advance(10)
        assert broker.stats("q")["totals"]["acked"] == 2_001
    rows = rows_of(lake)
    (gap,) = [row for row in rows if row["event"] == "gap"]
    assert (gap["reason"], gap["queue"], gap["message_id"]) == (
        f"{missed} events before this are missing", "", "",
    )  # fmt: skip
    numbers = [row["seq"] for row in rows]
    assert gap["seq"] - numbers[numbers.index(gap["seq"]) - 1] == missed + 1
    assert numbers[-1] - len(numbers) == missed


def test_a_gap_is_told_even_if_nothing_happens_after_it(tmp_path, lake, clock) -> None:
    lake.write_bytes(b"")
    with opened(tmp_path, clock, buffer_bytes=64 * KIB) as broker:
        for _ in range(2_000):
            published(broker, 1)
        lake.unlink()
        clock.advance(30_000)
    assert rows_of(lake)[-1]["event"] == "gap"


#: An event that no version knows.
UNKNOWN = 99


def happened(event: int, messages: int, at_ms: int) -> Happened:
    return Happened(event, 1, at_ms, messages, None, ROW.pack(READY, *[0] * 14) * messages, 1)


def test_what_cannot_be_told_is_a_gap_and_what_comes_after_it_is_told(
    tmp_path, lake, clock, caplog
) -> None:
    with opened(tmp_path, clock) as broker:
        published(broker, 2)
        broker.engine.feed.buffer.tell(happened(UNKNOWN, 3, clock.wall_ms()))
        clock.advance(10)
        assert (told(broker)["ok"], told(broker)["events_missed"]) == (1, 5)
        (trouble,) = broker.health()["feed"]
        assert "5 events are left out" in trouble
        published(broker, 1)
        clock.advance(10)
        broker.engine.feed.buffer.tell(happened(UNKNOWN, 1, clock.wall_ms()))
        clock.advance(10)
        assert told(broker)["pending_bytes"] == BATCH_BYTES  # of the gap
        assert "6 events are left out" in broker.health()["feed"][0]
    assert shown(rows_of(lake), "seq", "event", "reason") == [
        (6, "gap", "5 events before this are missing"),
        (7, "published", None),
        (9, "gap", "1 events before this are missing"),
    ]
    bugs = [record for record in caplog.records if "feed_bug" in record.getMessage()]
    assert [bool(record.exc_info) for record in bugs] == [True, False]


def test_of_what_is_written_together_only_what_cannot_be_told_is_left_out(
    tmp_path, lake, clock
) -> None:
    with opened(tmp_path, clock) as broker:
        for event in (PUBLISHED, UNKNOWN, LEASED):
            broker.engine.feed.buffer.tell(happened(event, EVENTS_MAX, clock.wall_ms()))
        clock.advance(10)
        assert told(broker)["events_missed"] == EVENTS_MAX
        assert told(broker)["events"] == 2 * EVENTS_MAX
    assert [(each.first_seq, each.last_seq) for each in manifests_of(lake)] == [
        (1, EVENTS_MAX), (2 * EVENTS_MAX + 1, 3 * EVENTS_MAX), (3 * EVENTS_MAX + 1,) * 2,
    ]  # fmt: skip


def test_a_lake_that_was_taken_away_is_made_again(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        published(broker, 1)
        clock.advance(10)
        shutil.rmtree(lake)
        published(broker, 1)
        clock.advance(10)
        assert broker.health()["feed"] == []
    assert [row["seq"] for row in rows_of(lake)] == [2]


def test_a_full_lake_is_told_and_goes_on_when_there_is_space(tmp_path, clock) -> None:
    with tmpfs(tmp_path / "mnt", 128 * KIB) as lake, opened(tmp_path, clock, lake=lake) as broker:
        sent = 0
        while not broker.health()["feed"]:
            sent += len(published(broker, 10))
            clock.advance(10)
            assert sent < 10_000
        assert "No space left" in broker.health()["feed"][0]
        assert broker.health()["ready"]
        sent += len(published(broker, 10))
        enlarge(lake, 8 << 20)
        clock.advance(30_000)
        assert broker.health()["feed"] == []
        assert len(rows_of(lake)) == sent
        assert len(drained(broker)) == sent


def test_a_lake_that_cannot_be_changed_is_told_and_goes_on_when_it_can(tmp_path, clock) -> None:
    with tmpfs(tmp_path / "mnt", 8 << 20) as lake, opened(tmp_path, clock, lake=lake) as broker:
        run("mount", "-o", "remount,ro", str(lake))
        ids = published(broker, 10)
        clock.advance(10)
        assert "Read-only" in broker.health()["feed"][0]
        run("mount", "-o", "remount,rw", str(lake))
        clock.advance(1_000)
        assert broker.health()["feed"] == []
        assert [row["message_id"] for row in rows_of(lake)] == ids


class Frozen:
    """A lake that does not answer until it is let go."""

    def __init__(self, lake) -> None:
        self._lake = lake
        self.where = lake.where
        self.asked, self.go = threading.Event(), threading.Event()

    def __getattr__(self, name: str):
        def wait(*arguments: object) -> object:
            self.asked.set()
            assert self.go.wait(60)
            return getattr(self._lake, name)(*arguments)

        return wait


def test_nobody_waits_for_a_lake_that_does_not_answer(tmp_path, lake) -> None:
    with opened(tmp_path, buffer_bytes=64 * KIB) as broker:
        files = broker.engine.feed.files
        frozen = files.lake = Frozen(files.lake)
        published(broker, 10)
        assert frozen.asked.wait(30)
        ids = [each for _ in range(30) for each in published(broker, 100)]
        assert len(drained(broker)) == len(ids) + 10
        assert told(broker)["events_missed"] > 0
        frozen.go.set()
        wait_until(lambda: told(broker)["events"] > 10, "what was buffered is written")
    assert {"published", "gap"} <= {row["event"] for row in rows_of(lake)}


def test_files_stay_within_their_bounds_and_the_oldest_go(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock, bytes_max=256 * KIB, snapshot_every_ms=20) as broker:
        for _ in range(160):
            published(broker, 1)
            clock.advance(10)
        figures = told(broker)
        assert broker.health()["feed"] == []
    assert stored(lake) <= 256 * KIB
    assert figures["files_removed"] > 0
    assert (figures["lacking_bytes"], figures["snapshots_given_up"]) == (0, 0)
    assert len(manifests_of(lake, CATALOG)) == 2
    numbers = [row["seq"] for row in rows_of(lake)]
    assert numbers == list(range(numbers[0], 161))
    assert 1 < numbers[0] < 160


def stored(lake: Path) -> int:
    return sum(path.stat().st_size for path in lake.rglob("*") if path.is_file())


def unlike(count: int, seed: int = 0) -> list[Message]:
    """Messages of which a snapshot takes many bytes."""
    chance = random.Random(seed)
    return [
        Message(
            b"x",
            importance=chance.randrange(1, 11),
            ttl_ms=chance.randrange(10**7, 10**9),
            decay_rate=chance.random(),
        )
        for _ in range(count)
    ]


def fill(broker: Broker, clock: ManualClock) -> None:
    """Publish 20,000 messages, of which each thousand is a file of events."""
    for number in range(20):
        broker.publish("q", unlike(1_000, number))
        clock.advance(10)


def test_a_snapshot_larger_than_the_bound_is_given_up_and_told_until_messages_leave(
    tmp_path, lake, clock, caplog
) -> None:
    config = {"bytes_max": 256 * KIB, "snapshot_every_ms": 1_000}
    with opened(tmp_path, clock, **config) as broker, caplog.at_level("INFO", "ebbmq"):
        clock.advance(10)  # a snapshot of nothing
        fill(broker, clock)
        for number in range(1, 4):
            clock.advance(1_000)
            assert told(broker)["snapshots_given_up"] == number
            published(broker, 1)
            assert stored(lake) <= 256 * KIB
        figures, (trouble,) = told(broker), broker.health()["feed"]
        assert broker.health()["ready"]
        assert "feed.bytes_max, 262144 bytes, is too small" in trouble
        assert "a snapshot of 20002 messages" in trouble
        assert f"set it to {256 * KIB + figures['lacking_bytes']} or more" in trouble
        assert (figures["ok"], figures["failures"]) == (1, 0)
        assert len(manifests_of(lake, CATALOG)) == 1
        # Nobody sees a part of one, and no part of one is left.
        assert rows_of(lake, CATALOG) == []
        assert list((lake / "catalog").rglob("*.parquet")) == []
        broker.purge("q")
        clock.advance(1_000)
        assert broker.health()["feed"] == []
        figures = told(broker)
        assert (figures["lacking_bytes"], figures["snapshots_given_up"]) == (0, 3)
        assert len(manifests_of(lake, CATALOG)) == 2
    said = [each.ebbmq for each in caplog.records]
    assert [event for event, fields in said if fields.get("what") == "snapshots"] == [
        "feed_bound_too_small", "feed_bound_enough",
    ]  # fmt: skip


def test_a_bound_as_large_as_was_told_takes_the_snapshot(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock, bytes_max=256 * KIB, snapshot_every_ms=1_000) as broker:
        fill(broker, clock)
        clock.advance(1_000)
        needed = 256 * KIB + told(broker)["lacking_bytes"]
    with opened(tmp_path, clock, bytes_max=needed, snapshot_every_ms=1_000) as broker:
        for _ in range(4):
            clock.advance(1_000)
        assert broker.health()["feed"] == []
        assert (told(broker)["snapshots"], told(broker)["lacking_bytes"]) == (4, 0)
        assert stored(lake) <= needed
    assert len(rows_of(lake, CATALOG)) % 20_000 == 0


def test_events_of_which_only_the_last_file_fits_are_told_of(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock, bytes_max=64 * KIB) as broker:
        for is_told in (False, True):
            broker.publish("q", unlike(2_000))
            clock.advance(10)
            assert [
                "the last file of events is all" in each for each in broker.health()["feed"]
            ] == ([True] if is_told else [])
        assert told(broker)["lacking_bytes"] > 0
        assert stored(lake) <= 64 * KIB
        published(broker, 1)
        clock.advance(10)
        assert broker.health()["feed"] == []


def test_a_restart_begins_a_boot_and_tells_nothing_twice(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        published(broker, 3)
        broker.lease("q", count=1)
    with opened(tmp_path, clock) as broker:
        broker.ack("q", [lease.token for lease in broker.lease("q", count=1)])
    rows = rows_of(lake)
    assert shown(rows, "boot", "seq", "event") == [
        (1, 1, "published"), (1, 2, "published"), (1, 3, "published"), (1, 4, "leased"),
        (2, 1, "leased"), (2, 2, "acked"),
    ]  # fmt: skip


def test_a_boot_that_was_told_of_is_never_used_again(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        shutil.copytree(tmp_path / "data", tmp_path / "kept")
        published(broker, 1)
    (tmp_path / "data").rename(tmp_path / "away")
    (tmp_path / "kept").rename(tmp_path / "data")
    with opened(tmp_path, clock) as broker:
        published(broker, 1)
    boots = [row["boot"] for row in rows_of(lake)]
    assert len(set(boots)) == 2


def test_another_store_of_the_same_name_writes_nothing(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as first, opened(tmp_path, clock, data="other") as second:
        published(first, 1)
        clock.advance(10)
        published(second, 5)
        clock.advance(10)
        assert first.health()["feed"] == []
        assert "'n1'" in second.health()["feed"][0]
        assert "remove _nodes/n1.json" in second.health()["feed"][0]
        assert second.health()["ready"]
    assert len(rows_of(lake)) == 1


def test_a_lake_that_was_taken_away_is_claimed_anew(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock, snapshot_every_ms=1_000) as first:
        clock.advance(1_000)
        shutil.rmtree(lake)
        clock.advance(1_000)
        with opened(tmp_path, clock, data="other") as second:
            published(second, 5)
            clock.advance(10)
            assert "'n1'" in second.health()["feed"][0]
        assert first.health()["feed"] == []
        assert {row["node"] for row in rows_of(lake)} <= {"n1"}
    assert rows_of(lake) == []


def test_nodes_share_a_lake(tmp_path, lake, clock) -> None:
    with (
        opened(tmp_path, clock) as first,
        opened(tmp_path, clock, node="n1-2/x", data="other") as second,
    ):
        published(first, 1)
        published(second, 2)
    assert sorted(row["node"] for row in rows_of(lake)) == ["n1", "n1-2/x", "n1-2/x"]
    with opened(tmp_path, clock):
        pass
    assert len(rows_of(lake)) == 3


def test_leftovers_of_an_end_in_the_middle_go_at_the_next_start(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        published(broker, 1)
    left = [
        lake / "events/date=2023-11-14/hour=22/node=n1/00000001-000000009.parquet",
        lake / "catalog/at=0001700000000000/node=n1/part-00000.parquet",
        lake / "events/_manifests/date=2023-11-14/0001700000000000-n1-00000001-000000009.json.part",
    ]
    others = lake / "events/date=2023-11-14/hour=22/node=n2/00000001-000000009.parquet"
    for path in (*left, others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    with opened(tmp_path, clock):
        clock.advance(10)
    assert [path.exists() for path in (*left, others)] == [False, False, False, True]
    assert len(rows_of(lake)) == 1


def spoil(manifest: Path, how: str) -> None:
    """Make a manifest one that this version cannot read."""
    told = json.loads(manifest.read_bytes())
    newer = json.dumps({**told, "version": told["version"] + 1, "surprise": 1})
    manifest.write_text(newer if how == "newer" else newer[:40])


@pytest.mark.parametrize("how", ["newer", "damaged"])
def test_files_of_a_manifest_that_cannot_be_read_stay_and_it_is_told(
    tmp_path, lake, clock, how: str
) -> None:
    with opened(tmp_path, clock, snapshot_every_ms=10) as broker:
        published(broker, 3)
        clock.advance(10)
    for table in ("events", "catalog"):
        (manifest, *_) = sorted((lake / table / "_manifests").rglob("*.json"))
        spoil(manifest, how)
    kept = {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}
    with opened(tmp_path, clock, bytes_max=256 * KIB, snapshot_every_ms=20) as broker:
        for _ in range(100):
            published(broker, 1)
            clock.advance(10)
        health, figures = broker.health(), told(broker)
    assert {path: path.read_bytes() for path in kept if path.exists()} == kept
    assert health["ready"]
    assert ["events/_manifests" in each for each in health["feed"]] == [True, False]
    assert ["catalog/_manifests" in each for each in health["feed"]] == [False, True]
    assert (figures["ok"], figures["files_removed"] > 0) == (1, True)


def test_a_boot_of_which_no_manifest_can_be_read_is_not_used_again(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        shutil.copytree(tmp_path / "data", tmp_path / "kept")
        published(broker, 1)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "kept").rename(tmp_path / "data")
    (manifest,) = (lake / "events/_manifests").rglob("*.json")
    spoil(manifest, "newer")
    (file,) = (lake / "events").rglob("*.parquet")
    with opened(tmp_path, clock) as broker:
        published(broker, 1)
    first, second = sorted((lake / "events").rglob("*.parquet"))
    assert first == file
    assert second.name[:8] > first.name[:8]


class Watched:
    """A lake of whose writes somebody is told first."""

    def __init__(self, lake, tell) -> None:
        self._lake, self._tell = lake, tell

    def __getattr__(self, name: str):
        return getattr(self._lake, name)

    def write(self, path: str, data: bytes) -> None:
        self._tell(path)
        self._lake.write(path, data)


def test_two_snapshots_of_one_instant_are_both_there(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        published(broker, 3)
        feed, asked = broker.engine.feed, []

        def ask_once_more(path: str) -> None:
            if path.startswith(CATALOG.name) and not asked:
                asked.append(path)
                feed.ask_snapshot()

        feed.files.lake = Watched(feed.files.lake, ask_once_more)
        feed.ask_snapshot()
        clock.advance(10)
        clock.advance(0)
        assert (told(broker)["snapshots"], broker.health()["feed"]) == (2, [])
    assert len({row["at_ms"] for row in rows_of(lake, CATALOG)}) == 1
    assert len(rows_of(lake, CATALOG)) == 6


def test_a_broker_that_closes_in_a_snapshot_gives_it_up_and_tells_no_failure(
    tmp_path, lake, clock, caplog
) -> None:
    with opened(tmp_path, clock) as broker:
        engine, feed = broker.engine, broker.engine.feed

        def end(path: str) -> None:
            if path.startswith(CATALOG.name):
                engine.closed = "this broker was closed"  # what comes first; the feed is told last

        feed.files.lake = Watched(feed.files.lake, end)
        published(broker, 3)
        feed.ask_snapshot()
        clock.advance(10)
        assert engine.closed is not None
        assert (feed.snapshots, feed.failures, feed.problem) == (0, 0, None)
        clock.advance(10)  # nor is it begun anew
        assert (feed.snapshots, feed.failures, feed.problem) == (0, 0, None)
        engine.closed = None
    assert not [each for each in caplog.records if "feed" in each.getMessage()]
    assert list(lake.glob("catalog/**/*.parquet")) == []
    assert len(rows_of(lake)) == 3


class Unanswered(Watched):
    """A lake that does the next thing of a kind only later, and does not answer."""

    def __init__(self, lake) -> None:
        super().__init__(lake, lambda path: None)
        self.late: list[tuple[str, bytes]] = []

    def publish(self, path: str, data: bytes) -> None:
        if any(path.partition("/")[0] == known.partition("/")[0] for known, _ in self.late):
            self._lake.publish(path, data)
            return
        self.late.append((path, data))
        raise TimeoutError("no answer")


def test_what_a_lake_does_without_an_answer_is_told_once(tmp_path, lake, clock) -> None:
    with opened(tmp_path, clock) as broker:
        clock.advance(10)  # the name is claimed
        files = broker.engine.feed.files
        unanswered = files.lake = Unanswered(files.lake)
        published(broker, 3)
        clock.advance(10)
        (first,) = unanswered.late
        unanswered.publish(*first)  # the request arrives at last
        published(broker, 2)
        broker.engine.feed.ask_snapshot()
        clock.advance(1_000)
        clock.advance(2_000)
        assert (told(broker)["snapshots"], told(broker)["ok"], told(broker)["events"]) == (1, 1, 5)
        assert told(broker)["failures"] == 2
    assert [row["seq"] for row in rows_of(lake)] == [1, 2, 3, 4, 5]
    assert len(rows_of(lake, CATALOG)) == 5
    assert len(list(lake.rglob("*.parquet"))) == 3


def test_a_lake_may_be_an_object_store(tmp_path, weed) -> None:
    options = {
        "endpoint": weed.endpoint, "region": "us-east-1",
        "access_key_id": weed.access_key, "secret_access_key": weed.secret_key,
    }  # fmt: skip
    url = f"s3://{weed.bucket}/lake-{tmp_path.name}"
    for _ in range(2):
        with opened(tmp_path, lake=url, options=options, snapshot_every_ms=10) as broker:
            published(broker, 3)
            wait_until(lambda: told(broker)["snapshots"] > 0, "a snapshot is written")
            assert broker.health()["feed"] == []
        kept = broker.engine.feed.files.lake
    names = [path for path, _ in kept.list("events")]
    for path, _ in (*kept.list("events"), *kept.list("catalog"), *kept.list("_nodes")):
        place = tmp_path / "copy" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(kept.read(path))
    assert len(names) >= 4
    assert shown(rows_of(tmp_path / "copy"), "boot", "seq") == [
        (boot, seq) for boot in (1, 2) for seq in (1, 2, 3)
    ]


def begin_snapshot(broker: Broker, messages: int) -> int:
    """Have a snapshot of many messages begun; returns how many events were told by then."""
    for _ in range(messages // 10_000):
        broker.publish("q", [Message(b"body")] * 10_000, confirm="memory")
    wait_until(lambda: told(broker)["events"] == messages, "all events")
    broker.engine.feed.ask_snapshot()
    # What happened before it is written first. So the second of these is told while it rests.
    for number in (1, 2):
        published(broker, 1)
        wait_until(lambda: told(broker)["events"] == messages + number, "one more event")  # noqa: B023
    return messages + 2


def test_events_are_told_on_time_while_a_snapshot_is_taken(tmp_path, lake) -> None:
    with opened(tmp_path) as broker:
        count = begin_snapshot(broker, 120_000)
        assert (told(broker)["snapshots"], told(broker)["ok"]) == (0, 1)
        wait_until(lambda: told(broker)["snapshots"] == 1, "the snapshot")
    assert count - 2 <= len(rows_of(lake, CATALOG)) <= count


def test_a_snapshot_goes_on_where_events_cannot_be_written_for_a_while(tmp_path, lake) -> None:
    with opened(tmp_path) as broker:
        count = begin_snapshot(broker, 240_000)
        (lake / "events").rename(lake / "away")
        (lake / "events").write_bytes(b"no directory")
        published(broker, 1)
        wait_until(lambda: told(broker)["failures"] > 0, "a failure")
        assert (told(broker)["snapshots"], told(broker)["ok"]) == (0, 0)
        (lake / "events").unlink()
        (lake / "away").rename(lake / "events")
        wait_until(lambda: told(broker)["events"] == count + 1, "one more event")
        wait_until(lambda: told(broker)["snapshots"] == 1, "the snapshot")
        assert told(broker)["ok"] == 1
    # It was not begun anew.
    assert len(list((lake / CATALOG.name).glob("at=*"))) == 1
    assert len(rows_of(lake)) == count + 1
