"""The pipeline on a lake in an object store: the results, and what a crash leaves, are the same."""

from __future__ import annotations

import copy
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from ebbmq import Broker
from ebbmq.cli.main import cli
from ebbmq.errors import InvalidSpec
from ebbmq.feed import layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.attempts import failed
from ebbmq_spark.jobs import history, reporting
from ebbmq_spark.jobs.running import Arguments, run, run_plan
from ebbmq_spark.jobs.stream import Arguments as Streaming
from ebbmq_spark.jobs.stream import stream
from ebbmq_spark.lake import PipelineBusy, visible
from ebbmq_spark.object_lake import ObjectLake
from ebbmq_spark.simulation.traces import read_lake
from tests.advice import until_usable
from tests.crash.test_feed_kill import assert_nothing_is_missing, working
from tests.feeds import manifests_of
from tests.pipeline.lakes import DAY_MS, DEVICES, FADING, Node, rows
from tests.pipeline.patience import patiently
from tests.pipeline.test_cluster import told
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ebbmq.feed.manifests import Part
    from ebbmq.feed.table import Table
    from tests.servers import Weed

ARCHIVE = {"kind": "object", "directory": "archive", "capacity_bytes": 1 << 28, "tier": "s3"}


class Bucket:
    """A lake of its own in the S3 service."""

    def __init__(self, weed: Weed, name: str) -> None:
        self.url = f"s3://{weed.bucket}/{name}"
        self.options = {
            "endpoint": weed.endpoint, "region": "us-east-1",
            "access_key_id": weed.access_key, "secret_access_key": weed.secret_key,
        }  # fmt: skip

    def below(self, name: str) -> Bucket:
        """A lake of its own beside others."""
        found = copy.copy(self)
        found.url = f"{self.url}/{name}"
        return found

    @property
    def feed(self) -> dict[str, Any]:
        return {"lake": self.url, "options": self.options, "plans_every_ms": 0}

    @property
    def flags(self) -> list[str]:
        chosen = [f"--lake-option={name}={value}" for name, value in self.options.items()]
        return ["--lake", self.url, *chosen]

    def lake(self, turn_s: float = 30.0) -> ObjectLake:
        return ObjectLake(self.url, self.options, turn_s)

    def copied(self, to: Path) -> Path:
        """All of it, as a directory."""
        lake = self.lake()
        names = lake.list("")
        for name, data in zip(names, lake.read_many(names), strict=True):
            place = to / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data or b"")
        return to


class EndedError(Exception):
    """As a kill would end a run, except that its turn is given back."""


def ends_before_planning(stage: str) -> None:
    if stage == "planning":
        raise EndedError


@pytest.fixture
def bucket(weed: Weed, tmp_path: Path) -> Bucket:
    return Bucket(weed, f"lake-{tmp_path.name}")


def test_a_message_moves_by_a_plan_that_went_through_an_object_store(
    spark: SparkSession, tmp_path: Path, bucket: Bucket
) -> None:
    # Its clock is right, but for some seconds, once the messages have faded.
    start_ms = time.time_ns() // 1_000_000 - 20 * DAY_MS - 20_000
    with Node(tmp_path, "a", start_ms, feed=bucket.feed) as node:
        node.work(took_ms=5_000)
        node.clock.advance(20 * DAY_MS)
    here = bucket.copied(tmp_path / "here")
    record = patiently(lambda: run(spark, Arguments(bucket.lake(), bounded=False)))
    assert (record.events, record.looked_at, record.refused) == (30, 16, {})
    run(spark, Arguments(here, bounded=False))
    assert told(bucket.copied(tmp_path / "there")) == told(here)
    (page,) = bucket.lake().read_many([reporting.LATEST])
    assert page is not None
    assert b"orders" in page
    shown = CliRunner().invoke(cli, ["pipeline", "history", "--json", *bucket.flags])
    assert [each["run"] for each in json.loads(shown.stdout)] == [record.run]

    with Broker.open(tmp_path / "b", {"node": "b", "feed": bucket.feed}) as other:
        other.declare(FADING)
        done = {each.table: each.applied for each in other.apply_plans()}
    assert done == {"rates": 1, "plans": 0}

    devices = {**DEVICES, "archive": ARCHIVE}
    looking = {**bucket.feed, "plans_every_ms": 1_000}
    config = {"node": "a", "feed": looking, "devices": devices}
    with Broker.open(tmp_path / "a", config, node.clock) as broker:
        until_usable(broker)
        node.clock.advance(1_000)
        wait_until(lambda: len(broker.plans().runs) == 2, "the broker finds the run by itself")
        taken = {each.table: each for each in broker.plans().runs}
        assert (taken["plans"].applied, taken["plans"].refused) == (16, {})
        assert taken["rates"].applied == 1
        wait_until(lambda: broker.engine.holdings.counts("archive") == (16, 0), "all are moved")
        moved = broker.peek("orders", 1)[0]
        assert (moved.tier, moved.copies, moved.body) == ("s3", ("archive",), b"x" * 100)


def test_a_run_on_a_store_reads_only_what_is_new(
    spark: SparkSession, tmp_path: Path, bucket: Bucket
) -> None:
    lake = bucket.lake()
    with Node(tmp_path, "a", feed=bucket.feed) as node:
        node.work()
        node.clock.advance(10)
        one = patiently(lambda: run(spark, Arguments(lake)))
        # What was read is not looked at again: nobody misses it.
        read = visible(lake, EVENTS).manifests
        lake.delete([part.path for each in read for part in each.parts])
        # What a killed run left has no manifest: it is not seen, and goes.
        left = "plans/run=20000101T000000000Z/part-0.parquet"
        lake.create(left, b"half")
        node.work(messages=40)
    # One that ends after it wrote its counts, and before its record, counts nothing.
    with pytest.raises(EndedError):
        patiently(lambda: run(spark, Arguments(lake), ends_before_planning))
    two = patiently(lambda: run(spark, Arguments(lake)))
    assert (one.events, two.events, two.refused) == (30, 60, {})
    assert [each.run for each in history.read(lake).records] == [one.run, two.run]
    assert left not in lake.list("plans")
    here = bucket.copied(tmp_path / "here")
    counted = {row["event"]: row["count"] for row in rows(here, PROFILES)}
    assert counted["published"] == 60
    assert not [name for name in lake.list("runs") if name.endswith(".lock")]
    # Who reads everything is told what is missing, and a task that fails says why.
    assert len(read_lake(spark, lake).refused) == len(read)
    gone = lake.rows(spark, EVENTS, ["events/gone.parquet"], None, None)
    with pytest.raises(PySparkException) as refused:
        patiently(gone.count)
    assert "events/gone.parquet" in failed(refused.value).detail


def test_rows_that_are_not_due_are_not_fetched_and_the_plan_is_the_same(
    spark: SparkSession, tmp_path: Path, bucket: Bucket
) -> None:
    with Node(tmp_path, "a", feed=bucket.feed) as node:
        node.work(messages=40)
        node.clock.advance(20 * DAY_MS)
        node.work(messages=40)
        # They were looked at once by then, and not again before they fade.
        node.clock.advance(120_000)
    lake = bucket.lake()
    some = patiently(lambda: run_plan(spark, Arguments(lake, bounded=False)))
    every = patiently(lambda: run_plan(spark, Arguments(lake, bounded=False, full=True)))
    assert 0 < some.looked_at < every.looked_at == some.messages
    assert some.actions == every.actions
    assert len(visible(lake, PLANS).manifests) == 2


def test_a_stream_on_a_store_keeps_its_place_in_a_directory(
    spark: SparkSession, tmp_path: Path, bucket: Bucket
) -> None:
    with Node(tmp_path, "a", feed=bucket.feed) as node:
        node.work()
    lake = bucket.lake()
    with pytest.raises(InvalidSpec, match="in a directory") as refused:
        stream(spark, Streaming(lake, once=True))
    assert "--state" in refused.value.action
    asked = Streaming(lake, once=True, partitions=1, state=tmp_path / "state")
    assert patiently(lambda: stream(spark, asked)).events == 30
    assert patiently(lambda: stream(spark, asked)).events == 0
    counted = {row["event"]: row["count"] for row in rows(bucket.copied(tmp_path / "h"), PROFILES)}
    assert counted["published"] == 20


@pytest.mark.crash
def test_what_a_broker_that_was_killed_told_a_store_is_whole_and_the_next_start_goes_on(
    tmp_path: Path, bucket: Bucket
) -> None:
    lake, prefix = bucket.lake(), f"{EVENTS.name}/{layout.MANIFESTS}"
    config = {"feed": {**bucket.feed, "every_ms": 10, "snapshot_every_ms": 20}}

    def shown() -> int:
        return len(lake.list(prefix))

    for times in range(1, 4):
        with working(tmp_path / "data", config, shown):
            pass
        assert_nothing_is_missing(bucket.copied(tmp_path / f"{times}"), boots=times)
    # What was not told of when it was killed goes with the next start.
    with Broker.open(tmp_path / "data", config) as broker:
        assert broker.health()["feed"] == []
    here = bucket.copied(tmp_path / "here")
    named = {part.path for table in (EVENTS, CATALOG) for part in parts_of(here, table)}
    files = {str(place.relative_to(here)) for place in here.rglob("*.parquet")}
    assert files == named


def parts_of(here: Path, table: Table) -> list[Part]:
    return [part for each in manifests_of(here, table) for part in each.parts]


def test_a_store_to_which_no_node_wrote_is_no_lake(bucket: Bucket) -> None:
    with pytest.raises(UnknownFeed, match="no node has written"):
        visible(bucket.lake(), EVENTS)


def test_one_run_at_a_time_writes_to_a_store(bucket: Bucket) -> None:
    lake, other = bucket.lake(turn_s=3.0), bucket.lake(turn_s=3.0)
    lake.create("_nodes/a.json", b"{}")
    with (
        lake.only_one("run"),
        pytest.raises(PipelineBusy, match=r"process \d+ on .* is at work"),
        other.only_one("run"),
    ):
        pass
    with other.only_one("run"):
        other.create("runs/one.json", b"{}")


def test_the_turn_of_who_was_killed_is_taken_over_and_who_lost_it_shows_nothing(
    bucket: Bucket,
) -> None:
    killed, lake = bucket.lake(), bucket.lake(turn_s=1.0)
    killed.create("_nodes/a.json", b"{}")
    killed.create("runs/_run.lock", b"process 1 on a machine that is gone\n")
    with lake.only_one("run"):
        lake.create("runs/mine.json", b"{}")
        killed.replace("runs/_run.lock", b"somebody else\n")
        lost = threading.Event()

        def is_refused() -> bool:
            try:
                lake.replace("runs/late.json", b"{}")
            except PipelineBusy:
                lost.set()
            return lost.is_set()

        wait_until(is_refused, "the turn is known to be lost")
    # It is the other one's.
    assert killed.read_many(["runs/_run.lock"]) == [b"somebody else\n"]
