"""A device hangs while publishers wait for its copy: another one is asked, or they are told."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest

from ebbmq import Broker, Message, QueueSpec, Receipt
from ebbmq.core.copies import LOG, name_of
from ebbmq.errors import EbbError, Overloaded
from ebbmq.holding import opening
from ebbmq.holding.contract import Copy, Key
from ebbmq.node.outflow import parse_id
from tests.crash.copies import holdings, stored, supposed, wait_until_settled
from tests.crash.devices import MIB, SOON, Moods, MoodyDisk
from tests.servers import wait_until

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.servers import Postgres, Valkey, Weed

pytestmark = pytest.mark.crash

#: Neither the port nor a client library gives the hung call up: only the publisher's patience ends.
ENDLESS = {"timeout_ms": 600_000, "stall_ms": 600_000}
PATIENCE_S = 60.0
QUEUE = QueueSpec("q", min_copies=2, copy_timeout_ms=500)
#: As fast as a busy machine lets it be.
SPARE = {"kind": "memory", "capacity_bytes": 8 * MIB, "status": SOON}
FIRST = [{"id": "F", "weight": 90, "device": "first", "when": "IMPORTANCE >= 1"}]


class Hanging:
    """A device that can be made to hang while it takes a copy."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, directory: Path) -> None:
        self.moods, self.schema = Moods(), ""
        self._directory = directory
        self.config = getattr(self, f"_{kind}")(request)

    def hang(self) -> AbstractContextManager[None]:
        return self._server.frozen() if self._server is not None else self.moods.being("frozen")

    def _file(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        self._server = None
        return {"kind": "file", "directory": str(self._directory / "first")}

    def _sql(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        server: Postgres = request.getfixturevalue("postgres")
        schema = self.schema = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        self._server = server
        return {
            "kind": "sql",
            "url": f"{server.url}?options={quote(f'-csearch_path={schema}')}",
        }

    def _grid(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        server: Valkey = request.getfixturevalue("valkey_server")
        self._server = server
        return {"kind": "grid", "url": server.url, "durable": True}

    def _object(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        server: Weed = request.getfixturevalue("weed")
        self._server = server
        options = {
            "endpoint": server.endpoint,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "region": "us-east-1",
        }
        url = f"s3://{server.bucket}/{uuid.uuid4().hex}"
        return {"kind": "object", "url": url, "options": options}


@pytest.fixture(params=["file", "sql", "grid", "object"])
def hanging(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hanging:
    hanging = Hanging(request.param, request, tmp_path)
    first = tmp_path / "first"
    monkeypatch.setattr(
        opening,
        "FileDisk",
        lambda path: MoodyDisk(path, hanging.moods if path == first else Moods()),
    )
    return hanging


def open_broker(
    tmp_path: Path, hanging: Hanging, settings: dict[str, Any] | None = None, **others: Any
) -> Broker:
    first = {**hanging.config, **ENDLESS, "capacity_bytes": 32 * MIB, "status": SOON}
    first |= settings or {}
    devices = {"first": first, **others}
    broker = Broker.open(
        tmp_path / "data", {"devices": devices, "rules": FIRST, "upkeep_every_ms": 20}
    )
    broker.declare(QUEUE)
    assert broker.engine.devices is not None
    states = broker.engine.devices
    wait_until(lambda: all(each.usable for each in states.states.values()), "opening")
    return broker


class Publishing:
    """A publish in a thread of its own, and what came of it."""

    def __init__(self, broker: Broker) -> None:
        self.receipts: list[Receipt] = []
        self.errors: list[EbbError] = []
        self._broker = broker
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        try:
            self.receipts = self._broker.publish("q", [Message(b"body %d" % n) for n in range(5)])
        except EbbError as error:
            self.errors.append(error)

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def refusals(broker: Broker, message_id: str) -> list[tuple[str, str]]:
    with broker.engine.lock:
        told = broker.engine.keeping.decisions.of(name_of(*parse_id(message_id)))
    return [(each.device, each.reason) for each in told if each.event == "refused"]


def test_a_publish_is_confirmed_by_another_device_when_the_first_hangs(
    tmp_path: Path, hanging: Hanging
) -> None:
    with open_broker(tmp_path, hanging, spare=SPARE) as broker:
        with hanging.hang():
            publishing = Publishing(broker)
            publishing.wait()
            assert publishing.errors == []
            found = holdings(broker)
            for receipt in publishing.receipts:
                assert found[name_of(*parse_id(receipt.id))].copies == {LOG, "spare"}
                assert refusals(broker, receipt.id) == [("first", "copy timeout")]
            assert len(broker.lease("q", 5)) == 5
        # What the first one takes when it goes on is what nobody asks it for any more.
        wait_until_settled(broker, "forgetting")
        assert stored(broker) == supposed(broker)
        assert stored(broker)["first"] == set()


def test_a_publish_is_told_when_its_only_device_hangs_and_gets_its_copies_later(
    tmp_path: Path, hanging: Hanging
) -> None:
    with open_broker(tmp_path, hanging) as broker:
        with hanging.hang():
            publishing = Publishing(broker)
            publishing.wait()
            assert [error.code for error in publishing.errors] == ["copy_timeout"]
            assert isinstance(publishing.errors[0], Overloaded)
            assert broker.stats("q")["depth"]["replicating"] == 5
            assert broker.lease("q", 5) == []
        wait_until(lambda: broker.stats("q")["depth"]["ready"] == 5, "copying")
        assert sorted(lease.body for lease in broker.lease("q", 5)) == [
            b"body %d" % n for n in range(5)
        ]
        wait_until_settled(broker, "forgetting")
        assert stored(broker) == supposed(broker)
        assert len(stored(broker)["first"]) == 5


@pytest.mark.parametrize("hanging", ["sql"], indirect=True)
def test_a_write_that_is_given_up_is_given_up_by_the_server_too(
    tmp_path: Path, hanging: Hanging, postgres: Postgres
) -> None:
    impatient = {"timeout_ms": 300}
    with (
        open_broker(tmp_path, hanging, impatient, spare=SPARE) as broker,
        psycopg.connect(postgres.url, autocommit=True) as connection,
    ):
        with connection.transaction():
            connection.execute(f"LOCK TABLE {hanging.schema}.ebbmq_copies IN EXCLUSIVE MODE")
            publishing = Publishing(broker)
            publishing.wait()
            assert len(publishing.receipts) == 5
            wait_until(lambda: broker.devices()[1].errors > 0, "giving up")
            # Otherwise it would be made once the lock is free, after it was asked to be deleted.
            # Another connection looks: within a transaction the server shows what it showed first.
            with psycopg.connect(postgres.url, autocommit=True) as looking:
                wait_until(lambda: under_way(looking) == 0, "giving up in the server")
        wait_until_settled(broker, "forgetting")
        assert stored(broker)["first"] == set()


@pytest.mark.parametrize("hanging", ["grid"], indirect=True)
def test_a_server_that_may_be_late_is_asked_what_it_has_once_it_cannot_be_any_more(
    tmp_path: Path, hanging: Hanging
) -> None:
    with open_broker(tmp_path, hanging, {"timeout_ms": 1_000}) as broker:
        assert broker.engine.devices is not None
        assert broker.engine.keeping.reconciler is not None
        port, store = broker.engine.devices.ports["first"], broker.engine.directory.identity.uuid
        broker.declare(QueueSpec("left"))
        sent = broker.publish("left", [Message(b"early")] * 2)
        broker.ack("left", [lease.token for lease in broker.lease("left", 2)])
        # The first may be found by the comparison of the start, the second only by a later one.
        for receipt in sent:
            port.put([Copy(Key(store, *parse_id(receipt.id)), b"late", 0)]).result()
            broker.engine.keeping.reconciler.compare_later("first")
            wait_until(lambda: stored(broker)["first"] == set(), "comparing")


def under_way(connection: psycopg.Connection[Any]) -> int:
    """How many puts a server is at."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s",
        ("%INSERT INTO ebbmq_copies%",),
    ).fetchone()
    return row[0] if row is not None else 0
