"""kill -9 of the driver of upkeep, and of the broker, while one offers packs and the other takes.

Every message is in the archive once, what was replaced goes, and the next upkeep finds the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ebbmq import Broker, Message, QueueSpec
from ebbmq.cli.main import cli
from ebbmq.errors import Unreachable
from ebbmq_spark import session
from ebbmq_spark.upkeep.job import Asked, upkeep
from ebbmq_spark.upkeep.packs import Place
from tests.pipeline import taking
from tests.pipeline.killing import ROOT, killed_driver, wait_stopped
from tests.pipeline.patience import patiently
from tests.pipeline.stopped_upkeep import (
    DEAD_SHARE,
    IN_STORE,
    OFFERED,
    PACKED,
    POINTS,
    STORE,
    TAKING,
    WRITTEN,
    command,
)
from tests.pipeline.test_upkeep_broker import CONFIG, in_archive, is_settled, packs, until
from tests.pipeline.test_upkeep_store import device_in, objects
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ebbmq_spark.upkeep.job import Told
    from tests.servers import Weed

pytestmark = pytest.mark.crash

#: So that there is a new pack for each.
QUEUES = ("a", "b")
A_PACK, KEPT = 20, 12
#: A run of long ago.
LEFT = "run=0000000000001-left"
TOML = """
[devices.cold]
kind = "object"
directory = "cold"
capacity_bytes = 1_000_000_000
stall_ms = 60_000
"""


class TakingServer(Running):
    """One that waits in the middle of taking what is offered."""

    module = "tests.pipeline.taking"


def bodies(queue: str) -> list[bytes]:
    return [b"%s %d " % (queue.encode(), number) * 30 for number in range(2 * A_PACK)]


def ack(broker: Broker, queue: str, count: int) -> None:
    """The next messages leave, and the archive knows."""
    before = in_archive(broker)
    leases = broker.lease(queue, count, wait_ms=10_000)
    broker.ack(queue, [lease.token for lease in leases], confirm="synced")
    until(lambda: in_archive(broker) == before - count)


def fill(data: Path, config: dict[str, object]) -> None:
    """A store whose archive has two packs of each queue, of which the last few messages count."""
    with Broker.open(data, config) as broker:
        for queue in QUEUES:
            broker.declare(QueueSpec(queue))
            for at in range(0, 2 * A_PACK, A_PACK):
                before = in_archive(broker)
                broker.publish(queue, [Message(body) for body in bodies(queue)[at : at + A_PACK]])
                until(lambda: in_archive(broker) == before + A_PACK and is_settled(broker))  # noqa: B023
            ack(broker, queue, 2 * A_PACK - KEPT)


def run(spark: SparkSession, data: Path) -> Told:
    asked = Asked(dead_share=DEAD_SHARE)
    return patiently(lambda: upkeep(spark, Place((data / "cold").as_uri()), asked))


def left(data: Path) -> list[Path]:
    """All that there is of offers."""
    found = (data / "cold").rglob("_upkeep/**/*")
    return sorted({place for place in found if place.is_file()})


def is_offered(data: Path) -> bool:
    return any(place.name == "mapping.json" for place in left(data))


def age(data: Path) -> None:
    """Have what is left of a run be as old as what the next one clears away."""
    for place in (data / "cold").rglob("_upkeep/run=*"):
        place.rename(place.with_name(LEFT))


def files(data: Path) -> list[Path]:
    """Packs, once nothing is offered any more."""
    assert not is_offered(data)
    return list((data / "cold" / "archive").rglob("pack-*.parquet"))


def assert_each_is_there_once(
    broker: Broker, packs: Sequence[Path | pa.BufferReader], left_since: int = 0
) -> None:
    """The last messages of each queue, as they were, and nothing else; in new packs only."""
    assert in_archive(broker) == len(QUEUES) * KEPT - left_since
    for number, queue in enumerate(QUEUES):
        expected = bodies(queue)[-KEPT:][0 if number else left_since :]
        found = broker.lease(queue, 2 * A_PACK, wait_ms=10_000)
        assert sorted(lease.body for lease in found) == sorted(expected)
    keys = []
    for pack in packs:
        table = pq.read_table(pack, partitioning=None, columns=["pid", "seq"])
        keys += [tuple(row.values()) for row in table.to_pylist()]
    assert len(keys) == len(set(keys)) == len(QUEUES) * KEPT


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store whose archive is worth writing anew."""
    data = tmp_path_factory.mktemp("thinned") / "data"
    fill(data, CONFIG)
    return data


@pytest.fixture(scope="module")
def offered(spark: SparkSession, thinned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with new packs that its broker has yet to take; two messages left since."""
    data = tmp_path_factory.mktemp("offered") / taking.OFFERED
    shutil.copytree(thinned, data)
    told = run(spark, data)
    assert (told.made, told.made_messages) == (len(QUEUES), len(QUEUES) * KEPT)
    with Broker.open(data, CONFIG) as broker:
        ack(broker, QUEUES[0], 2)
    return data


def configured(data: Path) -> tuple[Path, str, str]:
    """What a server is started with."""
    config = data.parent / "ebbmq.toml"
    config.write_text(TOML)
    return data, "--config", str(config)


class Killed(NamedTuple):
    """Where archives are whose driver was killed, and the broker that was taking from it."""

    directory: Path
    server: Running


@pytest.fixture(scope="module")
def killed(thinned: Path, tmp_path_factory: pytest.TempPathFactory, weed: Weed) -> Iterator[Killed]:
    """A driver was killed, on each of several archives at another point."""
    directory = tmp_path_factory.mktemp("killed")
    for point in (*POINTS, *IN_STORE):
        shutil.copytree(thinned, directory / point / "data")
    colds = {point: device_in(weed, point.replace(": ", "-")) for point in IN_STORE}
    (directory / STORE).write_text(json.dumps(colds))
    for cold in colds.values():
        store, _ = objects(cold, "")
        for path in (thinned / "cold").rglob("*"):
            if path.is_file():
                obstore.put(store, str(path.relative_to(thinned / "cold")), path.read_bytes())
    with TakingServer(*configured(directory / TAKING / "data")) as server:
        with killed_driver("tests.pipeline.stopped_upkeep", str(directory), server.url) as driver:
            wait_stopped(driver)
        yield Killed(directory, server)


@pytest.mark.parametrize("point", [PACKED, WRITTEN])
def test_a_driver_killed_before_it_offers_leaves_an_archive_as_it_was(
    spark: SparkSession, thinned: Path, killed: Killed, point: str
) -> None:
    data = killed.directory / point / "data"
    assert left(data)
    assert packs(data) == packs(thinned)
    with Broker.open(data, CONFIG) as broker:
        assert broker.tend_device("cold").run is None
        age(data)
        run(spark, data)
        assert not [place for place in left(data) if LEFT in place.parts]
        assert broker.tend_device("cold").messages == len(QUEUES) * KEPT
        assert left(data) == []
        assert_each_is_there_once(broker, files(data))


def test_what_a_driver_offered_is_taken_once_though_it_was_killed_at_once(
    spark: SparkSession, killed: Killed
) -> None:
    data = killed.directory / OFFERED / "data"
    assert is_offered(data)
    # The next one leaves it to the broker, also when that is not there yet.
    assert len(run(spark, data).waiting) == 1
    with Broker.open(data, CONFIG) as broker:
        taken = broker.tend_device("cold")
        assert (taken.packs, taken.messages, taken.stale) == (len(QUEUES), len(QUEUES) * KEPT, 0)
        assert left(data) == []
        assert_each_is_there_once(broker, files(data))
    again = run(spark, data)
    assert (again.dead, again.made, again.offered) == (0, 0, [])


@pytest.mark.parametrize("point", IN_STORE)
def test_a_driver_killed_at_an_archive_in_a_store_leaves_each_message_there_once(
    spark: SparkSession, killed: Killed, point: str
) -> None:
    cold = json.loads((killed.directory / STORE).read_text())[point]
    is_packed, is_offered = point == IN_STORE[2], point == IN_STORE[1]
    before = objects(cold, "pack-")[1]
    assert len(before) == len(QUEUES)
    made = [path for path in objects(cold, "new-")[1] if path.endswith(".parquet")]
    assert len(made) == len(QUEUES) or (is_packed and made)
    assert len(objects(cold, "mapping")[1]) == is_offered
    place, asked = Place(cold["url"], cold["options"]), Asked(dead_share=DEAD_SHARE)
    config = {**CONFIG, "devices": {"cold": cold}}
    with Broker.open(killed.directory / point / "data", config) as broker:
        # What is offered is the broker's to take; the next one does all else anew.
        again = patiently(lambda: upkeep(spark, place, asked))
        assert (len(again.waiting), again.made) == ((1, 0) if is_offered else (0, len(QUEUES)))
        taken = broker.tend_device("cold")
        assert (taken.packs, taken.messages, taken.stale) == (len(QUEUES), len(QUEUES) * KEPT, 0)
        assert objects(cold, "mapping")[1] == []
        store, found = objects(cold, "pack-")
        assert not set(found) & set(before)
        packs = [pa.BufferReader(bytes(obstore.get(store, path).bytes())) for path in found]
        assert_each_is_there_once(broker, packs)
    done = patiently(lambda: upkeep(spark, place, asked))
    assert (done.dead, done.made, done.waiting) == (0, 0, [])


def test_a_broker_goes_on_taking_when_the_driver_is_killed_that_told_it(
    spark: SparkSession, killed: Killed
) -> None:
    data = killed.directory / TAKING / "data"
    assert is_offered(data)
    (killed.directory / TAKING / taking.GO_ON).touch()
    until(lambda: left(data) == [], "all is taken")
    killed.server.kill()
    again = run(spark, data)
    assert (again.dead, again.made, again.waiting) == (0, 0, [])
    with Broker.open(data, CONFIG) as broker:
        assert_each_is_there_once(broker, files(data))


def test_a_broker_killed_while_it_takes_takes_the_rest_when_it_is_told_again(
    spark: SparkSession, thinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / TAKING / "data"
    shutil.copytree(thinned, data)
    monkeypatch.setattr(session, "spark_session", lambda *_: contextlib.nullcontext(spark))
    with ThreadPoolExecutor(1) as pool, TakingServer(*configured(data)) as server:
        words = command(tmp_path, TAKING, server.url)
        cut = pool.submit(CliRunner().invoke, cli, words)
        until(lambda: (data.parent / taking.REACHED).exists() or cut.done(), "it is taking")
        server.kill()
        done = cut.result()
    assert isinstance(done.exception, Unreachable)
    # What is replaced and what replaces it are there, side by side.
    assert len(packs(data)) == len(packs(thinned)) + 1
    with Running(*configured(data)) as server:
        done = CliRunner().invoke(cli, command(tmp_path, TAKING, server.url))
        assert (done.exit_code, "in 1 new pack" in done.output) == (0, True), done.output
        server.kill()
    assert left(data) == []
    with Broker.open(data, CONFIG) as broker:
        assert_each_is_there_once(broker, files(data))


def test_a_broker_killed_after_any_change_it_makes_to_take_packs_takes_the_rest_later(
    spark: SparkSession, offered: Path
) -> None:
    directory = offered.parent
    words = [sys.executable, "-m", "tests.pipeline.taking", str(directory), json.dumps(CONFIG)]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    times = int(done.stdout)
    assert times > 10
    rest = []
    for at in range(times):
        data = directory / str(at)
        with Broker.open(data, CONFIG) as broker:
            broker.tend_device("cold")
            assert_each_is_there_once(broker, files(data), left_since=2)
        rest += [data] if left(data) else []
    # Where it was killed after the offer was gone, what that named is left to the next upkeep.
    assert 0 < len(rest) < times / 2
    age(rest[0])
    run(spark, rest[0])
    assert not [place for place in left(rest[0]) if LEFT in place.parts]


#: Writes a pack as a task does.
PUT = """
import sys
from ebbmq_spark.upkeep.packs import Place
Place(sys.argv[1]).open().put(sys.argv[2], b"x" * 1000)
"""


def test_what_was_half_written_to_a_directory_when_a_task_was_killed_goes_a_day_later(
    spark: SparkSession, thinned: Path, tmp_path: Path
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    shutil.copytree(thinned / "cold", tmp_path / "cold")
    (store,) = (tmp_path / "cold" / "archive").glob("store=*")
    place = Place((tmp_path / "cold").as_uri())
    new = f"archive/{store.name}/_upkeep/{LEFT}/queue=a/new-0.parquet"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=linkat",
         "-e", "inject=linkat:signal=KILL", sys.executable, "-c", PUT, place.url, new],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr and "not permitted" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert not (tmp_path / "cold" / new).exists()
    (half,) = left(tmp_path)
    upkeep(spark, place, Asked(compact=False))
    assert half.exists(), "somebody may be at it"
    os.utime(half, (0, time.time() - 25 * 3_600))
    upkeep(spark, place, Asked(compact=False))
    assert left(tmp_path) == []


def test_a_broker_killed_while_a_store_moves_a_pack_has_each_message_once(
    spark: SparkSession, tmp_path: Path, weed: Weed
) -> None:
    cold = device_in(weed, "killed")
    config = {**CONFIG, "devices": {"cold": cold}}
    fill(tmp_path / "data", config)
    place, asked = Place(cold["url"], cold["options"]), Asked(dead_share=DEAD_SHARE)
    before = objects(cold, "pack-")[1]
    assert patiently(lambda: upkeep(spark, place, asked)).made == len(QUEUES)
    words = ["tests.pipeline.taking", str(tmp_path / "data"), json.dumps(config), taking.COPIED]
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    # A service copies, and then deletes: the pack is in both places.
    assert len(objects(cold, "new-")[1]) == 2 * len(QUEUES)
    assert len(objects(cold, "pack-")[1]) == len(before) + 1
    with Broker.open(tmp_path / "data", config) as broker:
        broker.tend_device("cold")
        assert objects(cold, "new-")[1] == objects(cold, "mapping")[1] == []
        assert not set(before) & set(objects(cold, "pack-")[1])
        store, found = objects(cold, "pack-")
        packs = [pa.BufferReader(bytes(obstore.get(store, path).bytes())) for path in found]
        assert_each_is_there_once(broker, packs)
    again = patiently(lambda: upkeep(spark, place, asked))
    assert (again.dead, again.made, again.waiting) == (0, 0, [])
