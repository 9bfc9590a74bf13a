"""What a client does when answers are lost, nobody answers, or it is not let in."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import ebbmq
from ebbmq import AsyncClient, Client, Message, QueueSpec, TopicSpec
from ebbmq.client import scripts
from ebbmq.errors import (
    EbbError,
    InvalidSpec,
    LeaseLost,
    TooLarge,
    Unauthenticated,
    UnknownPath,
    Unreachable,
)
from tests.relay import Relay
from tests.serving import Running
from tests.verbs import OVER_HTTP, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NUMBERS = itertools.count()
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Running(tmp_path_factory.mktemp("server") / "data") as server:
        yield server.url


@pytest.fixture
def direct(url: str) -> Iterator[Client]:
    """A client whose answers all arrive."""
    with Client(url) as client:
        yield client


@pytest.fixture
def relay(url: str) -> Iterator[Relay]:
    with Relay(url) as relay:
        yield relay


@pytest.fixture(params=OVER_HTTP)
def open_client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens clients that are closed when the test ends."""
    opened: list[Opened] = []

    def open_(url: str, **options: Any) -> Any:
        opened.append(Opened(request.param, tmp_path, url, **options))
        return opened[-1].broker

    yield open_
    for each in opened:
        each.__exit__()


@pytest.fixture
def client(open_client: Callable[..., Any], relay: Relay) -> Any:
    """A client whose answers the relay may lose; it has been answered before."""
    client = open_client(relay.url)
    client.queues()
    return client


@pytest.fixture
def queue(direct: Client) -> str:
    name = f"q-{next(NUMBERS)}"
    direct.declare(QueueSpec(name, retry_delay_ms=0))
    return name


class TestLostAnswers:
    @pytest.mark.parametrize("lose", ["lose_answers", "lose_requests", "answer_instead"])
    def test_a_publish_is_stored_once(
        self, client: Any, relay: Relay, direct: Client, queue: str, lose: str
    ) -> None:
        getattr(relay, lose)("/messages", 2)
        receipts = client.publish(queue, [Message(b"a"), Message(b"b")])
        assert relay.requests["messages"] == 3
        assert [receipt.duplicate for receipt in receipts] == [False, False]
        leases = direct.lease(queue, count=10)
        assert [lease.body for lease in leases] == [b"a", b"b"]
        assert [lease.id for lease in leases] == [receipt.id for receipt in receipts]

    def test_a_publish_to_a_topic_is_not_tried_twice(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        direct.declare_topic(TopicSpec("news"))
        direct.subscribe("news", queue)
        relay.lose_answers("/messages")
        with pytest.raises(Unreachable) as caught:
            client.publish_topic("news", [Message(b"m")])
        assert "may be stored" in caught.value.action
        assert direct.stats(queue)["depth"]["ready"] == 1
        direct.unsubscribe("news", queue)

    @pytest.mark.parametrize("lose", ["lose_answers", "lose_requests"])
    def test_an_ack_that_was_carried_out_is_no_lost_lease(
        self, client: Any, relay: Relay, direct: Client, queue: str, lose: str
    ) -> None:
        direct.publish(queue, [Message(b"%d" % n) for n in range(3)])
        tokens = [lease.token for lease in direct.lease(queue, count=3)]
        getattr(relay, lose)("/acks")
        client.ack(queue, tokens)
        assert relay.requests["acks"] == 2
        assert sum(direct.stats(queue)["depth"].values()) == 0

    def test_an_ack_that_came_too_late_is_a_lost_lease_also_when_tried_twice(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        direct.publish(queue, [Message(b"late"), Message(b"in time")])
        (late,) = direct.lease(queue, lease_timeout_ms=1)
        (in_time,) = direct.lease(queue, wait_ms=PATIENCE_MS)
        (again,) = direct.lease(queue, wait_ms=PATIENCE_MS)
        assert {in_time.id, again.id} > {late.id}
        mine = in_time if in_time.id != late.id else again
        relay.lose_answers("/acks")
        with pytest.raises(LeaseLost) as caught:
            client.ack(queue, [late.token, mine.token, "no token"])
        assert caught.value.tokens == [late.token, "no token"]

    @pytest.mark.parametrize(("verb", "path"), [("retry", "/retries"), ("release", "/releases")])
    def test_a_lease_that_was_given_back_is_given_back_once(
        self, client: Any, relay: Relay, direct: Client, queue: str, verb: str, path: str
    ) -> None:
        direct.publish(queue, [Message(b"m")])
        (lease,) = direct.lease(queue)
        relay.lose_answers(path)
        getattr(client, verb)(queue, [lease.token])
        (again,) = direct.lease(queue, wait_ms=PATIENCE_MS)
        assert again.failures == (verb == "retry")

    def test_a_named_lease_is_found_again(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        direct.publish(queue, [Message(b"a"), Message(b"b")])
        relay.lose_answers("/leases")
        (lease,) = client.lease(queue, name="mine")
        assert (lease.body, lease.attempt) == (b"a", 1)
        assert direct.stats(queue)["depth"]["leased"] == 1

    def test_a_lease_without_a_name_is_not_asked_for_twice(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        direct.publish(queue, [Message(b"m")])
        relay.lose_answers("/leases")
        with pytest.raises(Unreachable) as caught:
            client.lease(queue)
        assert "name" in caught.value.action
        assert relay.requests["leases"] == 1

    def test_a_consume_loop_sees_every_message_once(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        direct.publish(queue, [Message(b"%d" % n) for n in range(20)])
        relay.lose_answers("/leases", 3)
        relay.lose_answers("/acks", 5)
        relay.lose_requests("/acks", 3)
        seen = [
            (message.body, message.attempt)
            for message in client.consume(queue, batch=4, wait_ms=0, stop_when_empty=True)
        ]
        assert seen == [(b"%d" % n, 1) for n in range(20)]
        assert direct.stats(queue)["totals"]["acked"] == 20

    def test_what_counts_is_not_done_twice(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        direct.publish(queue, [Message(b"m")])
        relay.lose_answers("/purge")
        with pytest.raises(Unreachable) as caught:
            client.purge(queue)
        assert "may have been carried out" in caught.value.action
        assert relay.requests["purge"] == 1
        assert direct.stats(queue)["depth"]["ready"] == 0

    def test_a_queue_that_was_deleted_is_no_unknown_queue(
        self, client: Any, relay: Relay, queue: str
    ) -> None:
        relay.lose_answers(f"/{queue}")
        client.delete(queue)
        assert relay.requests[queue] == 2


class TestConnections:
    def test_calls_share_a_connection(self, client: Any, relay: Relay, queue: str) -> None:
        for _ in range(20):
            client.publish(queue, [Message(b"m")])
            client.ack(queue, [lease.token for lease in client.lease(queue, name="x")])
        assert relay.connections == 1

    def test_a_server_that_was_started_again_is_no_error(
        self, client: Any, relay: Relay, direct: Client, queue: str
    ) -> None:
        for _ in range(5):
            relay.disconnect_all()
            client.publish(queue, [Message(b"m")])
            client.lease(queue)
        assert direct.stats(queue)["depth"]["leased"] == 5

    def test_a_server_that_comes_back_in_time_is_no_error(
        self, open_client: Callable[..., Any], url: str, queue: str
    ) -> None:
        with Relay(url) as relay:
            client = open_client(relay.url, timeout_ms=PATIENCE_MS)
            client.queues()
            port = int(relay.url.rpartition(":")[2])
        done = threading.Event()

        def publish() -> None:
            client.publish(queue, [Message(b"m")])
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        with Relay(url, port):
            assert done.wait(PATIENCE_MS / 1_000)
        thread.join()

    def test_nobody_there_is_told_at_once(self, open_client: Callable[..., Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        client = open_client(f"http://127.0.0.1:{port}", timeout_ms=10 * PATIENCE_MS)
        with pytest.raises(Unreachable) as caught:
            client.queues()
        assert str(port) in caught.value.detail
        assert "refused" in caught.value.detail
        assert "ebbmq serve" in caught.value.action

    def test_an_unknown_machine_is_told_at_once(self, open_client: Callable[..., Any]) -> None:
        client = open_client("http://no-such-machine.invalid", timeout_ms=10 * PATIENCE_MS)
        with pytest.raises(Unreachable) as caught:
            client.queues()
        assert "no-such-machine.invalid" in caught.value.detail

    def test_tries_end_with_the_time_of_the_call(
        self, open_client: Callable[..., Any], url: str, queue: str
    ) -> None:
        with Relay(url) as relay:
            client = open_client(relay.url, timeout_ms=300)
            client.queues()
        with pytest.raises(Unreachable):
            client.publish(queue, [Message(b"m")])

    def test_a_server_that_says_nothing_is_not_waited_for_longer_than_the_time(
        self, open_client: Callable[..., Any]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = open_client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_ms=200)
            with pytest.raises(Unreachable) as caught:
                client.queues()
        assert "timed out" in caught.value.detail

    @pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH\r\n", b"", b"HTTP/1.1 200 OK\r\ncont"])
    def test_what_is_no_server_of_ours_is_told(
        self, open_client: Callable[..., Any], said: bytes
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:

            def answer() -> None:
                connection, _ = other.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(said)

            thread = threading.Thread(target=answer)
            thread.start()
            client = open_client(f"http://127.0.0.1:{other.getsockname()[1]}")
            with pytest.raises(Unreachable):
                client.queues()
            thread.join()

    def test_a_path_that_is_not_the_servers_is_told(
        self, open_client: Callable[..., Any], url: str
    ) -> None:
        client = open_client(f"{url}/elsewhere")
        with pytest.raises(UnknownPath):
            client.queues()

    def test_a_request_that_is_too_large_is_refused_by_name(
        self, open_client: Callable[..., Any], url: str, queue: str
    ) -> None:
        client = open_client(url)
        with pytest.raises(TooLarge) as caught:
            client.publish(queue, [Message(bytes(40_000_000))])
        assert caught.value.code == "too_large"
        assert caught.value.action
        assert client.publish(queue, [Message(b"small")])


def test_threads_share_a_client(url: str, queue: str) -> None:
    with Client(url) as client:

        def work() -> None:
            for _ in range(25):
                client.publish(queue, [Message(b"m")], confirm="written")
                for lease in client.lease(queue):
                    client.ack(queue, [lease.token])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while leases := client.lease(queue, count=100):
            client.ack(queue, [lease.token for lease in leases])
        assert client.stats(queue)["totals"]["acked"] == 200


def test_tasks_share_a_client(url: str, queue: str) -> None:
    async def story() -> int:
        async with AsyncClient(url) as client:
            await asyncio.gather(
                *(client.publish(queue, [Message(b"m")], confirm="written") for _ in range(300))
            )
            depth: int = (await client.stats(queue))["depth"]["ready"]
            return depth

    assert asyncio.run(story()) == 300


def test_long_polls_do_not_hold_up_other_calls(url: str, queue: str) -> None:
    async def story() -> int:
        async with AsyncClient(url) as client:
            polls = [
                asyncio.create_task(client.lease(queue, wait_ms=PATIENCE_MS)) for _ in range(150)
            ]
            await client.publish(queue, [Message(b"m")] * 150)
            return sum(len(leases) for leases in await asyncio.gather(*polls))

    assert asyncio.run(story()) == 150


def test_a_cancelled_call_leaves_the_client_usable(url: str, queue: str) -> None:
    async def story() -> None:
        async with AsyncClient(url) as client:
            poll = asyncio.create_task(client.lease(queue, wait_ms=PATIENCE_MS))
            await client.queues()
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            await client.publish(queue, [Message(b"m")])
            (lease,) = await client.lease(queue, wait_ms=PATIENCE_MS)
            assert lease.body == b"m"

    asyncio.run(story())


def _publish_in_child(client: Client, queue: str) -> None:
    client.publish(queue, [Message(b"child")] * 3)


def test_a_forked_child_has_connections_and_ids_of_its_own(url: str, queue: str) -> None:
    with Client(url) as client:
        client.publish(queue, [Message(b"before")])
        child = multiprocessing.get_context("fork").Process(
            target=_publish_in_child, args=(client, queue)
        )
        child.start()
        receipts = client.publish(queue, [Message(b"parent")] * 3)
        child.join(PATIENCE_MS / 1_000)
        assert child.exitcode == 0
        assert not any(receipt.duplicate for receipt in receipts)
        assert client.stats(queue)["depth"]["ready"] == 7


def test_the_message_of_a_token_is_the_one_that_was_leased(direct: Client, queue: str) -> None:
    direct.publish(queue, [Message(b"m")] * 300)
    for lease in direct.lease(queue, count=300):
        assert scripts.message_id(lease.token) == lease.id
    assert scripts.message_id("no token") is None
    assert scripts.message_id("00") is None


def test_a_wait_longer_than_a_poll_ends_with_the_message(
    direct: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "POLL_MS", 20)
    publisher = threading.Timer(0.1, lambda: direct.publish(queue, [Message(b"m")]))
    publisher.start()
    (lease,) = direct.lease(queue, wait_ms=PATIENCE_MS)
    publisher.join()
    assert lease.body == b"m"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("localhost:8080", {}),
        ("ftp://localhost", {}),
        ("http://", {}),
        ("http://user:secret@localhost", {}),
        ("http://localhost:port", {}),
        ("http://localhost/?a=b", {}),
        ("http://localhost", {"token": "two\nlines secret"}),
        ("http://localhost", {"token": ""}),
        ("http://localhost", {"ca_file": "ca.pem"}),
        ("https://localhost", {"ca_file": "/no/such/file.pem"}),
        (None, {}),
        ("http://localhost", {"timeout_ms": 0}),
        ("http://localhost", {"timeout_ms": None}),
        ("http://localhost", {"timeout_ms": "30 s"}),
    ],
)
@pytest.mark.parametrize("cls", [ebbmq.Client, ebbmq.AsyncClient])
def test_an_address_that_cannot_be_is_refused_without_its_secrets(
    cls: Any, url: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        cls(url, **options)
    assert caught.value.action
    assert "secret" not in str(caught.value)


def test_a_wrong_token_is_told(open_client: Callable[..., Any], url: str) -> None:
    client = open_client(url, token="not-one-of-yours")
    with pytest.raises(Unauthenticated) as caught:
        client.publish("q", [Message(b"m")])
    assert isinstance(caught.value, EbbError)
    assert "not-one-of-yours" not in str(caught.value)


def test_waiting_is_not_counted_as_silence(
    open_client: Callable[..., Any], url: str, queue: str
) -> None:
    client = open_client(url, timeout_ms=1_000)
    client.queues()
    started = time.monotonic()
    assert client.lease(queue, wait_ms=1_500) == []
    assert time.monotonic() - started >= 1.4
