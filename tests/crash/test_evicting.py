"""Devices that an operator gives up, and takes back."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Client, Message, QueueSpec
from ebbmq.core.copies import LOG, name_of
from ebbmq.errors import DeviceInUse, StorageFailed, UnknownDevice
from ebbmq.node.outflow import parse_id
from tests.crash.copies import is_settled, stored, supposed, wait_until_settled
from tests.crash.devices import SOON
from tests.crash.mounts import tmpfs
from tests.served import Served
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.core.copies import Holding
    from ebbmq.model import DeviceStatus
    from tests.crash.devices import Disks

pytestmark = pytest.mark.crash

ROOM = 64 << 20
COMMAND = (sys.executable, "-m", "ebbmq.cli")
FILE: dict[str, Any] = {"kind": "file", "capacity_bytes": ROOM, "status": SOON}
DEVICES = {"ssd": FILE, "hdd": FILE}
TO_SSD = [{"id": "W-001", "weight": 90, "device": "ssd", "when": "TYPE == TEXT"}]
CONFIG: dict[str, Any] = {
    "devices": DEVICES,
    "rules": TO_SSD,
    "upkeep_every_ms": 20,
    "placement": {"repair_after_ms": 100},
}


def open_broker(path: Path, **settings: Any) -> Broker:
    broker = Broker.open(path / "data", {**CONFIG, **settings})
    broker.declare(QueueSpec("q", cache_enabled=False))
    return broker


def publish(broker: Broker, count: int, **fields: Any) -> list[str]:
    """Messages that rules send to the ssd alone, if they have one copy."""
    messages = [Message(b"text %d" % n, type="TEXT", **fields) for n in range(count)]
    ids = [receipt.id for receipt in broker.publish("q", messages)]
    wait_until_settled(broker, "moving")
    return ids


def holding(broker: Broker, message_id: str) -> Holding:
    with broker.engine.lock:
        return broker.engine.holdings.of(name_of(*parse_id(message_id)))


def device(broker: Any, name: str) -> DeviceStatus:
    return next(each for each in broker.devices() if each.name == name)


def bodies(broker: Broker, count: int) -> set[bytes]:
    return {lease.body for lease in broker.lease("q", count, wait_ms=5_000)}


def texts(count: int) -> set[bytes]:
    return {b"text %d" % n for n in range(count)}


def test_a_device_that_answers_is_drained_before_it_is_evicted_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        alone, twice = publish(broker, 700), publish(broker, 50, replicas=2)
        assert {holding(broker, each).copies for each in alone} == {frozenset({"ssd"})}
        told = broker.evict_device("ssd", force=True)
        assert (told.copies, told.drained, told.messages_lost) == (750, 700, 0)
        assert told.until == "admit"
        assert broker.removals("q") == []
        wait_until_settled(broker, "mending")
        for each in [*alone, *twice]:
            assert "ssd" not in holding(broker, each).copies
            assert len(holding(broker, each).copies) == (2 if each in twice else 1)
        assert bodies(broker, 800) == texts(700)


def test_each_copy_that_a_draining_makes_is_told_once(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        for each in publish(broker, 5, replicas=2):
            assert holding(broker, each).copies == {"ssd", LOG}
        (alone,) = publish(broker, 1)
        broker.evict_device("ssd", force=True)
        wait_until_settled(broker, "mending")
        for shown in broker.peek("q", 10):
            told = broker.why(shown.id)["decisions"]
            copied = Counter(each["device"] for each in told if each["event"] == "copied")
            assert set(copied.values()) == {1}, told
            assert [each["event"] for each in told].count("lost") == 1
        assert "ssd" not in holding(broker, alone).copies


def test_an_evicted_device_is_not_used_until_it_is_admitted_also_after_a_restart(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        publish(broker, 20)
        broker.evict_device("ssd", force=True)
    with open_broker(tmp_path) as broker:
        seen = device(broker, "ssd")
        assert (seen.standing, seen.usable, seen.copies) == ("evicted", False, 0)
        assert (seen.evicted_until, seen.evicted_at_ms is not None) == ("admit", True)
        assert seen.status == broker.engine.devices.states["ssd"].status == -100
        (trouble,) = broker.health()["devices"]
        assert "ebbmq devices admit ssd" in trouble
        fresh = publish(broker, 20)
        assert all("ssd" not in holding(broker, each).copies for each in fresh)
        port = broker.engine.devices.ports["ssd"]
        with pytest.raises(StorageFailed, match="evicted"):
            port.scan(bytes(16)).result()
        with pytest.raises(StorageFailed, match="evicted"):
            port.probe().result()
        assert device(broker, "ssd").standing == broker.probe_device("ssd").standing == "evicted"
        assert len(bodies(broker, 50)) == 20
        admitted = broker.admit_device("ssd")
        assert (admitted.standing, admitted.evicted_at_ms) == ("used", None)
        wait_until(lambda: device(broker, "ssd").usable, "coming back")
        wait_until(lambda: stored(broker)["ssd"] == set(), "comparing")
        back = publish(broker, 5)
        assert {holding(broker, each).copies for each in back} == {frozenset({"ssd"})}
        assert stored(broker) == supposed(broker)
    with open_broker(tmp_path) as broker:
        assert device(broker, "ssd").standing == "used"


def test_an_admitted_device_brings_back_no_message_that_was_acked_meanwhile(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        publish(broker, 20)
        broker.evict_device("ssd", force=True)
        leases = broker.lease("q", 15, wait_ms=5_000)
        broker.ack("q", [lease.token for lease in leases], confirm="synced")
        broker.admit_device("ssd")
        wait_until(lambda: device(broker, "ssd").usable, "coming back")
        wait_until(lambda: stored(broker)["ssd"] == set(), "comparing")
        wait_until_settled(broker, "forgetting")
        assert sum(broker.stats("q")["depth"].values()) == 5
        left = bodies(broker, 50)
        assert left == texts(20) - {lease.body for lease in leases}


def test_the_directory_of_an_evicted_device_is_let_go_of(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        publish(broker, 3)
        broker.evict_device("ssd", force=True)
        there = str(tmp_path / "data" / "devices" / "ssd")

        def open_files() -> list[str]:
            return [path for path in _open_files() if path.startswith(there)]

        wait_until(lambda: not open_files(), "letting go")
        shutil.rmtree(there)
        broker.admit_device("ssd")
        wait_until(lambda: device(broker, "ssd").usable, "taking the new disk")
        assert open_files()


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield str(entry.readlink())


def test_without_room_elsewhere_nothing_is_evicted_and_nothing_is_lost(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mnt", 4 << 20) as disk:
        ballast = disk / "ballast"
        outside = {**FILE, "directory": str(tmp_path / "ssd")}
        settings = {"devices": {"ssd": outside}, "segment_bytes": 1 << 20}
        with open_broker(disk, **settings) as broker:
            ids = publish(broker, 5)
            with contextlib.suppress(OSError), ballast.open("wb", 0) as file:
                while file.write(bytes(512)):
                    pass
            with pytest.raises(DeviceInUse, match="5 messages are only on device 'ssd'") as refusal:
                broker.evict_device("ssd", force=True)
            assert refusal.value.code == "not_drained"
            assert "ebbmq devices" in refusal.value.action
            assert device(broker, "ssd").standing == "used"
            assert all("ssd" in holding(broker, each).copies for each in ids)
            ballast.unlink()
            assert bodies(broker, 10) == texts(5)
            assert broker.evict_device("ssd", force=True).drained == 5


def test_without_draining_what_only_an_evicted_device_has_is_put_on_record(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        alone, twice = publish(broker, 3), publish(broker, 3, replicas=2)
        told = broker.evict_device("ssd", force=True, drain=False)
        assert (told.copies, told.drained, told.messages_lost) == (6, 0, 3)
        assert {removal.id for removal in broker.removals("q", reason="lost")} == set(alone)
        wait_until_settled(broker, "mending")
        assert {lease.id for lease in broker.lease("q", 10)} == set(twice)


def test_publishing_goes_on_while_a_device_is_drained_and_never_goes_there(
    tmp_path: Path,
) -> None:
    placement = {"repair_after_ms": 100, "move_bytes_per_s": 1 << 30}
    with open_broker(tmp_path, placement=placement) as broker:
        publish(broker, 2_000)
        stop, sent = threading.Event(), list[str]()

        def go_on() -> None:
            while not stop.is_set():
                messages = [Message(b"later", type="TEXT")] * 10
                sent.extend(receipt.id for receipt in broker.publish("q", messages))

        publisher = threading.Thread(target=go_on)
        publisher.start()
        try:
            wait_until(lambda: len(sent) > 100, "publishing")
            told = broker.evict_device("ssd", force=True)
        finally:
            stop.set()
            publisher.join()
        assert told.messages_lost == 0
        assert told.drained >= 2_000
        wait_until_settled(broker, "mending")
        assert device(broker, "ssd").copies == 0
        assert sum(broker.stats("q")["depth"].values()) == 2_000 + len(sent)
        assert len(broker.lease("q", 2_000 + len(sent))) == 2_000 + len(sent)


def test_admitting_a_device_that_is_drained_ends_that(tmp_path: Path, disks: Disks) -> None:
    to_hdd = {"id": "W-002", "weight": 80, "device": "hdd", "when": "IMPORTANCE >= 1"}
    patient = {**FILE, "stall_ms": 60_000}
    settings = {"devices": {"ssd": patient, "hdd": patient}, "rules": [*TO_SSD, to_hdd]}
    with open_broker(tmp_path, **settings) as broker:
        publish(broker, 10)
        errors: list[DeviceInUse] = []

        def evict() -> None:
            try:
                broker.evict_device("ssd", force=True)
            except DeviceInUse as error:
                errors.append(error)

        evicting = threading.Thread(target=evict)
        with disks["hdd"].being("frozen"):
            evicting.start()
            wait_until(lambda: device(broker, "ssd").undrained == 10, "draining")
            assert device(broker, "ssd").standing == "draining"
            assert bodies(broker, 10) == texts(10)
            assert broker.admit_device("ssd").standing == "used"
            evicting.join()
        assert [error.code for error in errors] == ["not_drained"]
        wait_until_settled(broker, "settling")
        assert device(broker, "ssd").copies >= 10


def test_a_device_that_stops_answering_while_it_is_drained_is_not_evicted(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path) as broker:
        ids = publish(broker, 10)
        with disks["ssd"].being("failing"):
            with pytest.raises(DeviceInUse) as refusal:
                broker.evict_device("ssd", force=True)
            assert refusal.value.code in {"not_drained", "device_in_use"}
            assert all(holding(broker, each).copies == {"ssd"} for each in ids)
        wait_until(lambda: device(broker, "ssd").usable, "coming back")
        assert bodies(broker, 10) == texts(10)


def test_a_lost_device_is_taken_back_when_it_answers_and_brings_nothing_back(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path) as broker:
        alone, twice = publish(broker, 3), publish(broker, 4, replicas=2)
        with disks["ssd"].being("failing"):
            wait_until(lambda: not device(broker, "ssd").usable, "failing")
            told = broker.evict_device("ssd")
            assert (told.until, told.messages_lost) == ("return", len(alone))
            seen = device(broker, "ssd")
            assert (seen.standing, seen.evicted_until) == ("evicted", "return")
            (lease, *_) = broker.lease("q", 4)
            broker.ack("q", [lease.token], confirm="synced")
        wait_until(lambda: device(broker, "ssd").standing == "used", "coming back")
        wait_until(lambda: is_settled(broker) and stored(broker) == supposed(broker), "comparing")
        assert lease.id in twice
        assert sum(broker.stats("q")["depth"].values()) == len(twice) - 1


def test_a_lost_device_that_is_evicted_by_force_stays_out_when_it_answers(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path) as broker:
        publish(broker, 3, replicas=2)
        with disks["ssd"].being("failing"):
            wait_until(lambda: not device(broker, "ssd").usable, "failing")
            assert broker.evict_device("ssd", force=True).until == "admit"
        assert broker.evict_device("ssd").until == "admit"
        wait_until_settled(broker, "mending")
        assert device(broker, "ssd").standing == "evicted"
        broker.admit_device("ssd")
        wait_until(lambda: device(broker, "ssd").usable, "coming back")
        wait_until(lambda: stored(broker) == supposed(broker), "comparing")


def test_a_device_that_nobody_evicted_may_be_admitted_and_one_nobody_has_is_named(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        assert broker.admit_device("ssd").standing == "used"
        assert broker.admit_device(LOG).standing == "used"
        with pytest.raises(UnknownDevice, match="sdd"):
            broker.admit_device("sdd")
    with Broker.open(tmp_path / "plain") as broker, pytest.raises(UnknownDevice):
        broker.admit_device("ssd")


def test_devices_are_evicted_and_admitted_over_http_too(tmp_path: Path) -> None:
    with Served(tmp_path / "data", **CONFIG) as served:
        broker = served.broker
        broker.declare(QueueSpec("q", cache_enabled=False), change=True)
        publish(broker, 5)
        refused = served.ask("POST", "/v1/devices/ssd/evict")
        assert (refused.status, refused.json["code"]) == (409, "device_in_use")
        told = served.ask("POST", "/v1/devices/ssd/evict", {"force": True})
        assert (told.status, told.json["drained"], told.json["until"]) == (200, 5, "admit")
        shown = served.ask("GET", "/v1/devices/ssd").json
        assert (shown["standing"], shown["usable"]) == ("evicted", False)
        assert "evicted for" in served.ask("GET", "/").body.decode()
        admitted = served.ask("POST", "/v1/devices/ssd/admit")
        assert (admitted.status, admitted.json["standing"]) == (200, "used")
        wait_until(lambda: device(broker, "ssd").usable, "coming back")
        with Client(f"http://127.0.0.1:{served.port}") as client:
            assert client.evict_device("ssd", force=True, drain=False).messages_lost == 0
            assert device(client, "ssd").standing == "evicted"
            assert client.admit_device("ssd").standing == "used"
        assert served.ask("POST", "/v1/devices/none/admit").status == 404


def test_devices_are_evicted_and_admitted_on_the_command_line_too(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        publish(broker, 5)
    lines = [
        '[devices.ssd]\nkind = "file"\ncapacity_bytes = 67108864',
        '[devices.hdd]\nkind = "file"\ncapacity_bytes = 67108864',
    ]
    config = tmp_path / "ebbmq.toml"
    config.write_text("\n".join(lines))
    place = ("--data", str(tmp_path / "data"), "--config", str(config))
    refused = ebbmq("devices", "evict", "ssd", "--yes", *place)
    assert refused.returncode == 1
    assert "`ebbmq devices evict ssd --force`" in refused.stderr
    done = ebbmq("devices", "evict", "ssd", "--yes", "--force", *place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "ssd is given up: it had 5 copies, 5 messages of which only it had were copied first; "
        "0 messages had no other and left, on the record\n"
    )
    assert "ebbmq devices admit ssd" in done.stderr
    rows = [line.split() for line in ebbmq("devices", *place).stdout.splitlines()]
    assert [row[-1] for row in rows if row and row[0] == "ssd"] == ["evicted"]
    admitted = json.loads(ebbmq("devices", "admit", "ssd", "--json", *place).stdout)
    assert admitted["standing"] == "used"
    assert "ssd" in ebbmq("devices", "admit", "sdd", *place).stderr


def ebbmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=120
    )
