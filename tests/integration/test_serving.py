"""`ebbmq serve` as its operator sees it: how it starts, or says why not, and where it listens."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ebbmq import AsyncBroker, Broker
from ebbmq.limits import DAY_MS
from ebbmq.node.server import example
from ebbmq.node.server.users import Users
from ebbmq.testing import ManualClock
from tests.serving import CERTIFICATES, Caller, Running, own_address, run_to_end, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_the_line_that_says_ready_is_true(tmp_path: Path) -> None:
    with Running(tmp_path / "data") as server, server.caller() as caller:
        assert server.lines[0] == f"ready {server.url}"
        assert caller.queue("none", "leases", {}).code == "unknown_queue"


def test_with_json_all_it_prints_is_one_line_of_json(tmp_path: Path) -> None:
    server = Running(tmp_path / "data", "--json")
    try:
        wait_until(lambda: bool(server.lines), server.log())
        (url,) = json.loads(server.lines[0])["ready"]
        with Caller(url) as caller:
            assert caller.queue("none", "leases", {}).code == "unknown_queue"
        assert server.stop() == 0
        assert len(server.lines) == 1
    finally:
        if server.process.poll() is None:
            server.kill()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("options", [[], ["--example"]], ids=["new", "example"])
def test_the_commands_it_prints_work_as_they_are(tmp_path: Path, options: list[str]) -> None:
    with Running(tmp_path / "data", *options) as server:
        wait_until(lambda: any("Ctrl-C" in line for line in server.lines), str(server.lines))
        commands = [line[line.index("curl") :] for line in server.lines if "curl" in line]
        answers = [
            subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True).stdout
            for command in commands
        ]
    assert b'"receipts":[{"id":' in answers[-2]
    assert b'"leases":[{"id":' in answers[-1]


def test_the_example_is_put_into_a_new_directory_once(tmp_path: Path) -> None:
    with Running(tmp_path / "data", "--example") as server:
        assert server.stop() == 0
    with Broker.open(tmp_path / "data") as broker:
        assert {spec.name for spec in broker.queues()} == {
            "example.alerts",
            "example.alerts.dead",
            "example.orders",
            "example.orders.dead",
            "example.photos",
        }
        assert broker.stats("example.alerts")["depth"]["ready"] == 5
        broker.delete("example.alerts")
    with Running(tmp_path / "data", "--example") as server:
        assert server.stop() == 0
    with Broker.open(tmp_path / "data") as broker:
        assert "example.alerts" not in {spec.name for spec in broker.queues()}
        assert broker.stats("example.orders")["depth"]["ready"] == 3


def test_the_example_has_new_photos_on_another_day_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    clock = ManualClock(time.time_ns() // 1_000_000 - DAY_MS)

    async def load() -> None:
        async with await AsyncBroker.open(data, clock=clock) as broker:
            await example.load(broker)

    asyncio.run(load())
    for _ in range(2):
        with Running(data, "--example") as server:
            assert server.stop() == 0
    with Broker.open(data) as broker:
        assert broker.stats(example.PHOTOS)["depth"]["ready"] == 2 * example.PHOTO_COUNT
        assert broker.stats(example.ORDERS)["depth"]["ready"] == 3
        broker.delete(example.PHOTOS)
    with Running(data, "--example") as server:
        assert server.stop() == 0
    with Broker.open(data) as broker:
        assert example.PHOTOS not in {spec.name for spec in broker.queues()}


def test_it_speaks_tls_and_its_log_has_the_effective_configuration_without_secrets(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ebbmq.toml"
    file.write_text(
        "segment_bytes = 65536\n"
        f"[http]\ntls_certificate = '{CERTIFICATES}/first.pem'\n"
        f"tls_key = '{CERTIFICATES}/first.locked.key'\ntls_key_password = 'sesame'\n"
        "[log]\nformat = 'json'\n"
    )
    with (
        Running(tmp_path / "data", "--config", str(file)) as server,
        server.caller(verify=str(CERTIFICATES / "first.pem")) as caller,
    ):
        assert server.url.startswith("https://")
        assert caller.queue("none", "leases", {}).code == "unknown_queue"
        assert server.stop() == 0
    events = [json.loads(line) for line in server.log().splitlines()]
    (told,) = [event for event in events if event["event"] == "configuration"]
    assert told["segment_bytes"] == 65_536
    assert told["http.idle_timeout_ms"] == 75_000
    assert told["http.tls_key_password"] == "(hidden)"
    assert "sesame" not in server.log()


@pytest.mark.parametrize("level", ["info", "error"])
def test_the_effective_configuration_is_told_whatever_the_level(tmp_path: Path, level: str) -> None:
    file = tmp_path / "ebbmq.toml"
    file.write_text(f"[log]\nformat = 'json'\nlevel = '{level}'\n")
    with Running(tmp_path / "data", "--config", str(file)) as server:
        assert server.stop() == 0
    events = [json.loads(line) for line in server.log().splitlines()]
    (told,) = [event for event in events if event["event"] == "configuration"]
    assert told["log.level"] == level
    assert ("ready" in [event["event"] for event in events]) == (level == "info")


def test_a_mistake_in_the_configuration_is_told_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "ebbmq.toml").write_text("[http]\nprot = 1\n")
    status, said = run_to_end(tmp_path / "data", "--config", str(tmp_path / "ebbmq.toml"))
    assert status == 1
    assert "configuration key 'http.prot' is not known" in said
    assert "did you mean 'http.port'?" in said
    assert not (tmp_path / "data").exists()


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from ebbmq.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "pip install 'ebbmq[server]'" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_it_does_not_listen_elsewhere_without_users_and_tls(tmp_path: Path) -> None:
    host = own_address() or "0.0.0.0"
    status, said = run_to_end(tmp_path / "data", "--host", host, "--insecure-plain-http")
    assert status == 1
    assert f"refusing to listen on {host}: there are no users" in said
    assert "ebbmq users add" in said
    Users(tmp_path / "data").add("shop", {"publish": ("*",)})
    status, said = run_to_end(tmp_path / "data", "--host", host)
    assert status == 1
    assert f"refusing to listen on {host} without TLS" in said


def test_a_directory_that_is_in_use_is_an_error_with_a_name(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data"):
        status, said = run_to_end(tmp_path / "data")
    assert (status, "is open already, in another process" in said) == (3, True)


def test_without_users_an_ipv4_caller_of_an_ipv6_socket_counts_as_this_machine(
    tmp_path: Path,
) -> None:
    users = Users(tmp_path / "data")
    token = users.add("shop", {"manage": ("*",)})
    with Running(tmp_path / "data", "--host", "::", "--insecure-plain-http") as server:
        port = server.url.rpartition(":")[2]
        # The server sees its peer as ::ffff:127.0.0.1.
        url = f"http://127.0.0.1:{port}"
        with Caller(url) as here, Caller(url, token) as removed:
            assert here.queue("none", "leases", {}).code == "unauthenticated"
            users.remove("shop")
            assert here.queue("none", "leases", {}).code == "unknown_queue"
            assert removed.queue("none", "leases", {}).code == "unauthenticated"
        address = own_address()
        if address is not None:
            with Caller(f"http://{address}:{port}") as elsewhere:
                assert elsewhere.queue("none", "leases", {}).code == "unauthenticated"
