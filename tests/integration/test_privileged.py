"""Messages of privileged clients are for consumers with the permission."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Client, Message, QueueSpec
from ebbmq.errors import InvalidSpec
from ebbmq.node.server.users import Users
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 30.0
EVERY = ("*",)


class Scene:
    """A server, and a client for each of its users."""

    def __init__(self, server: Running, tokens: dict[str, str]) -> None:
        self.clients = {name: Client(server.url, token=token) for name, token in tokens.items()}

    def publish(self) -> None:
        self.clients["admin"].declare(QueueSpec("q", privileged=("sys*",)))
        self.clients["system"].publish("q", [Message(b"secret")] * 2)
        self.clients["shop"].publish("q", [Message(b"plain")] * 2)

    def leased_by(self, name: str, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline
            found += [lease.body for lease in self.clients[name].lease("q", 10, wait_ms=100)]
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    users = Users(data)
    tokens = {
        "admin": users.add("admin", {"manage": EVERY, "consume": EVERY}),
        "system": users.add("system", {"publish": EVERY}),
        "shop": users.add("shop", {"publish": EVERY, "consume": EVERY}),
        "auditor": users.add("auditor", {"consume": EVERY, "privileged": ("q",)}),
    }
    with Running(data) as server:
        scene = Scene(server, tokens)
        scene.publish()
        yield scene
        for client in scene.clients.values():
            client.close()


def test_a_consumer_without_the_permission_passes_them_by(scene: Scene) -> None:
    assert scene.leased_by("shop", 2) == [b"plain"] * 2
    assert scene.clients["shop"].lease("q", 10) == []


def test_a_consumer_with_the_permission_is_given_everything(scene: Scene) -> None:
    assert sorted(scene.leased_by("auditor", 4)) == [b"plain"] * 2 + [b"secret"] * 2


def test_what_one_passed_by_is_there_for_another(scene: Scene) -> None:
    scene.leased_by("shop", 2)
    assert scene.leased_by("auditor", 2) == [b"secret"] * 2


def test_a_name_gives_them_to_nobody_without_the_permission(scene: Scene) -> None:
    auditor, shop = scene.clients["auditor"], scene.clients["shop"]
    held = auditor.lease("q", 10, lease_timeout_ms=3_600_000, name="n")
    assert len(held) == 4
    plain = [lease.token for lease in held if lease.body == b"plain"]
    assert [lease.token for lease in shop.read_lease("q", "n")] == plain
    assert [lease.token for lease in shop.lease("q", 10, name="n")] == plain
    again = auditor.read_lease("q", "n")
    assert [(each.token, each.body) for each in again] == [(each.token, each.body) for each in held]
    auditor.ack("q", plain)
    assert shop.read_lease("q", "n") == shop.lease("q", 10, name="n") == []
    assert len(auditor.lease("q", 10, name="n")) == 2


def test_a_peek_shows_them_to_those_who_may_have_them(scene: Scene) -> None:
    assert [seen.body for seen in scene.clients["shop"].peek("q")] == [b"plain"] * 2
    assert len(scene.clients["auditor"].peek("q")) == 4


def test_to_manage_a_queue_is_not_to_read_it(scene: Scene) -> None:
    assert [seen.body for seen in scene.clients["admin"].peek("q")] == [b"plain"] * 2


def test_a_privileged_message_stays_one_after_a_restart_and_in_the_dead_queue(
    tmp_path: Path,
) -> None:
    with Broker.open(tmp_path / "data", {"client": "system"}) as broker:
        broker.declare(QueueSpec("dead"))
        broker.declare(QueueSpec("q", privileged=("system",), max_attempts=1, dead_queue="dead"))
        broker.publish("q", [Message(b"secret")])
    with Broker.open(tmp_path / "data") as broker:
        broker.retry("q", [lease.token for lease in broker.lease("q")])
        deadline = time.monotonic() + PATIENCE_S
        while not broker.stats("dead")["depth"]["ready"]:
            assert time.monotonic() < deadline
            broker.lease("q", wait_ms=10)
    users = Users(tmp_path / "data")
    tokens = {"shop": users.add("shop", {"consume": EVERY})}
    tokens["auditor"] = users.add("auditor", {"consume": EVERY, "privileged": EVERY})
    with Running(tmp_path / "data") as server:
        with Client(server.url, token=tokens["shop"]) as client:
            assert client.peek("dead") == []
        with Client(server.url, token=tokens["auditor"]) as client:
            assert [seen.body for seen in client.peek("dead")] == [b"secret"]


def test_a_pattern_that_cannot_be_a_name_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="privileged client"):
        QueueSpec("q", privileged=(" spaced ",))
