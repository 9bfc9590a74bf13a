"""The message verbs over HTTP: what goes in comes out, and partial success is told."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Message, QueueSpec, TopicSpec
from tests.served import Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as served:
        yield served


def publish(server: Served, *messages: dict[str, Any], queue: str = "q") -> list[dict[str, Any]]:
    answer = server.ask("POST", f"/v1/queues/{queue}/messages", {"messages": messages})
    assert answer.status == 200, answer.body
    receipts: list[dict[str, Any]] = answer.json["receipts"]
    return receipts


def lease(server: Served, **asked: Any) -> list[dict[str, Any]]:
    answer = server.ask("POST", "/v1/queues/q/leases", asked)
    assert answer.status == 200, answer.body
    leases: list[dict[str, Any]] = answer.json["leases"]
    return leases


def test_a_body_comes_back_exactly_as_it_was_published(server: Served) -> None:
    raw = bytes(range(256))
    publish(
        server,
        {"body_b64": base64.b64encode(raw).decode()},
        {"text": "grüße \u0000 \U0001f30a"},
        {"body_b64": ""},
        {"text": ""},
        {"body_b64": base64.b64encode(b"\xff").decode(), "type": "TEXT"},
    )
    found = lease(server, count=10)
    assert base64.b64decode(found[0]["body_b64"]) == raw
    assert found[1]["text"] == "grüße \u0000 \U0001f30a"
    assert "body_b64" not in found[1]
    assert found[2]["body_b64"] == ""
    assert found[3]["text"] == ""
    assert base64.b64decode(found[4]["body_b64"]) == b"\xff"
    assert [each["type"] for each in found] == ["BYTE", "TEXT", "BYTE", "TEXT", "TEXT"]


def test_a_lease_shows_every_field_of_the_message(server: Served) -> None:
    publish(
        server,
        {"text": "x", "importance": 7, "ttl_ms": 60_000, "decay_rate": 0.5, "headers": {"a": "b"}},
    )
    found = lease(server)[0]
    assert (found["importance"], found["ttl_ms"], found["headers"]) == (7, 60_000, {"a": "b"})
    assert 6 < found["current_importance"] <= 7
    assert (found["attempt"], found["failures"], found["latency_history"]) == (1, 0, [])
    assert found["decay_rate"] == pytest.approx(0.5, abs=1 / 256)
    assert found["deadline_ms"] > found["enqueued_at_ms"]
    assert found["band"] == 7


def test_every_lease_and_peek_shows_how_the_message_is_kept(server: Served) -> None:
    publish(server, {"text": "x"}, {"text": "y", "headers": {"a": "b"}}, *[{"body_b64": ""}] * 30)
    shown = [*lease(server), *lease(server), *lease(server, count=20)]
    shown += server.ask("GET", "/v1/queues/q/messages").json["messages"]
    assert [(each["tier"], each["copies"], each["copies_acked"]) for each in shown] == [
        ("log", ["log"], 1)
    ] * len(shown)
    assert {(each["access_count"], each["access_rate"]) for each in shown} == {(0, 0.0)}
    assert {(each["removals_acked"], each["replica_target"]) for each in shown} == {(0, 1)}
    assert all(0 <= each["decay_score"] < 1e-2 for each in shown)


def test_a_producers_id_is_stored_once(server: Served) -> None:
    first = publish(server, {"text": "x", "id": "one"})
    again = publish(server, {"text": "x", "id": "one"})
    assert first == [{"id": first[0]["id"], "duplicate": False}]
    assert again == [{"id": first[0]["id"], "duplicate": True}]


def test_valid_tokens_apply_and_the_others_are_named(server: Served) -> None:
    publish(server, *[{"text": str(n)} for n in range(4)])
    tokens = [each["token"] for each in lease(server, count=4)]
    acks = server.ask("POST", "/v1/queues/q/acks", {"tokens": [tokens[0], "nonsense"]})
    assert (acks.status, acks.json) == (
        200,
        {"acked": 1, "refused": [{"token": "nonsense", "code": "lease_lost"}]},
    )
    retries = server.ask("POST", "/v1/queues/q/retries", {"tokens": tokens[:2], "delay_ms": 0})
    assert retries.json == {
        "retried": 1,
        "refused": [{"token": tokens[0], "code": "lease_lost"}],
    }
    releases = server.ask("POST", "/v1/queues/q/releases", {"tokens": [tokens[2]]})
    assert releases.json == {"released": 1, "refused": []}
    extensions = server.ask(
        "POST", "/v1/queues/q/extensions", {"tokens": [tokens[3]], "timeout_ms": 90_000}
    )
    assert extensions.json == {"extended": 1, "refused": []}
    again = lease(server, count=9)
    assert sorted((each["text"], each["failures"]) for each in again) == [("1", 1), ("2", 0)]


def test_acks_confirmed_as_synced_are_answered(server: Served) -> None:
    publish(server, {"text": "x"})
    tokens = [each["token"] for each in lease(server)]
    acks = server.ask("POST", "/v1/queues/q/acks", {"tokens": tokens, "confirm": "synced"})
    assert acks.json == {"acked": 1, "refused": []}


def test_a_named_lease_is_read_again_while_it_is_held(server: Served) -> None:
    publish(server, *[{"text": str(n)} for n in range(5)])
    held = lease(server, count=4, name="worker 1/a")
    path = "/v1/queues/q/leases/worker%201%2Fa"
    again = server.ask("GET", path).json["leases"]
    assert [each["token"] for each in again] == [each["token"] for each in held]
    server.ask("POST", "/v1/queues/q/acks", {"tokens": [held[1]["token"]]})
    part = server.ask("GET", f"{path}?from=1&to=3").json["leases"]
    assert [each["text"] for each in part] == ["2"]
    assert server.ask("GET", "/v1/queues/q/leases/other").json == {"leases": []}


def test_leases_are_held_by_tokens_alone_and_read_by_them_in_parts(server: Served) -> None:
    for importance in (4, 3, 2, 1):
        server.broker.publish("q", Message(bytes(6 << 20), importance=importance))
    asked = {"count": 9, "name": "n", "tokens_only": True}
    held = server.ask("POST", "/v1/queues/q/leases", asked).json
    assert held["leases"] == []
    tokens = held["tokens"]
    assert len(tokens) == 4
    assert server.ask("POST", "/v1/queues/q/leases", asked).json == held
    path = "/v1/queues/q/reads"
    first = server.ask("POST", path, {"tokens": ["none", *tokens]}).json
    assert [each["importance"] for each in first["leases"]] == [4, 3]
    assert first["next"] == 3
    server.ask("POST", "/v1/queues/q/acks", {"tokens": tokens[2:3]})
    rest = server.ask("POST", path, {"tokens": tokens[2:]}).json
    assert [(each["importance"], each["token"]) for each in rest["leases"]] == [(1, tokens[3])]
    assert "next" not in rest
    assert server.ask("POST", path, {"tokens": []}).json == {"leases": []}
    named = server.ask("GET", "/v1/queues/q/leases/n").json
    assert ([each["importance"] for each in named["leases"]], named["next"]) == ([4, 3], 3)


def test_a_token_reads_and_settles_its_lease_after_a_restart(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        publish(server, {"text": "a"}, {"text": "b"})
        tokens = [each["token"] for each in lease(server, count=9, lease_timeout_ms=3_600_000)]
    with Served(tmp_path / "data") as server:
        read = server.ask("POST", "/v1/queues/q/reads", {"tokens": tokens}).json["leases"]
        assert [(each["text"], each["token"]) for each in read] == [*zip("ab", tokens, strict=True)]
        acks = server.ask("POST", "/v1/queues/q/acks", {"tokens": tokens})
        assert acks.json == {"acked": 2, "refused": []}


def test_a_queue_is_looked_at_in_parts_by_the_order_messages_came_in(server: Served) -> None:
    publish(server, *[{"text": str(n), "importance": 1 + n} for n in range(5)])
    publish(server, {"text": "later", "delay_ms": 60_000})
    (partition,) = server.ask("GET", "/v1/queues/q").json["stats"]["partitions"]
    path = f"/v1/queues/q/messages?up_to={partition['newest_id']}"
    first = server.ask("GET", f"{path}&count=2").json["messages"]
    assert [each["text"] for each in first] == ["0", "1"]
    assert first[0]["id"] == partition["oldest_id"]
    rest = server.ask("GET", f"{path}&after={first[-1]['id']}").json["messages"]
    assert [each["text"] for each in rest] == ["2", "3", "4"]
    assert server.ask("GET", f"{path}&after={rest[-1]['id']}").json == {"messages": []}
    assert server.ask("GET", f"{path}&after=ff-1").json == {"messages": []}


def test_a_peek_changes_nothing(server: Served) -> None:
    publish(server, {"text": "a"}, {"text": "b"}, {"text": "later", "delay_ms": 60_000})
    seen = server.ask("GET", "/v1/queues/q/messages?count=1").json["messages"]
    assert [(each["text"], each["state"]) for each in seen] == [("a", "ready")]
    later = server.ask("GET", "/v1/queues/q/messages?state=scheduled").json["messages"]
    assert [each["text"] for each in later] == ["later"]
    assert [each["text"] for each in lease(server, count=9)] == ["a", "b"]


def test_a_topic_publishes_to_every_queue_subscribed(server: Served) -> None:
    server.broker.declare(QueueSpec("r"))
    server.broker.declare_topic(TopicSpec("news"))
    server.broker.subscribe("news", "q")
    server.broker.subscribe("news", "r")
    answer = server.ask("POST", "/v1/topics/news/messages", {"messages": [{"text": "x"}]})
    assert answer.status == 200
    assert {queue: len(each) for queue, each in answer.json["receipts"].items()} == {"q": 1, "r": 1}
    assert lease(server)[0]["text"] == "x"


def test_a_queue_may_have_any_printable_name(server: Served) -> None:
    server.broker.declare(QueueSpec("a/b ü%"))
    publish(server, {"text": "x"}, queue="a%2Fb%20%C3%BC%25")
    assert server.broker.stats("a/b ü%")["depth"]["ready"] == 1


def test_a_lease_without_a_body_asks_for_one_message(server: Served) -> None:
    publish(server, {"text": "a"}, {"text": "b"})
    answer = server.ask("POST", "/v1/queues/q/leases")
    assert [each["text"] for each in answer.json["leases"]] == ["a"]


def test_a_large_answer_is_cut_at_its_bound_and_the_rest_stays(server: Served) -> None:
    body = base64.b64encode(bytes(6 << 20)).decode()
    for _ in range(4):
        publish(server, {"body_b64": body})
    assert len(lease(server, count=4)) == 2
    assert server.broker.stats("q")["depth"]["ready"] == 2


def test_a_full_queue_says_when_to_try_again(server: Served) -> None:
    server.broker.declare(QueueSpec("q", max_messages=1), change=True)
    publish(server, {"text": "x"})
    answer = server.ask("POST", "/v1/queues/q/messages", {"messages": [{"text": "y"}]})
    assert (answer.status, answer.json["code"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json["action"]


def test_a_draining_server_takes_no_messages_and_settles(server: Served) -> None:
    publish(server, {"text": "x"})
    token = lease(server)[0]["token"]
    server.loop.call_soon_threadsafe(server.context.drain)
    for path in ("messages", "leases"):
        answer = server.ask("POST", f"/v1/queues/q/{path}", {"messages": []})
        assert (answer.status, answer.json["code"]) == (503, "draining")
        assert int(answer.headers["retry-after"]) > 0
    acks = server.ask("POST", "/v1/queues/q/acks", {"tokens": [token]})
    assert acks.json["acked"] == 1
