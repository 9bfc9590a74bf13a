"""Peers that are slow, idle, many or gone: a named refusal or a clean cut, and nothing is lost."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Message
from tests.served import Served, read_answer
from tests.serving import CERTIFICATES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POST = b"POST /v1/queues/q/%s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"


def until(holds: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def request(path: str, asked: dict[str, Any]) -> bytes:
    body = json.dumps(asked).encode()
    return POST % (path.encode(), len(body)) + body


def read_all(raw: socket.socket) -> bytes:
    answer = b""
    with suppress(ConnectionResetError):
        while part := raw.recv(1 << 20):
            answer += part
    return answer


def reset(raw: socket.socket) -> None:
    """Go away as a process that is killed with unread data does."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def depth(server: Served, state: str) -> int:
    found: int = server.broker.stats("q")["depth"][state]
    return found


def test_half_a_request_is_cut_off_by_name(tmp_path: Path) -> None:
    with Served(tmp_path, {"receive_timeout_ms": 300}) as server:
        for half in (b"POST /v1/queues/q/mess", request("messages", {"messages": []})[:-1]):
            with server.connect() as raw:
                raw.sendall(half)
                answer = read_all(raw)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"too_slow"' in answer
        until(lambda: server.context.pending_bytes == 0)


def test_a_sender_that_trickles_is_cut_off_however_it_keeps_on(tmp_path: Path) -> None:
    with Served(tmp_path, {"receive_timeout_ms": 300}) as server, server.connect() as raw:
        raw.sendall(POST % (b"messages", 10_000))
        raw.settimeout(0.01)
        answer = b""
        until_cut = time.monotonic() + 20
        while not answer:
            assert time.monotonic() < until_cut
            with suppress(TimeoutError):
                raw.sendall(b" ")
                answer = raw.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_who_goes_away_in_the_middle_of_a_request_leaves_nothing(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        for _ in range(50):
            raw = server.connect()
            raw.sendall(POST % (b"messages", 1 << 20) + b'{"messages":')
            reset(raw)
        until(lambda: server.context.pending_bytes == 0)
        assert server.ask("GET", "/v1/queues/q/messages").json == {"messages": []}


def test_a_connection_that_is_idle_is_closed_in_the_end(tmp_path: Path) -> None:
    with Served(tmp_path, {"idle_timeout_ms": 300}) as server:
        with server.connect() as fresh:
            assert read_all(fresh) == b""
        with server.connect() as used:
            used.sendall(request("acks", {"tokens": []}))
            assert read_all(used).count(b"HTTP/1.1 200 ") == 1


def test_a_thousand_idle_connections_leave_room_for_the_next(tmp_path: Path) -> None:
    with Served(tmp_path) as server, ExitStack() as held:
        for _ in range(1_000):
            held.enter_context(server.connect())
        answer = server.ask("POST", "/v1/queues/q/messages", {"messages": [{"text": "x"}]})
        assert answer.status == 200


def test_connections_over_the_limit_are_told_so(tmp_path: Path) -> None:
    with Served(tmp_path, {"connections_max": 3}) as server:
        with ExitStack() as held:
            first = [held.enter_context(server.connect()) for _ in range(3)]
            for raw in first:
                raw.sendall(request("acks", {"tokens": []}))
                assert read_answer(raw).startswith(b"HTTP/1.1 200 ")
            with server.connect() as raw:
                answer = read_all(raw)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"too_many_connections"' in answer
            assert b"retry-after: " in answer
        until(lambda: server.ask("GET", "/v1/queues/q/messages").status == 200)


def test_requests_beyond_the_memory_set_aside_are_told_when_to_try_again(tmp_path: Path) -> None:
    with Served(tmp_path, {"pending_bytes_max": 100_000}) as server:
        with server.connect() as slow:
            slow.sendall(POST % (b"messages", 90_000) + b" " * 80_000)
            until(lambda: server.context.pending_bytes == 90_000)
            answer = server.ask("POST", "/v1/queues/q/messages", b" " * 20_000)
            assert (answer.status, answer.json["code"]) == (429, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
            assert server.ask("POST", "/v1/queues/q/acks", {"tokens": []}).status == 200
        until(lambda: server.context.pending_bytes == 0)
        answer = server.ask("POST", "/v1/queues/q/messages", {"messages": [{"text": "x" * 90_000}]})
        assert answer.status == 200


def test_who_only_says_that_it_will_send_much_takes_nothing(tmp_path: Path) -> None:
    with (
        Served(tmp_path, {"pending_bytes_max": 2 << 20, "request_bytes_max": 1 << 20}) as server,
        ExitStack() as held,
    ):
        for _ in range(20):
            held.enter_context(server.connect()).sendall(POST % (b"messages", 1 << 20))
        until(lambda: server.context.pending_bytes == 20 * 65_536)
        body = {"messages": [{"text": "x" * 500_000}]}
        assert server.ask("POST", "/v1/queues/q/messages", body).status == 200


def test_a_poll_is_answered_when_a_message_comes(tmp_path: Path) -> None:
    with Served(tmp_path) as server, server.connect() as raw:
        raw.sendall(request("leases", {"wait_ms": 60_000}))
        until(lambda: server.context.ending)
        server.broker.publish("q", Message(b"x"))
        assert b'"body_b64":"eA=="' in read_answer(raw)
        until(lambda: not server.context.ending)


def test_a_poll_whose_peer_went_away_leases_nothing(tmp_path: Path) -> None:
    for leave in (socket.socket.close, reset):
        with Served(tmp_path / leave.__name__) as server:
            raw = server.connect()
            raw.sendall(request("leases", {"wait_ms": 60_000}))
            until(lambda: server.context.ending)  # called before the next round
            leave(raw)
            until(lambda: not server.context.ending)
            server.broker.publish("q", Message(b"x"))
            assert depth(server, "ready") == 1


def test_a_poll_is_answered_with_nothing_when_the_server_stops(tmp_path: Path) -> None:
    with Served(tmp_path) as server, server.connect() as raw:
        raw.sendall(request("leases", {"wait_ms": 60_000}))
        until(lambda: server.context.ending)
        server.loop.call_soon_threadsafe(server.context.drain)
        assert b'{"leases":[]}' in read_answer(raw)


@pytest.mark.parametrize("extra", [b"", b"connection: close\r\n"])
def test_leases_that_could_not_be_told_are_given_back(tmp_path: Path, extra: bytes) -> None:
    with Served(tmp_path) as server:
        server.broker.publish("q", [Message(bytes(1 << 20)) for _ in range(10)])
        raw = server.connect()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        head, _, body = request("leases", {"count": 10}).partition(b"\r\n")
        raw.sendall(head + b"\r\n" + extra + body)
        assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
        assert depth(server, "leased") == 10
        reset(raw)
        until(lambda: depth(server, "ready") == 10)
        assert [lease.failures for lease in server.broker.lease("q", 10)] == [0] * 10


def test_a_named_lease_waits_for_who_went_away(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        server.broker.publish("q", [Message(bytes(1 << 20)) for _ in range(10)])
        raw = server.connect()
        raw.sendall(request("leases", {"count": 10, "name": "mine"}))
        assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
        reset(raw)
        until(lambda: server.context.pending_bytes == 0)
        assert len(server.ask("GET", "/v1/queues/q/leases/mine").json["leases"]) == 10


def test_a_reader_that_does_not_read_is_cut_off_and_its_leases_are_given_back(
    tmp_path: Path,
) -> None:
    with Served(tmp_path, {"receive_timeout_ms": 500}) as server:
        server.broker.publish("q", [Message(bytes(1 << 20)) for _ in range(10)])
        with server.connect() as raw:
            raw.sendall(request("leases", {"count": 10}))
            until(lambda: depth(server, "leased") == 10)
            assert server.ask("POST", "/v1/queues/q/acks", {"tokens": []}).status == 200
            until(lambda: depth(server, "ready") == 10)
        assert server.context.pending_bytes == 0


def test_answers_that_are_not_read_count_as_memory_in_use(tmp_path: Path) -> None:
    with Served(tmp_path, {"pending_bytes_max": 1 << 20}) as server:
        server.broker.publish("q", [Message(bytes(1 << 20)) for _ in range(10)])
        with server.connect() as raw:
            raw.sendall(request("leases", {"count": 8}))
            until(lambda: server.context.pending_bytes > 1 << 20)
            for path in ("leases", "messages"):
                answer = server.ask("POST", f"/v1/queues/q/{path}", {"count": 1})
                assert (answer.status, answer.json["code"]) == (429, "overloaded")
            assert server.ask("GET", "/v1/queues/q/messages").status == 429
        until(lambda: server.context.pending_bytes == 0)


def test_a_body_of_the_largest_size_passes(tmp_path: Path) -> None:
    with Served(tmp_path, {"request_bytes_max": 128 << 20}) as server:
        text = base64.b64encode(bytes(64 << 20)).decode()
        sent = server.ask("POST", "/v1/queues/q/messages", {"messages": [{"body_b64": text}]})
        assert sent.status == 200
        got = server.ask("POST", "/v1/queues/q/leases", {}).json["leases"]
        assert got[0]["body_b64"] == text


def tls_of_both_sides() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(CERTIFICATES / "first.pem")
    return tls, client


def ask_securely(server: Served, client: ssl.SSLContext) -> bytes:
    with client.wrap_socket(server.connect(), server_hostname="localhost") as raw:
        raw.sendall(request("leases", {}))
        return read_answer(raw)


def is_served_securely(server: Served, client: ssl.SSLContext) -> bool:
    try:
        return ask_securely(server, client).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


def test_connections_that_say_nothing_before_tls_count_as_well(tmp_path: Path) -> None:
    tls, client = tls_of_both_sides()
    with Served(tmp_path, {"connections_max": 3}, tls=tls) as server:
        with ExitStack() as held:
            for _ in range(3):
                held.enter_context(server.connect())
            answer = ask_securely(server, client)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"too_many_connections"' in answer
            # However many of them there are, the server holds a few more than its limit.
            many = [held.enter_context(server.connect()) for _ in range(40)]
            assert many[-1].recv(1) == b""
        until(lambda: is_served_securely(server, client))


def test_who_says_nothing_before_tls_is_cut_off_and_no_longer_counts(tmp_path: Path) -> None:
    tls, client = tls_of_both_sides()
    with (
        Served(tmp_path, {"receive_timeout_ms": 300, "connections_max": 1}, tls=tls) as server,
        server.connect() as silent,
    ):
        assert silent.recv(1) == b""
        with server.connect() as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"HTTP/1.1 200" not in read_all(plain)
        until(lambda: is_served_securely(server, client))


def test_who_says_nothing_before_tls_does_not_hold_up_the_end(tmp_path: Path) -> None:
    tls, client = tls_of_both_sides()
    with ExitStack() as held:
        with Served(tmp_path, tls=tls) as server:
            silent = [held.enter_context(server.connect()) for _ in range(3)]
            assert ask_securely(server, client).startswith(b"HTTP/1.1 200 ")
        assert [read_all(raw) for raw in silent] == [b""] * 3


def test_all_of_it_works_over_tls(tmp_path: Path) -> None:
    tls, client = tls_of_both_sides()
    with Served(tmp_path, {"receive_timeout_ms": 500}, tls=tls) as server:
        with client.wrap_socket(server.connect(), server_hostname="localhost") as raw:
            raw.sendall(request("messages", {"messages": [{"text": "x"}]}))
            assert read_answer(raw).startswith(b"HTTP/1.1 200 ")
            raw.sendall(request("leases", {})[:-1])
            assert read_answer(raw).startswith(b"HTTP/1.1 408 ")
        with server.connect() as plain:
            plain.sendall(request("leases", {}))
            assert b"HTTP/1.1 200" not in read_all(plain)
