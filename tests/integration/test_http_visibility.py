"""Who may manage what: a token sees, touches and reaches nothing its scopes do not cover."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ebbmq import Message, QueueSpec, TopicSpec
from ebbmq.node.server.users import Users
from tests.served import Answer, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Secured(NamedTuple):
    served: Served
    tokens: dict[str, str]
    secret_id: str

    def ask(self, user: str | None, method: str, path: str, body: object = None) -> Answer:
        headers = {"authorization": f"Bearer {self.tokens[user]}"} if user else {}
        return self.served.ask(method, path, body, headers)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    data = tmp_path / "data"
    with Served(data) as served:
        broker = served.broker
        for queue in ("mine", "mine.dead", "secret"):
            broker.declare(QueueSpec(queue))
        broker.declare_topic(TopicSpec("mine"))
        broker.declare_topic(TopicSpec("secret-topic"))
        broker.subscribe("mine", "secret")
        broker.subscribe("mine", "mine")
        [receipt] = broker.publish("secret", Message(b"s3cret"))
        users = Users(data)
        tokens = {
            "all": users.add("all", {"publish": ("*",), "consume": ("*",), "manage": ("*",)}),
            "owner": users.add(
                "owner",
                {"publish": ("mine*",), "consume": ("mine*",), "manage": ("mine*", "topic:mine")},
            ),
            "publisher": users.add("publisher", {"publish": ("mine",)}),
            "consumer": users.add("consumer", {"consume": ("mine",)}),
        }
        yield Secured(served, tokens, receipt.id)


#: (method, path below the queue, body, the scope it takes)
VERBS = [
    ("PUT", "", None, "manage"),
    ("POST", "/pause", None, "manage"),
    ("POST", "/resume", None, "manage"),
    ("POST", "/purge", None, "manage"),
    ("POST", "/redrive", None, "manage"),
    ("PUT", "/decay-factor", {"factor": 1, "until_ms": (1 << 48) - 1}, "manage"),
    ("GET", "/removals", None, "consume"),
    ("GET", "", None, "any"),
    ("DELETE", "", None, "manage"),
]


@pytest.mark.parametrize(("method", "rest", "body", "scope"), VERBS)
def test_each_verb_takes_its_scope(
    secured: Secured, method: str, rest: str, body: object, scope: str
) -> None:
    holders = {
        "manage": {"owner"},
        "consume": {"owner", "consumer"},
        "any": {"owner", "consumer", "publisher"},
    }[scope]
    for user in ("publisher", "consumer", "owner"):
        answer = secured.ask(user, method, f"/v1/queues/mine{rest}", body)
        if user in holders:
            assert answer.status in {200, 204}, (user, answer.body)
        else:
            assert answer.json["code"] == "forbidden", (user, answer.body)


@pytest.mark.parametrize(("method", "rest", "body", "scope"), VERBS)
def test_a_queue_that_may_not_be_seen_answers_as_one_that_is_not_there(
    secured: Secured, method: str, rest: str, body: object, scope: str
) -> None:
    for user in ("owner", "publisher", "consumer"):
        there = secured.ask(user, method, f"/v1/queues/secret{rest}", body)
        absent = secured.ask(user, method, f"/v1/queues/absent{rest}", body)
        assert there.status == absent.status == 404
        assert there.json == {
            key: value.replace("absent", "secret") for key, value in absent.json.items()
        }
    assert secured.served.broker.stats("secret")["depth"]["ready"] == 1


@pytest.mark.parametrize(("method", "rest", "body", "scope"), VERBS)
def test_without_a_token_nothing_is_told(
    secured: Secured, method: str, rest: str, body: object, scope: str
) -> None:
    answer = secured.ask(None, method, f"/v1/queues/mine{rest}", body)
    assert (answer.status, answer.json["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("user", ["owner", "publisher", "consumer"])
@pytest.mark.parametrize(
    "path", ["/v1/queues", "/v1/topics", "/metrics", "/", "/health/ready", "/v1/queues/mine"]
)
def test_nothing_that_is_shown_names_a_queue_of_others(
    secured: Secured, user: str, path: str
) -> None:
    assert b"secret" not in secured.ask(user, "GET", path).body
    assert b"secret" in secured.ask("all", "GET", path).body or "health" in path or "mine" in path


def test_a_message_of_a_queue_of_others_is_like_one_that_never_was(secured: Secured) -> None:
    path = f"/v1/messages/{secured.secret_id}"
    assert secured.ask("all", "GET", path).json["queue"] == "secret"
    hidden = secured.ask("owner", "GET", path).json
    never = secured.ask("owner", "GET", "/v1/messages/ffff-1").json
    assert hidden == {**never, "id": secured.secret_id}


def test_a_message_of_a_deleted_queue_is_shown_to_who_sees_everything(secured: Secured) -> None:
    secured.served.broker.delete("secret")
    path = f"/v1/messages/{secured.secret_id}"
    assert secured.ask("all", "GET", path).json["state"] == "removed"
    assert secured.ask("owner", "GET", path).json["state"] == "unknown"


def test_a_dead_queue_cannot_be_one_that_may_not_be_published_to(secured: Secured) -> None:
    def change(name: str) -> int:
        return secured.ask("owner", "PATCH", "/v1/queues/mine", {"dead_queue": name}).status

    for name in ("secret", "not-there"):
        answer = secured.ask("owner", "PUT", "/v1/queues/mine", {"dead_queue": name})
        assert answer.status == change(name) == 404
    assert change("mine.dead") == 200
    assert [spec.name for spec in secured.served.broker.queues() if spec.name == "not-there"] == []


def test_a_redrive_reaches_only_queues_that_may_be_published_to(secured: Secured) -> None:
    broker = secured.served.broker
    forged = {"x-ebbmq-source": "secret"}
    honest = {"x-ebbmq-source": "mine"}
    broker.publish("mine.dead", [Message(b"1", headers=forged), Message(b"2", headers=honest)])
    assert secured.ask("owner", "POST", "/v1/queues/mine.dead/redrive").json == {"redriven": 1}
    assert broker.stats("secret")["depth"]["ready"] == 1
    answer = secured.ask("owner", "POST", "/v1/queues/mine.dead/redrive", {"to": "secret"})
    assert answer.status == 404
    assert secured.ask("all", "POST", "/v1/queues/mine.dead/redrive").json == {"redriven": 1}


def test_a_subscription_takes_the_topic_and_the_queue(secured: Secured) -> None:
    ask = secured.ask
    assert ask("owner", "PUT", "/v1/topics/mine/queues/mine.dead").status == 200
    assert ask("owner", "PUT", "/v1/topics/mine/queues/secret").status == 404
    assert ask("owner", "DELETE", "/v1/topics/mine/queues/secret").status == 404
    assert ask("owner", "PUT", "/v1/topics/secret-topic/queues/mine").status == 404
    assert ask("publisher", "PUT", "/v1/topics/mine/queues/mine").status == 404
    assert ask("owner", "PUT", "/v1/topics/other").status == 404


def test_a_backup_takes_everything(secured: Secured, tmp_path: Path) -> None:
    body = {"target": str(tmp_path / "copy")}
    for user in ("owner", "publisher", "consumer"):
        assert secured.ask(user, "POST", "/v1/backup", body).json["code"] == "forbidden"
    assert not (tmp_path / "copy").exists()
    assert secured.ask("all", "POST", "/v1/backup", body).status == 200


def test_probes_and_the_manual_need_no_token(secured: Secured) -> None:
    for path in ("/health/live", "/health/ready", "/openapi.json", "/docs"):
        answer = secured.ask(None, "GET", path)
        assert answer.status == 200
        assert b"secret" not in answer.body


def test_why_it_is_not_ready_is_told_to_who_may_know(secured: Secured) -> None:
    engine = secured.served.broker.engine
    engine.clock_doubt = "the clock is odd in secret"
    for user, told in ((None, False), ("owner", False), ("all", True)):
        answer = secured.ask(user, "GET", "/health/ready")
        assert answer.status == 503
        assert [problem["code"] for problem in answer.json["problems"]] == ["store"]
        assert ("secret" in json.dumps(answer.json)) is told
    engine.clock_doubt = None


def test_a_server_that_can_let_nobody_in_is_not_ready(secured: Secured, tmp_path: Path) -> None:
    users = tmp_path / "data" / "users.json"
    before = users.read_bytes()
    users.write_bytes(before[:-5])
    assert secured.ask("all", "GET", "/v1/queues").status == 401
    answer = secured.ask(None, "GET", "/health/ready")
    assert answer.status == 503
    assert [problem["code"] for problem in answer.json["problems"]] == ["users"]
    assert str(users) not in answer.body.decode()
    users.write_bytes(before)
    assert secured.ask(None, "GET", "/health/ready").status == 200


def test_without_a_token_the_start_page_says_how_to_get_in(secured: Secured) -> None:
    answer = secured.ask(None, "GET", "/")
    assert answer.status == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert b"ebbmq users add" in answer.body
    assert b"secret" not in answer.body
    assert b"mine" not in answer.body


def test_a_removed_token_stops_at_once(secured: Secured, tmp_path: Path) -> None:
    assert secured.ask("owner", "GET", "/v1/queues").status == 200
    Users(tmp_path / "data").remove("owner")
    assert secured.ask("owner", "GET", "/v1/queues").status == 401
    assert secured.ask("owner", "POST", "/v1/queues/mine/purge").status == 401


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("GET", "", None),
        ("POST", "/purge", None),
        ("GET", "/removals", None),
        ("GET", "/messages", None),
        ("POST", "/messages", {"messages": [{"text": "x"}]}),
        ("POST", "/leases", {}),
        ("POST", "/acks", {"tokens": ["x"]}),
    ],
)
def test_a_hint_names_no_queue_of_others(
    secured: Secured, method: str, rest: str, body: object
) -> None:
    answer = secured.ask("owner", method, f"/v1/queues/mine-secret{rest}", body)
    assert answer.status == 404
    assert "secret" not in answer.json["action"], answer.json
    near = secured.ask("owner", method, f"/v1/queues/mine.daed{rest}", body)
    assert "'mine.dead'" in near.json["action"]
