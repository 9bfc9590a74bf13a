"""SIGTERM, SIGINT and SIGHUP: a drain that answers everybody, and settings that are read again."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message
from ebbmq.model import QueueSpec
from tests.serving import CERTIFICATES, Running, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.serving import Answer, Caller


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_also_when_somebody_waits_for_a_message(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Running(tmp_path / "data", "--example") as server, server.caller() as caller:
        connection = caller.connection
        path = "/v1/queues/example.orders.dead/leases"
        connection.request("POST", path, json.dumps({"wait_ms": 3_600_000}))
        with server.caller() as other:
            assert other.call("GET", "/v1/queues/example.orders/messages").status == 200
        server.signal(number)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())) == (200, {"leases": []})
        assert server.end() == 0
    assert "stopped" in server.log()
    assert "Traceback" not in server.log()
    with Broker.open(tmp_path / "data") as broker:
        told = {"ready": True, "problems": [], "damage": [], "devices": [], "feed": []}
        assert broker.health() == told


def hold_a_request(server: Running) -> socket.socket:
    """Begin a request and do not end it."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    held = socket.create_connection((host, int(port)))
    held.sendall(
        b"POST /v1/queues/example.orders/acks HTTP/1.1\r\nhost: localhost\r\n"
        b"content-length: 13\r\n\r\n"
    )
    return held


def test_while_it_drains_publishes_are_refused_and_settling_goes_on(tmp_path: Path) -> None:
    with (
        Running(tmp_path / "data", "--example") as server,
        server.caller() as publisher,
        server.caller() as consumer,
        hold_a_request(server) as held,
    ):
        leased = consumer.queue("example.orders", "leases", {"count": 1}).json["leases"]
        assert publisher.queue("example.orders", "messages", {"messages": []}).status == 200
        server.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.log(), "draining")
        refused = publisher.queue("example.orders", "messages", {"messages": [{"text": "x"}]})
        assert (refused.status, refused.code) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["connection"] == "close"
        acked = consumer.queue("example.orders", "acks", {"tokens": [leased[0]["token"]]})
        assert acked.json["acked"] == 1
        held.sendall(b'{"tokens":[]}')
        assert b"HTTP/1.1 200" in held.recv(1_000)
        assert server.end() == 0


def test_a_redrive_under_way_ends_with_the_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker.open(data) as broker:
        broker.declare(QueueSpec("work"))
        broker.declare(QueueSpec("dead"))
        broker.publish("dead", [Message(b"x")] * 1_000)
    with Running(data) as server, server.caller() as mover, server.caller() as looker:
        answers: list[Answer] = []
        asked = {"to": "work", "rate": 1.0}
        moving = threading.Thread(
            target=lambda: answers.append(mover.queue("dead", "redrive", asked))
        )
        moving.start()
        path = "/v1/queues/work"
        wait_until(lambda: looker.call("GET", path).json["stats"]["depth"]["ready"], "moving one")
        server.signal(signal.SIGTERM)
        moving.join(20)
        assert (answers[0].status, answers[0].code) == (503, "draining")
        assert server.end() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Running(tmp_path / "data", "--example") as server, hold_a_request(server):
        server.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.log(), "draining")
        server.signal(signal.SIGTERM)
        assert server.end() == 128 + signal.SIGTERM
    with Broker.open(tmp_path / "data") as broker:
        assert broker.health()["ready"]


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    file = tmp_path / "ebbmq.toml"
    file.write_text("[http]\ndrain_timeout_ms = 100\n")
    options = ("--example", "--config", str(file))
    with Running(tmp_path / "data", *options) as server, hold_a_request(server):
        assert server.stop() == 0


PUBLISHERS = 8
BATCH = 5


class Publisher(threading.Thread):
    """Publishes until it is refused or finds nobody, and keeps what it was told."""

    def __init__(self, caller: Caller, number: int) -> None:
        super().__init__()
        self._caller = caller
        self._number = number
        self.confirmed: list[str] = []
        self.odd: list[object] = []

    def run(self) -> None:
        for batch in range(1_000_000):
            texts = [f"{self._number}.{batch}.{each}" for each in range(BATCH)]
            asked = {"messages": [{"text": text} for text in texts], "confirm": "synced"}
            try:
                answer = self._caller.queue("orders", "messages", asked)
            except (OSError, http.client.HTTPException):
                return
            if answer.status == 200:
                self.confirmed += texts
            else:
                if answer.code != "draining":
                    self.odd.append(answer)
                return


def test_under_load_every_publish_is_confirmed_or_refused_before_it_ends(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("orders"))
    with Running(tmp_path / "data") as server:
        publishers = [Publisher(server.caller(), number) for number in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        wait_until(lambda: all(len(each.confirmed) > 50 for each in publishers), "some load")
        assert server.stop() == 0
        for publisher in publishers:
            publisher.join()
    with Broker.open(tmp_path / "data") as broker:
        stored = [lease.body.decode() for lease in broker.lease("orders", 100_000)]
    assert [odd for each in publishers for odd in each.odd] == []
    # Who found nobody there any more, or was refused, has nothing stored.
    assert sorted(stored) == sorted(text for each in publishers for text in each.confirmed)


# Reloading


def fingerprint(server: Running) -> str:
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def put_certificate(directory: Path, name: str) -> None:
    for ending in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"{name}.{ending}", directory / f"server.{ending}")


def test_a_reload_takes_over_what_can_change_and_says_what_cannot(tmp_path: Path) -> None:
    put_certificate(tmp_path, "first")
    file = tmp_path / "ebbmq.toml"
    tls = f"tls_certificate = '{tmp_path}/server.pem'\ntls_key = '{tmp_path}/server.key'\n"
    file.write_text(f"[http]\n{tls}")
    with Running(tmp_path / "data", "--config", str(file)) as server:
        assert fingerprint(server) == (CERTIFICATES / "first.pem").read_text()
        put_certificate(tmp_path, "second")
        file.write_text(f"[http]\n{tls}request_bytes_max = 2048\nhost = '127.0.0.2'\n")
        server.signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in server.log(), "reloaded")
        assert fingerprint(server) == (CERTIFICATES / "second.pem").read_text()
        said = server.log().partition("restart_needed")[2]
        assert "setting=http.host" in said
        assert "changed=['http.request_bytes_max']" in said
        with server.caller(verify=str(CERTIFICATES / "second.pem")) as caller:
            assert caller.queue("q", "messages", b" " * 3_000).code == "too_large"
            file.write_text(f"[http]\n{tls}[log]\nlevel = 'error'\n")
            before = server.log()
            server.signal(signal.SIGHUP)
            wait_until(
                lambda: caller.queue("q", "messages", b" " * 3_000).code != "too_large", "the limit"
            )
        assert server.stop() == 0
        assert server.log() == before


def test_a_reload_of_a_mistake_changes_nothing(tmp_path: Path) -> None:
    put_certificate(tmp_path, "first")
    file = tmp_path / "ebbmq.toml"
    tls = f"tls_certificate = '{tmp_path}/server.pem'\ntls_key = '{tmp_path}/server.key'\n"
    file.write_text(f"[http]\n{tls}")
    with Running(tmp_path / "data", "--config", str(file)) as server:
        file.write_text(f"[http]\n{tls}prot = 1\n[log]\nlevel = 'error'\n")
        server.signal(signal.SIGHUP)
        wait_until(lambda: "'http.prot' is not known" in server.log(), "the unknown key")
        file.write_text(f"[http]\n{tls}[log]\nlevel = 'error'\n")
        shutil.copy(CERTIFICATES / "second.pem", tmp_path / "server.pem")
        server.signal(signal.SIGHUP)
        wait_until(lambda: server.log().count("reload_refused") == 2, "the key of another")
        assert fingerprint(server) == (CERTIFICATES / "first.pem").read_text()
        assert server.stop() == 0
        assert "stopped" in server.log()
