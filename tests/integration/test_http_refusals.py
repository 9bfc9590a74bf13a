"""What is not a request of ours is refused by name, and the server goes on."""

from __future__ import annotations

import base64
import http.client
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.served import Served, read_answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PUBLISH = "/v1/queues/q/messages"
DEEP = b"[" * 200_000
LONG = b'{"messages": [{"text": "x", "headers": {"a": "' + b"a" * 70_000 + b'"}}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: Path = tmp_path_factory.mktemp("refusals")
    with Served(data, {"request_bytes_max": 1 << 20}) as served:
        yield served
        assert served.context.pending_bytes == 0
        assert served.ask("GET", PUBLISH).status == 200


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (b"", "invalid_request", "`messages`"),
        (b"nonsense", "invalid_request", "not JSON"),
        (b'{"messages": [', "invalid_request", "not JSON"),
        (b"[]", "invalid_request", "Expected `object`"),
        (b"null", "invalid_request", "Expected `object`"),
        (b"{}", "invalid_request", "`messages`"),
        (b'{"messages": [{"text": "\xff"}]}', "invalid_request", "not UTF-8"),
        (b'{"messages": [{"text": "\\ud800"}]}', "invalid_request", "not JSON"),
        (b'{"messages": [{"text": "x"}], "importence": 3}', "invalid_request", "`importence`"),
        (b'{"messages": [{"text": "x", "boddy": 3}]}', "invalid_request", "`boddy`"),
        (b'{"messages": [{"text": 5}]}', "invalid_request", "messages[0].text"),
        (b'{"messages": [{"text": "x", "importance": "9"}]}', "invalid_request", ".importance"),
        (b'{"messages": [{"text": "x", "headers": {"a": 1}}]}', "invalid_request", "headers"),
        (b'{"messages": [{"text": "x", "durable": 1}]}', "invalid_request", "durable"),
        (b'{"messages": [{}]}', "invalid_request", "messages[0] has neither"),
        (b'{"messages": [{"text": "", "body_b64": ""}]}', "invalid_request", "has both"),
        (b'{"messages": [{"body_b64": "?"}]}', "invalid_message", "base64"),
        (b'{"messages": [{"body_b64": "QQ"}]}', "invalid_message", "base64"),
        (b'{"messages": [{"text": "x", "importance": 11}]}', "invalid_message", ".importance"),
        (b'{"messages": [{"text": "x", "ttl_ms": 0}]}', "invalid_message", ".ttl_ms"),
        (b'{"messages": [{"text": "x", "decay_rate": 2}]}', "invalid_message", "decay_rate"),
        (b'{"messages": [{"text": "x", "decay_rate": 1e999}]}', "invalid_request", "decay_rate"),
        (b'{"messages": [{"text": "x", "delay_ms": 1e99}]}', "invalid_request", "delay_ms"),
        (b'{"messages": [{"text": "x", "id": ""}]}', "invalid_message", ".id"),
        (b'{"messages": [], "confirm": "maybe"}', "invalid_message", "maybe"),
        (b'{"messages": ' + DEEP, "invalid_request", "messages"),
        (b'{"messages": [{"headers": {"a": ' + DEEP, "invalid_request", "headers"),
        (b'{"other": ' + DEEP, "invalid_request", "`other`"),
        (DEEP, "invalid_request", "Expected `object`"),
        (LONG, "invalid_message", "headers"),
    ],
)
def test_a_body_that_is_no_publish_is_refused_by_name(
    server: Served, body: bytes, code: str, told: str
) -> None:
    answer = server.ask("POST", PUBLISH, body)
    assert (answer.status, answer.json["code"]) == (400, code)
    assert told in answer.json["detail"]
    assert answer.json["action"]
    assert len(answer.body) < 2_000


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("leases", {"count": 0}, "invalid_message"),
        ("leases", {"count": 10**9}, "invalid_message"),
        ("leases", {"count": True}, "invalid_request"),
        ("leases", {"wait_ms": -1}, "invalid_message"),
        ("leases", {"wait": 1}, "invalid_request"),
        ("leases", {"name": "x" * 300}, "invalid_message"),
        ("acks", {}, "invalid_request"),
        ("acks", {"tokens": "abc"}, "invalid_request"),
        ("acks", {"tokens": [1]}, "invalid_request"),
        ("acks", {"tokens": [], "confirm": "x"}, "invalid_message"),
        ("retries", {"tokens": [], "delay_ms": -1}, "invalid_message"),
        ("retries", {"tokens": [], "delay": 1}, "invalid_request"),
        ("releases", {"tokens": None}, "invalid_request"),
        ("extensions", {"tokens": []}, "invalid_request"),
        ("extensions", {"tokens": [], "timeout_ms": 0}, "invalid_message"),
    ],
)
def test_arguments_out_of_bounds_are_refused_by_name(
    server: Served, path: str, body: dict[str, Any], code: str
) -> None:
    answer = server.ask("POST", f"/v1/queues/q/{path}", body)
    assert (answer.status, answer.json["code"]) == (400, code)


@pytest.mark.parametrize(
    "query",
    [
        "count=0",
        "count=x",
        "count=-1",
        "count=1&count=2",
        "state=gone",
        "kount=1",
        "count=",
        "%ff=1",
        "count=%D9%A1",
        "count=" + "9" * 5_000,
        "&".join(f"a{n}=1" for n in range(1_000)),
    ],
)
def test_parameters_that_make_no_sense_are_refused(server: Served, query: str) -> None:
    answer = server.ask("GET", f"{PUBLISH}?{query}")
    assert answer.status == 400
    assert answer.json["code"] in ("invalid_request", "invalid_message")


@pytest.mark.parametrize(
    "path", [PUBLISH, "/v1/queues/q/leases", "/v1/queues/q/acks", "/v1/topics/t/messages"]
)
@pytest.mark.parametrize("query", ["confirm=synced", "count=1", "%ff=1"])
def test_a_verb_whose_fields_are_in_its_body_takes_no_parameters(
    server: Served, path: str, query: str
) -> None:
    answer = server.ask("POST", f"{path}?{query}", {})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert "body" in answer.json["action"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/queues/none/messages", 404, "unknown_queue"),
        ("POST", "/v1/topics/none/messages", 404, "unknown_queue"),
        ("GET", "/v1/queues/none/leases/x", 404, "unknown_queue"),
        ("POST", "/v1/queues/%FF/messages", 400, "invalid_request"),
        ("DELETE", PUBLISH, 405, "method_not_allowed"),
        ("GET", "/v1/queues/q/leases", 405, "method_not_allowed"),
        ("POST", "/v1/queues/q/leases/x", 405, "method_not_allowed"),
        ("GET", "/v1/topics/t/messages", 405, "method_not_allowed"),
        ("GET", "/v1/queues/q/messages/1/2", 404, "unknown_path"),
        ("GET", "/nowhere", 404, "unknown_path"),
        ("GET", "/v1/queues/" + "x" * 60_000, 404, "unknown_path"),
        ("PUT", "/v1/queues/" + "x" * 6_000, 400, "invalid_spec"),
    ],
)
def test_paths_that_lead_nowhere_are_named(
    server: Served, method: str, path: str, status: int, code: str
) -> None:
    body = {"messages": [{"text": "x"}]} if method == "POST" else None
    answer = server.ask(method, path, body)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert (status == 405) == ("allow" in answer.headers)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/queues/q/messages/"),
        ("GET", "/v1/queues//q/messages"),
        ("GET", "/v1/queues/q/"),
        ("GET", "//v1/queues/q"),
        ("GET", "/v1/queues/"),
        ("DELETE", "/v1/queues/q/"),
        ("GET", "/metrics/"),
    ],
)
def test_a_slash_too_many_leads_nowhere_for_messages_and_management_alike(
    server: Served, method: str, path: str
) -> None:
    answer = server.ask(method, path)
    assert (answer.status, answer.json["code"]) == (404, "unknown_path")
    assert "slash" in answer.json["action"]


def test_a_request_over_the_limit_is_refused_whether_it_says_so_or_not(server: Served) -> None:
    body = base64.b64encode(bytes(2 << 20))
    said = server.ask("POST", PUBLISH, b'{"messages":[{"body_b64":"' + body + b'"}]}')
    assert (said.status, said.json["code"]) == (413, "too_large")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with suppress(OSError):
        connection.request("POST", PUBLISH, iter([bytes(65_536)] * 200), encode_chunked=True)
    answer = connection.getresponse()
    assert (answer.status, b"too_large" in answer.read()) == (413, True)
    connection.close()


def test_a_chunked_request_is_taken_as_well(server: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    parts = [b'{"messages":[{"te', b'xt":"x"}]}']
    connection.request("POST", PUBLISH, iter(parts), encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_request_that_asks_before_it_sends_is_told_to_go_on(server: Served) -> None:
    body = b'{"messages":[{"text":"x"}]}'
    with server.connect() as raw:
        raw.sendall(
            b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
            b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        assert read_answer(raw).startswith(b"HTTP/1.1 100 ")
        raw.sendall(body)
        assert read_answer(raw).startswith(b"HTTP/1.1 200 ")
    with server.connect() as raw:
        raw.sendall(
            b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
            b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n"
        )
        assert read_answer(raw).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x00\x01\x02\x03" * 100, b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"POST /v1/queues/q/messages HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: " + b"9" * 30 + b"\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000, b"431"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"\r\n" * 50_000, b"431"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    ],
)
def test_bytes_that_are_no_request_are_answered_and_cut(
    server: Served, sent: bytes, status: bytes
) -> None:
    with server.connect() as raw:
        raw.sendall(sent)
        answer = b""
        while part := raw.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b'"code":' in answer
    assert b"connection: close" in answer


def test_a_client_that_offers_another_protocol_is_answered_in_this_one(server: Served) -> None:
    body = b'{"messages":[{"text":"x"}]}'
    with server.connect() as raw:
        raw.sendall(
            b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\n"
            b"connection: upgrade\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        assert read_answer(raw).startswith(b"HTTP/1.1 200 ")
        raw.sendall(b"GET /v1/queues/q/leases/x HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_answer(raw).startswith(b"HTTP/1.1 200 ")


def test_requests_sent_one_after_the_other_are_answered_in_order(server: Served) -> None:
    one = b"GET /v1/queues/%s/leases/x HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with server.connect() as raw:
        raw.sendall(one % b"q" + one % b"none" + one % b"q")
        answer = b""
        while answer.count(b"HTTP/1.1 ") < 3 or not answer.endswith(b"}"):
            answer += raw.recv(65_536)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_a_bad_request_behind_one_that_waits_is_never_taken_for_its_answer(server: Served) -> None:
    server.broker.purge("q")
    poll = b'{"wait_ms": 60000}'
    with server.connect() as raw:
        raw.sendall(
            b"POST /v1/queues/q/leases HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            % len(poll)
            + poll
            + b"nonsense\r\n\r\n"
        )
        answer = b""
        with suppress(ConnectionResetError):
            answer = raw.recv(65_536)
    assert answer == b""
