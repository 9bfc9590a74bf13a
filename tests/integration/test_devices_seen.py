"""Devices as people and their tools see them: HTTP, clients, command line, metrics, page, log."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from html import unescape
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ebbmq import AsyncBroker, AsyncClient, Broker, Client, DeviceStatus, Message, QueueSpec
from ebbmq.errors import DeviceInUse, Forbidden, UnknownDevice
from ebbmq.node.server.users import Users
from tests.served import Served
from tests.servers import free_port
from tests.serving import Running, wait_until
from tests.verbs import WAYS, Blocking, Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENT = {"stall_ms": 60_000}
COMMAND = [sys.executable, "-m", "ebbmq.cli"]


def devices() -> dict[str, dict[str, Any]]:
    """Three beside the log, of which one is away."""
    away = f"valkey://:hush@127.0.0.1:{free_port()}"
    return {
        "log": {"tier": "ssd", "cost_per_gib_month": 0.1},
        "ram": {"kind": "memory", "capacity_bytes": 1_000_000, **PATIENT},
        "hdd": {"kind": "file", "capacity_bytes": 1 << 30, "tier": "slow", **PATIENT},
        "away": {"kind": "grid", "url": away, "capacity_bytes": 1 << 30, "timeout_ms": 1_000},
    }


def toml(path: Path) -> Path:
    lines = []
    for name, given in devices().items():
        lines.append(f"[devices.{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    path.write_text("\n".join(lines))
    return path


def is_settled(broker: Any) -> bool:
    return all(each.usable or each.last_error for each in broker.devices())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", devices=devices()) as running:
        wait_until(lambda: is_settled(running.broker), "opening")
        yield running


class TestHttp:
    def test_all_devices_are_listed_the_log_first(self, served: Served) -> None:
        found = served.ask("GET", "/v1/devices").json["devices"]
        assert [each["name"] for each in found] == ["log", "ram", "hdd", "away"]
        assert [each["usable"] for each in found] == [True, True, True, False]
        away = found[3]
        assert (away["status"], away["circuit"] != "closed") == (-100, True)
        assert "127.0.0.1" in away["last_error"]
        assert "hush" not in json.dumps(found)

    def test_one_is_shown_by_its_name(self, served: Served) -> None:
        found = served.ask("GET", "/v1/devices/hdd").json
        assert (found["name"], found["kind"], found["tier"]) == ("hdd", "file", "slow")
        assert msgspec.convert(found, DeviceStatus).capacity_bytes == 1 << 30

    def test_one_is_probed_at_once(self, served: Served) -> None:
        before = served.ask("GET", "/v1/devices/ram").json["calls"]
        after = served.ask("POST", "/v1/devices/ram/probe").json
        assert after["calls"] > before
        assert served.ask("POST", "/v1/devices/away/probe").json["usable"] is False

    @pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("POST", "/probe")])
    def test_one_nobody_has_is_named_with_the_nearest(
        self, served: Served, method: str, rest: str
    ) -> None:
        answer = served.ask(method, f"/v1/devices/hddd{rest}")
        assert (answer.status, answer.json["code"]) == (404, "unknown_device")
        assert answer.json["action"] == "did you mean 'hdd'?"

    @pytest.mark.parametrize("name", ["..%2f..%2fetc", "%2e%2e", "<script>", "a%00b"])
    def test_a_strange_name_is_one_nobody_has(self, served: Served, name: str) -> None:
        assert served.ask("GET", f"/v1/devices/{name}").status == 404

    def test_one_that_answers_is_given_up_only_by_force(self, served: Served) -> None:
        answer = served.ask("POST", "/v1/devices/hdd/evict")
        assert (answer.status, answer.json["code"]) == (409, "device_in_use")
        forced = served.ask("POST", "/v1/devices/hdd/evict", {"force": True})
        counts = {"copies": 0, "messages_lost": 0, "drained": 0}
        assert forced.json == {"device": "hdd", **counts, "until": "admit"}
        assert served.ask("POST", "/v1/devices/log/evict").status == 400
        assert served.ask("POST", "/v1/devices/none/evict").status == 404
        assert served.ask("POST", "/v1/devices/hdd/evict", {"farce": True}).status == 400

    def test_they_take_the_scope_manage_for_everything(
        self, served: Served, tmp_path: Path
    ) -> None:
        users = Users(tmp_path / "data")
        operator = users.add("operator", {"manage": ("*",)})
        owner = users.add("owner", {"manage": ("q",), "consume": ("*",)})
        for method, path in (
            ("GET", "/v1/devices"),
            ("GET", "/v1/devices/ram"),
            ("POST", "/v1/devices/ram/probe"),
            ("POST", "/v1/devices/away/evict"),
            ("POST", "/v1/devices/away/admit"),
        ):
            for token, status in ((operator, 200), (owner, 403)):
                told = {"authorization": f"Bearer {token}"}
                assert served.ask(method, path, headers=told).status == status
            assert served.ask(method, path).status == 401
        url = f"http://127.0.0.1:{served.port}"
        with Client(url, token=owner) as client, pytest.raises(Forbidden):
            client.devices()


@pytest.mark.parametrize("way", WAYS)
def test_devices_look_the_same_however_they_are_asked_for(served: Served, way: str) -> None:
    url, loop = f"http://127.0.0.1:{served.port}", Loop()
    made: dict[str, Callable[[], Any]] = {
        "Broker": lambda: served.broker,
        "Client": lambda: Client(url),
        "AsyncBroker": lambda: Blocking(loop, loop.run(_broker(served.broker))),
        "AsyncClient": lambda: Blocking(loop, loop.run(_client(url))),
    }
    broker = made[way]()
    try:
        found = broker.devices()
        assert all(isinstance(each, DeviceStatus) for each in found)
        assert [(each.name, each.usable) for each in found] == [
            ("log", True),
            ("ram", True),
            ("hdd", True),
            ("away", False),
        ]
        assert broker.probe_device("ram").usable
        with pytest.raises(UnknownDevice, match="hddd"):
            broker.probe_device("hddd")
        with pytest.raises(DeviceInUse):
            broker.evict_device("hdd")
        assert broker.evict_device("hdd", force=True).messages_lost == 0
        assert broker.admit_device("hdd").standing == "used"
    finally:
        if way in ("Client", "AsyncClient"):
            broker.close()
        loop.close()


async def _broker(broker: Broker) -> AsyncBroker:
    return AsyncBroker(broker)


async def _client(url: str) -> AsyncClient:
    return AsyncClient(url)


def test_without_devices_the_log_is_shown_all_the_same(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        [log] = broker.devices()
        assert (log.name, log.kind, log.usable, log.circuit) == ("log", "log", True, "closed")
        assert log.capacity_bytes > 0
        assert broker.probe_device("log").latency_ms > 0
        with pytest.raises(UnknownDevice):
            broker.probe_device("hdd")
        assert broker.health()["devices"] == []


def test_metrics_have_every_device(served: Served) -> None:
    text = served.ask("GET", "/metrics").body.decode()
    found = dict(re.findall(r'^ebbmq_device_circuit_open\{device="(\w+)"\} (\d)$', text, re.M))
    assert found == {"log": "0", "ram": "0", "hdd": "0", "away": "1"}
    names = ("used_bytes", "capacity_bytes", "latency_seconds", "status", "errors_total", "copies")
    for name in names:
        assert f'ebbmq_device_{name}{{device="hdd"}} ' in text
    assert 'ebbmq_device_status{device="away"} -100' in text


def test_the_start_page_shows_devices_where_there_are_some(served: Served, tmp_path: Path) -> None:
    text = unescape(served.ask("GET", "/").body.decode())
    assert "<h2>Devices</h2>" in text
    assert "device 'away' cannot be used" in text
    assert "hush" not in text
    with Served(tmp_path / "plain") as plain:
        assert "<h2>Devices</h2>" not in plain.ask("GET", "/").body.decode()


def test_a_device_that_is_away_is_told_and_keeps_nobody_from_working(served: Served) -> None:
    answer = served.ask("GET", "/health/ready")
    assert (answer.status, answer.json["ready"]) == (200, True)
    [told] = answer.json["devices"]
    assert "'away' cannot be used" in told
    Users(served.broker.engine.directory.path).add("u", {"consume": ("q",)})
    assert served.ask("GET", "/health/ready").json["devices"] == []


def ebbmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=120
    )


class TestCommandLine:
    def test_a_table_on_a_directory_and_on_a_server_shows_the_same_devices(
        self, tmp_path: Path
    ) -> None:
        data, config = str(tmp_path / "data"), str(toml(tmp_path / "ebbmq.toml"))
        Broker.open(data).close()
        here = ebbmq("devices", "--data", data, "--config", config)
        assert here.returncode == 0, here.stderr
        assert "attention: device 'away' cannot be used" in here.stderr
        with Running(tmp_path / "data", "--config", config) as server:
            there = ebbmq("devices", "--url", server.url)
        assert "away has not been used for" in there.stderr
        for done in (here, there):
            rows = [line.split() for line in done.stdout.splitlines()]
            assert [row[0] for row in rows] == ["DEVICE", "log", "ram", "hdd", "away"]
            assert [row[1:3] for row in rows[1:]] == [
                ["log", "ssd"],
                ["memory", "memory"],
                ["file", "slow"],
                ["grid", "grid"],
            ]
            assert "open" in rows[4]
            assert "hush" not in done.stdout + done.stderr

    def test_copies_of_a_message_are_told_alike_on_a_directory_and_on_a_server(
        self, tmp_path: Path
    ) -> None:
        data, config = str(tmp_path / "data"), str(toml(tmp_path / "ebbmq.toml"))
        with Broker.open(data, config) as broker:
            wait_until(lambda: is_settled(broker), "opening")
            broker.declare(QueueSpec("q"))
            (sent,) = broker.publish("q", [Message(b"x", replicas=2)])
            wait_until(lambda: broker.why(sent.id)["copies"] == ("hdd", "log"), "copying")
        here = ebbmq("why", sent.id, "--data", data, "--config", config)
        with Running(tmp_path / "data", "--config", config) as server:
            there = ebbmq("why", sent.id, "--url", server.url)
        for done in (here, there):
            assert re.search(r"^copies +hdd, log *$", done.stdout, re.M), done.stdout
            assert re.search(r"^ttl +-", done.stdout, re.M)

    def test_one_device_is_shown_and_probed(self, tmp_path: Path) -> None:
        place = ("--data", str(tmp_path / "data"), "--config", str(toml(tmp_path / "e.toml")))
        Broker.open(tmp_path / "data").close()
        for verb in ("show", "probe"):
            told = ebbmq("devices", verb, "hdd", *place)
            assert told.returncode == 0, told.stderr
            assert re.search(r"^failure domain +hdd", told.stdout, re.M)
            found = json.loads(ebbmq("devices", verb, "hdd", *place, "--json").stdout)
            assert found["name"] == "hdd"
        wrong = ebbmq("devices", "show", "hd", *place)
        assert wrong.returncode == 1
        assert "did you mean 'hdd'?" in wrong.stderr

    def test_json_is_what_http_says(self, tmp_path: Path) -> None:
        Broker.open(tmp_path / "data").close()
        done = ebbmq("devices", "--data", str(tmp_path / "data"), "--json")
        [log] = msgspec.json.decode(done.stdout, type=list[DeviceStatus])
        assert log.name == "log"

    def test_a_disk_that_is_lost_is_given_up_and_another_takes_its_place(
        self, tmp_path: Path
    ) -> None:
        config = toml(tmp_path / "e.toml")
        rule = '[[rules]]\nid = "W-001"\nweight = 90\ndevice = "hdd"'
        config.write_text(f"{config.read_text()}\n{rule}\n")
        place = ("--data", str(tmp_path / "data"), "--config", str(config))
        with Broker.open(tmp_path / "data", config) as broker:
            broker.declare(QueueSpec("q"))
            broker.publish("q", [Message(b"x") for _ in range(3)])
            wait_until(lambda: broker.devices()[2].copies == 3, "moving")
            wait_until(lambda: broker.devices()[0].copies == 0, "leaving the log")
        shutil.rmtree(tmp_path / "data" / "devices" / "hdd")
        away = ebbmq("devices", "show", "hdd", *place)
        assert "ebbmq devices evict hdd" in away.stdout + away.stderr
        done = ebbmq("devices", "evict", "hdd", "--yes", *place)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "hdd is given up: it had 3 copies; 3 messages had no other and left, on the record\n"
        )
        assert "what answers in its place, a new disk too, is used as hdd at once" in done.stderr
        with Broker.open(tmp_path / "data", config) as broker:
            assert len(broker.removals("q", reason="lost")) == 3
            wait_until(lambda: broker.devices()[2].usable, "taking the new disk")
            assert broker.devices()[2].copies == 0

    def test_a_tier_of_a_queue_that_no_device_is_of_is_pointed_out(self, tmp_path: Path) -> None:
        place = ("--data", str(tmp_path / "data"))
        told = ebbmq("queues", "declare", "work", "--set", "tiers=log,archvie", *place)
        assert told.returncode == 0
        assert "attention: no device is of the tier 'archvie' (there are: log)" in told.stderr
        assert told.stderr.count("no device is of the tier") == 1
        plain = ebbmq("queues", "declare", "plain", "--set", "tiers=log", *place)
        assert "tier" not in plain.stderr

    def test_a_store_that_had_devices_asks_for_its_configuration(self, tmp_path: Path) -> None:
        data, config = str(tmp_path / "data"), str(toml(tmp_path / "e.toml"))
        Broker.open(data, config).close()
        done = ebbmq("queues", "--data", data)
        assert "this store has the devices hdd" in done.stderr
        assert "--config" in done.stderr
        assert "this store has" not in ebbmq("queues", "--data", data, "--config", config).stderr

    def test_a_server_has_its_own_configuration(self, tmp_path: Path) -> None:
        done = ebbmq("devices", "--url", "http://127.0.0.1:1", "--config", "e.toml")
        assert done.returncode == 2
        assert "--config goes with --data" in done.stderr

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("[devices.hdd]\nkind = 'flie'\ncapacity_bytes = 1", "did you mean 'file'?"),
            ("[devices.'../hdd']\nkind = 'file'\ncapacity_bytes = 1", "device name '../hdd'"),
            ("[devices.hdd]\nkind = 'file'\ncapacity_bytes = 0", "capacity_bytes is 0"),
            ("[devices.log]\nkind = 'file'", "not for the node's own log"),
            ("[devices.db]\nkind = 'grid'\nurl = 'here'\ncapacity_bytes = 1", "no address"),
        ],
    )
    def test_a_slip_in_the_configuration_is_named(
        self, tmp_path: Path, text: str, named: str
    ) -> None:
        Broker.open(tmp_path / "data").close()
        (tmp_path / "e.toml").write_text(text)
        place = ("--data", str(tmp_path / "data"), "--config", str(tmp_path / "e.toml"))
        for command in (("devices",), ("serve", "--http-port", "0")):
            done = ebbmq(*command, *place)
            assert done.returncode == 1
            assert named in done.stderr
            assert "hint: " in done.stderr


def test_a_circuit_that_opens_and_secrets_that_do_not_show_in_the_log(tmp_path: Path) -> None:
    config = toml(tmp_path / "ebbmq.toml")
    with Running(tmp_path / "data", "--config", str(config)) as server:
        wait_until(lambda: "device_circuit_open" in server.log(), "telling")
        config.write_text(config.read_text().replace("slow", "slower"))
        server.signal(signal.SIGHUP)
        wait_until(lambda: "restart_needed" in server.log(), "reading the file again")
        assert server.stop() == 0
    assert "hush" not in server.log()
    assert "setting=devices" in server.log()
