"""Upkeep with a real broker: archived, acked, written anew, applied; killed in between."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbmq import Broker, Message, QueueSpec
from ebbmq.cli.main import cli
from ebbmq.errors import EbbError
from ebbmq.limits import DAY_MS
from ebbmq.testing import ManualClock
from ebbmq_spark.jobs import running as jobs
from ebbmq_spark.jobs import tending
from ebbmq_spark.jobs.running import Arguments
from ebbmq_spark.upkeep.job import Asked, upkeep
from ebbmq_spark.upkeep.packs import Place
from tests.served import Served
from tests.serving import Running

PATIENCE_S = 300.0
CONFIG = {
    "devices": {
        "cold": {
            "kind": "object",
            "directory": "cold",
            "capacity_bytes": 1 << 30,
            "stall_ms": 60_000,
        }
    },
    "rules": [{"id": "R", "weight": 50, "device": "cold", "when": "SIZE >= 0"}],
}
#: The same, but the broker looks by itself for what is offered.
LOOKING = {**CONFIG, "devices": {"cold": {**CONFIG["devices"]["cold"], "upkeep": "pipeline"}}}
TOML = """
[devices.cold]
kind = "object"
directory = "cold"
capacity_bytes = 1_000_000_000
stall_ms = 60_000
upkeep = "pipeline"
"""
COUNT = 60
COMMAND = [sys.executable, "-m", "ebbmq.cli", "pipeline", "upkeep"]


def until(is_so, told="in time"):
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, told
        time.sleep(0.005)


def in_archive(broker):
    """How many messages the archive has, asked behind all that waits for it."""
    store = broker.engine.directory.identity.uuid
    return len(broker.engine.devices.ports["cold"].scan(store).result())


def is_settled(broker):
    with broker.engine.lock:
        return not any(broker.engine.holdings.counts(name)[1] for name in ("log", "cold"))


def body(number):
    return b"body %d " % number * 30


def archived(broker, count=COUNT):
    """Messages of which only the archive has a copy."""
    broker.declare(QueueSpec("q"))
    for at in range(0, count, 20):
        broker.publish("q", [Message(body(number)) for number in range(at, at + 20)])
        until(lambda: in_archive(broker) == at + 20 and is_settled(broker))  # noqa: B023
    return broker


def thinned(broker, keep=20):
    """All but the last ones are acked, and gone from the archive."""
    leases = broker.lease("q", COUNT - keep, wait_ms=10_000)
    broker.ack("q", [lease.token for lease in leases], confirm="synced")
    until(lambda: in_archive(broker) == keep)


def delivered(broker, count):
    found = []
    while len(found) < count:
        leases = broker.lease("q", count - len(found), wait_ms=10_000)
        assert leases, f"{len(found)} of {count}"
        found += [lease.body for lease in leases]
    assert broker.lease("q", 1) == []
    return sorted(found, key=lambda each: int(each.split()[1]))


def rest(keep):
    return [body(number) for number in range(COUNT - keep, COUNT)]


def packs(data):
    return sorted(path.name for path in (data / "cold").rglob("pack-*.parquet"))


def size(data):
    return sum(path.stat().st_size for path in (data / "cold").rglob("pack-*.parquet"))


def run(spark, data, **asked):
    return upkeep(spark, Place((data / "cold").as_uri()), Asked(**asked))


def offered(spark, data, keep=20):
    """A closed store with an offer; the first two packs are dead, of the third half is alive."""
    with archived(Broker.open(data, CONFIG)) as broker:
        thinned(broker, keep)
    told = run(spark, data, dead_share=0.01)
    assert told.made_messages == keep
    return told


def test_a_broker_applies_upkeep_and_delivers_from_the_new_packs(spark, tmp_path):
    with Served(tmp_path / "data", **CONFIG) as served:
        broker = archived(served.broker)
        thinned(broker, 10)
        dead = size(tmp_path / "data")
        told = run(spark, tmp_path / "data")
        assert (told.rewritten, told.made_messages) == (1, 10)
        before = packs(tmp_path / "data")
        applied = served.ask("POST", "/v1/devices/cold/upkeep").json
        assert (applied["run"], applied["packs"], applied["messages"]) == (told.run, 1, 10)
        assert packs(tmp_path / "data") != before
        assert 0 < told.reclaimed_bytes == dead - size(tmp_path / "data")
        again = served.ask("POST", "/v1/devices/cold/upkeep").json
        assert (again["run"], again["packs"], again["stale"]) == (None, 0, 0)
        assert served.ask("POST", "/v1/devices/none/upkeep").status == 404
        assert delivered(broker, 10) == rest(10)


def test_a_broker_finds_by_itself_what_is_offered(spark, tmp_path):
    offered(spark, tmp_path, 10)
    with Broker.open(tmp_path, LOOKING) as broker:
        until(lambda: not list(tmp_path.rglob("mapping.json")), "applied")
        assert delivered(broker, 10) == rest(10)


def test_messages_too_old_for_the_archive_leave_on_the_record(spark, tmp_path):
    clock = ManualClock(time.time_ns() // 1_000_000 - 100 * DAY_MS)
    broker = archived(Broker.open(tmp_path, CONFIG, clock), 20)
    clock.advance(99 * DAY_MS)
    broker.publish("q", [Message(body(20))])
    until(lambda: in_archive(broker) == 21 and is_settled(broker))
    told = run(spark, tmp_path, keep_ms=90 * DAY_MS)
    assert told.expired == 20
    (lease,) = broker.lease("q", 1)
    applied = broker.tend_device("cold")
    assert applied.expired == 19
    assert {each.reason for each in broker.removals("q")} == {"retention"}
    assert broker.stats("q")["depth"]["ready"] == 1
    broker.ack("q", [lease.token])
    until(lambda: in_archive(broker) == 1)
    assert delivered(broker, 1) == [body(20)]
    broker.close()


def test_how_old_a_message_is_the_broker_says_whatever_the_clock_of_spark(spark, tmp_path):
    # To this broker Spark's clock is a hundred days ahead.
    clock = ManualClock(time.time_ns() // 1_000_000 - 100 * DAY_MS)
    with archived(Broker.open(tmp_path, CONFIG, clock), 20) as broker:
        assert run(spark, tmp_path, keep_ms=90 * DAY_MS).expired == 20
        assert broker.tend_device("cold").expired == 0
        assert broker.stats("q")["depth"]["ready"] == in_archive(broker) == 20
        clock.advance(90 * DAY_MS)
        broker.publish("q", [Message(body(20))])
        until(lambda: in_archive(broker) == 21 and is_settled(broker))
        assert run(spark, tmp_path, keep_ms=89 * DAY_MS).expired == 20
        assert broker.tend_device("cold").expired == 20
        assert delivered(broker, 1) == [body(20)]


def test_a_damaged_copy_that_upkeep_found_is_made_anew_from_another(spark, tmp_path):
    config = json.loads(json.dumps(CONFIG))
    config["devices"]["hdd"] = {"kind": "file", "capacity_bytes": 1 << 30, "stall_ms": 60_000}
    with Broker.open(tmp_path, config) as broker:
        broker.declare(QueueSpec("q", min_copies=2))
        broker.publish("q", [Message(body(number)) for number in range(20)])
        until(lambda: in_archive(broker) == 20 and is_settled(broker))
        (path,) = (tmp_path / "cold").rglob("pack-*.parquet")
        data = bytearray(path.read_bytes())
        data[data.index(body(7)) + 5] ^= 1
        path.write_bytes(data)
        told = run(spark, tmp_path, verify=True)
        assert len(told.damage) == 1
        assert broker.tend_device("cold").damaged == 1
        assert run(spark, tmp_path, verify=True).waiting == []
        until(lambda: is_settled(broker))
        assert delivered(broker, 20) == [body(number) for number in range(20)]


def test_a_server_killed_while_spark_writes_packs_takes_them_when_it_is_back(spark, tmp_path):
    data, config = tmp_path / "data", tmp_path / "ebbmq.toml"
    with archived(Broker.open(data, CONFIG)) as broker:
        thinned(broker, 10)
    config.write_text(TOML)
    before = packs(data)
    stages = []

    def tell(stage, _):
        stages.append(stage)
        if stage == "writing packs":
            with server.caller() as caller:
                acked = caller.queue("q", "leases", {"count": 1}).json["leases"]
                caller.queue("q", "acks", {"tokens": [each["token"] for each in acked]})
            server.kill()

    with Running(data, "--config", str(config)) as server:
        told = upkeep(spark, Place((data / "cold").as_uri()), Asked(), tell)
    assert stages[-1] == "done"
    assert (told.made_messages, packs(data)) == (10, before)
    with Running(data, "--config", str(config)):
        until(lambda: not list(data.rglob("mapping.json")), "applied")
    assert set(packs(data)).isdisjoint(before)
    with Broker.open(data, CONFIG) as broker:
        assert delivered(broker, 9) == rest(9)


def test_the_command_tells_what_it_did_and_has_it_applied(tmp_path):
    data = tmp_path / "data"
    with archived(Broker.open(data, CONFIG)) as broker:
        thinned(broker, 10)
    config = Path(tmp_path / "ebbmq.toml")
    config.write_text(TOML)
    words = [*COMMAND, "--config", str(config)]
    words += ["--device", "cold", "--data", str(data), "--verify", "--master", "local[1]"]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 pack" in done.stdout
    assert "applied: 10 messages in 1 new pack; 0 had left or moved since" in done.stdout
    assert "checksums verified: 0 faults" in done.stdout
    refused = subprocess.run(
        [*COMMAND, "--config", str(config), "--device", "could"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert refused.returncode == 1
    assert "did you mean 'cold'?" in refused.stderr


def test_an_archive_below_the_data_of_a_server_is_named_by_place_and_device(tmp_path):
    data = tmp_path / "data"
    with archived(Broker.open(data, CONFIG)) as broker:
        thinned(broker, 10)
    config = tmp_path / "ebbmq.toml"
    config.write_text(TOML)
    place = ["--archive", (data / "cold").as_uri()]

    def command(*words):
        whole = [*COMMAND, *words, "--url", server.url, "--master", "local[1]"]
        return subprocess.run(whole, capture_output=True, check=False, text=True)

    with Running(data, "--config", str(config)) as server:
        without_place = command("--config", str(config), "--device", "cold")
        assert without_place.returncode == 2
        assert "too, with --archive file:///DIR/cold" in without_place.stderr
        without_name = command(*place)
        assert without_name.returncode == 2
        assert "as its broker knows it: --device" in without_name.stderr
        done = command(*place, "--device", "cold")
    assert done.returncode == 0, done.stderr
    assert "applied: 10 messages in 1 new pack" in done.stdout


def fed(lake):
    """The configuration with a lake that is written to at once."""
    return {**CONFIG, "feed": {"lake": str(lake), "every_ms": 10, "snapshot_every_ms": 100}}


def test_a_run_of_the_pipeline_looks_after_the_archive_that_is_named(tmp_path):
    data, lake, config = tmp_path / "data", tmp_path / "lake", tmp_path / "ebbmq.toml"
    with archived(Broker.open(data, fed(lake))) as broker:
        thinned(broker, 10)
        until(lambda: list(lake.glob("catalog/_manifests/**/*.json")), "a snapshot")
    config.write_text(TOML)
    words = [*COMMAND[:-1], "run", "--lake", str(lake), "--master", "local[1]", "--verify"]

    def command(*more):
        return subprocess.run([*words, *more], capture_output=True, check=False, text=True)

    without = command()
    assert without.returncode == 2
    assert "name it, with --device or --archive" in without.stderr
    done = command("--config", str(config), "--device", "cold", "--data", str(data))
    assert done.returncode == 0, done.stderr
    assert "The report:" in done.stdout
    assert "applied: 10 messages in 1 new pack; 0 had left or moved since" in done.stdout
    assert "checksums verified: 0 faults" in done.stdout
    with Broker.open(data, CONFIG) as broker:
        assert delivered(broker, 10) == rest(10)
    (archives,) = (each["archives"] for each in history(lake))
    took_ms = archives["cold"].pop("took_ms")
    reclaimed_bytes = archives["cold"].pop("reclaimed_bytes")
    assert min(took_ms, reclaimed_bytes) > 0
    assert archives == {
        "cold": {
            "packs": 1, "rewritten": 1, "made": 1, "expired": 0, "damaged": 0, "failed": None,
        }
    }  # fmt: skip


def history(lake):
    """What `pipeline history --json` says."""
    shown = CliRunner().invoke(cli, ["pipeline", "history", "--lake", str(lake), "--json"])
    return json.loads(shown.stdout)


def test_an_archive_is_looked_after_also_where_the_run_was_left_to_another(spark, tmp_path):
    data = tmp_path / "data"
    with archived(Broker.open(data, CONFIG)) as broker:
        thinned(broker, 10)
    places = {"cold": Place((data / "cold").as_uri())}
    record, told, done = tending.tend(spark, tmp_path / "lake", None, places, Asked())
    assert (record, told["cold"].rewritten, done["cold"].rewritten) == (None, 1, 1)
    assert not (tmp_path / "lake").exists()


def test_a_run_says_what_became_of_each_archive_also_if_one_failed(spark, tmp_path):
    data, lake = tmp_path / "data", tmp_path / "lake"
    with archived(Broker.open(data, fed(lake))) as broker:
        thinned(broker, 10)
        until(lambda: list(lake.glob("catalog/_manifests/**/*.json")), "a snapshot")
    record = jobs.run(spark, Arguments(lake))
    (tmp_path / "file").write_bytes(b"")
    places = {
        "broken": Place((tmp_path / "file" / "below").as_uri()),
        "cold": Place((data / "cold").as_uri()),
    }
    with pytest.raises(EbbError) as failure:
        tending.tend(spark, lake, record, places, Asked())
    (told,) = history(lake)
    assert told["archives"]["broken"]["failed"] == failure.value.detail
    assert told["archives"]["cold"]["rewritten"] == 1
    assert (told["run"], told["ended_at_ms"]) == (record.run, record.ended_at_ms)
    words = ["pipeline", "history", "--lake", str(lake)]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(cli, words).stdout.splitlines()
    *tables, failed = [line for line in shown if line]
    assert [line.split()[:2] for line in tables] == [
        ["RUN", "WHAT"], [record.run, "run"],
        ["RUN", "ARCHIVE"], [record.run, "cold"],
    ]  # fmt: skip
    assert failed.startswith(f"{record.run}: upkeep of broken failed after ")
    assert failed.endswith(failure.value.detail)


def test_a_server_has_its_own_archives_looked_after_on_its_schedule(tmp_path):
    data, config = tmp_path / "data", tmp_path / "ebbmq.toml"
    with archived(Broker.open(data, CONFIG)) as broker:
        thinned(broker, 10)
    before = packs(data)
    config.write_text(
        f'{TOML}[feed]\nlake = "lake"\nevery_ms = 50\n[pipeline]\nevery_ms = 2000\n'
        'master = "local[1]"\nmemory = "512m"\nupkeep_verify = true\n'
    )
    with Running(data, "--config", str(config)) as server:
        until(lambda: "upkeep_applied" in server.log(), server.log)
        until(lambda: server.log().count("pipeline_ran") > 1, server.log)
        assert server.stop() == 0
    told = [line for line in server.log().splitlines() if "archive_looked_after" in line]
    assert len(told) == 1, "not with every run"
    assert "damaged=0 device=cold expired=0 made=1 packs=1 reclaimed_bytes=" in told[0]
    assert "rewritten=1" in told[0]
    assert [list(each["archives"]) for each in history(data / "lake")][:2] == [["cold"], []]
    assert set(packs(data)).isdisjoint(before)
