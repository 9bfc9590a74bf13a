"""Messages of privileged clients are for consumers with the permission."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ebbmq import AsyncBroker, Broker, Client, Message, QueueSpec
from ebbmq.errors import InvalidSpec
from ebbmq.node.leasing import Consumer
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
        "worker": users.add("worker", {"consume": EVERY}),
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


def test_they_are_granted_at_once_beside_workers_that_poll(scene: Scene) -> None:
    auditor, system = scene.clients["auditor"], scene.clients["system"]
    assert len(scene.clients["shop"].lease("q", 10)) == 2
    stopped = threading.Event()

    def poll(name: str) -> int:
        count = 0
        while not stopped.is_set():
            assert scene.clients[name].lease("q", 10) == []
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(poll, name) for name in ("shop", "worker")]
        try:
            found = auditor.lease("q", 10)
            for _ in range(50):
                system.publish("q", [Message(b"secret")] * 2)
                found += auditor.lease("q", 10)
        finally:
            stopped.set()
        assert all(poll.result(PATIENCE_S) for poll in polls)
    assert [(lease.body, lease.attempt) for lease in found] == [(b"secret", 1)] * 102
    stats = scene.clients["admin"].stats("q")
    assert (stats["totals"]["leased"], stats["totals"]["released"]) == (104, 0)


def test_they_keep_their_place_in_order_and_fair_share(tmp_path: Path) -> None:
    spec = QueueSpec("q", privileged=("sys",), fair_share=4)
    others = Consumer("shop", privileged=False)

    async def story() -> None:
        async with await AsyncBroker.open(tmp_path / "data", {"client": "sys"}) as broker:
            await broker.declare(spec)
            await broker.publish("q", [Message(b"%d" % i, importance=1) for i in range(2)])
            await broker.publish("q", [Message(b"%d" % i, importance=9) for i in range(2, 6)])
            assert await broker.take("q", 9, 0, None, None, None, consumer=others) == []
            assert await broker.peek("q", 9) != []
            assert await broker.take("q", 9, 0, None, None, None, consumer=others) == []
            found = await broker.lease("q", 9)
            assert [lease.body for lease in found] == [b"2", b"3", b"4", b"0", b"5", b"1"]

    asyncio.run(story())


def test_a_long_poll_waits_for_what_the_consumer_may_have(scene: Scene) -> None:
    shop, worker, auditor = (scene.clients[name] for name in ("shop", "worker", "auditor"))
    scene.leased_by("auditor", 4)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(each.lease, "q", 10, wait_ms=60_000) for each in (shop, worker)]
        privileged = pool.submit(auditor.lease, "q", 10, wait_ms=60_000)
        scene.clients["system"].publish("q", Message(b"secret"))
        (lease,) = privileged.result(PATIENCE_S)
        assert (lease.body, lease.attempt) == (b"secret", 1)
        auditor.release("q", [lease.token])
        assert auditor.stats("q")["depth"]["ready"] == 1
        assert not any(each.done() for each in waiting)
        scene.clients["shop"].publish("q", [Message(b"plain")] * 20)
        assert [len(each.result(PATIENCE_S)) for each in waiting] == [10, 10]


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
