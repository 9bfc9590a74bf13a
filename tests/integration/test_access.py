"""Who may do what over HTTP: every scope, every verb, and what nobody may learn."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ebbmq.node.server.users import SCOPES, Users
from tests.serving import Running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.serving import Answer, Caller

MINE, OTHER = "orders.new", "billing"
FAR_MS = 10**14


class Verb(NamedTuple):
    """A request on a queue, and the scope it takes; None: any scope will do."""

    method: str
    path: str
    body: object
    scope: str | None


VERBS = {
    "declare": Verb("PUT", "", {}, "manage"),
    "show": Verb("GET", "", None, None),
    "publish": Verb("POST", "/messages", {"messages": [{"text": "x"}]}, "publish"),
    "peek": Verb("GET", "/messages", None, "consume"),
    "lease": Verb("POST", "/leases", {"name": "n"}, "consume"),
    "read a lease": Verb("GET", "/leases/n", None, "consume"),
    "ack": Verb("POST", "/acks", {"tokens": []}, "consume"),
    "retry": Verb("POST", "/retries", {"tokens": []}, "consume"),
    "release": Verb("POST", "/releases", {"tokens": []}, "consume"),
    "extend": Verb("POST", "/extensions", {"tokens": [], "timeout_ms": 1}, "consume"),
    "removals": Verb("GET", "/removals", None, "consume"),
    "redrive": Verb("POST", "/redrive", {}, "manage"),
    "decay factor": Verb("PUT", "/decay-factor", {"factor": 2, "until_ms": FAR_MS}, "manage"),
    "pause": Verb("POST", "/pause", None, "manage"),
    "resume": Verb("POST", "/resume", None, "manage"),
    "purge": Verb("POST", "/purge", None, "manage"),
    "delete": Verb("DELETE", "", None, "manage"),
}
TOPIC_VERBS = {
    "declare": Verb("PUT", "", {}, "manage"),
    "show": Verb("GET", "", None, None),
    "publish": Verb("POST", "/messages", {"messages": [{"text": "x"}]}, "publish"),
    "delete": Verb("DELETE", "", None, "manage"),
}


class World:
    """A server whose users hold one scope each for `orders.*` and `topic:orders`."""

    def __init__(self, server: Running, users: Users) -> None:
        self.server = server
        self.users = users
        self.admin = server.caller(users.add("admin", dict.fromkeys(SCOPES, ("*",))))
        self.holders = {
            scope: server.caller(users.add(scope, {scope: ("orders.*", "topic:orders")}))
            for scope in SCOPES
        }

    def callers(self) -> Iterator[Caller]:
        yield from (self.admin, *self.holders.values())

    def reset(self) -> None:
        for queue in (MINE, OTHER):
            assert self.admin.call("PUT", f"/v1/queues/{queue}", {}).status in (200, 201)
        for topic in ("orders", OTHER):
            assert self.admin.call("PUT", f"/v1/topics/{topic}", {}).status in (200, 201)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("access") / "data"
    users = Users(data)
    users.add("somebody", {"publish": ("nothing",)})
    with Running(data) as server:
        world = World(server, users)
        yield world
        for caller in world.callers():
            caller.connection.close()


def ask(caller: Caller, verb: Verb, queue: str, kind: str = "queues") -> Answer:
    return caller.call(verb.method, f"/v1/{kind}/{queue}{verb.path}", verb.body)


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("held", SCOPES)
def test_a_verb_on_a_queue_takes_its_scope_for_that_queue(
    world: World, held: str, name: str
) -> None:
    world.reset()
    verb, caller = VERBS[name], world.holders[held]
    mine = ask(caller, verb, MINE)
    if verb.scope in (held, None):
        assert mine.status < 300, mine
    else:
        assert (mine.status, mine.code) == (403, "forbidden")
        assert verb.scope in mine.json["action"]
    other = ask(caller, verb, OTHER)
    assert (other.status, other.code) == (404, "unknown_queue")


@pytest.mark.parametrize("name", TOPIC_VERBS)
@pytest.mark.parametrize("held", SCOPES)
def test_a_verb_on_a_topic_takes_its_scope_for_that_topic(
    world: World, held: str, name: str
) -> None:
    world.reset()
    verb, caller = TOPIC_VERBS[name], world.holders[held]
    mine = ask(caller, verb, "orders", "topics")
    if verb.scope in (held, None):
        assert mine.status < 300, mine
    else:
        assert (mine.status, mine.code) == (403, "forbidden")
    other = ask(caller, verb, OTHER, "topics")
    assert (other.status, other.code) == (404, "unknown_queue")


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_subscription_takes_the_topic_and_the_queue(world: World, method: str) -> None:
    world.reset()
    path = "/v1/topics/{}/queues/{}"
    manager = world.holders["manage"]
    assert manager.call(method, path.format("orders", MINE)).status == 200
    assert manager.call(method, path.format("orders", OTHER)).code == "unknown_queue"
    assert manager.call(method, path.format(OTHER, MINE)).code == "unknown_queue"
    for scope in ("publish", "consume"):
        assert world.holders[scope].call(method, path.format("orders", MINE)).status == 403


def test_what_concerns_the_whole_server_takes_everything(world: World, tmp_path: Path) -> None:
    for scope in SCOPES:
        refused = world.holders[scope].call("POST", "/v1/backup", {"target": str(tmp_path / "b")})
        assert (refused.status, refused.code) == (403, "forbidden")
    assert not (tmp_path / "b").exists()
    copied = world.admin.call("POST", "/v1/backup", {"target": str(tmp_path / "b")})
    assert copied.status == 200
    # Whoever can read a backup must not learn who may use the server.
    assert not list((tmp_path / "b").rglob("users*"))


def test_without_a_valid_token_nothing_but_health_is_answered(world: World) -> None:
    world.reset()
    paths = ["/", "/metrics", "/v1/queues", "/v1/topics", "/v1/messages/1-1"]
    for token in (None, "ebb_nonsense", ""):
        with world.server.caller(token) as caller:
            for verb in VERBS.values():
                for queue in (MINE, "none"):
                    assert ask(caller, verb, queue).code == "unauthenticated"
            for verb in TOPIC_VERBS.values():
                assert ask(caller, verb, "orders", "topics").code == "unauthenticated"
            for path in paths:
                answer = caller.call("GET", path)
                assert answer.status == 401, path
                if path != "/":
                    assert answer.headers["www-authenticate"].startswith("Bearer")
            assert caller.call("GET", "/health/live").status == 200
            assert caller.call("GET", "/health/ready").status == 200


def test_a_token_for_another_queue_cannot_settle_with_a_lease_it_stole(world: World) -> None:
    world.reset()
    world.admin.queue(OTHER, "messages", {"messages": [{"text": "x"}]})
    (lease,) = world.admin.queue(OTHER, "leases", {"count": 1}).json["leases"]
    consumer = world.holders["consume"]
    tokens = {"tokens": [lease["token"]]}
    for verb, more in (
        ("acks", {}),
        ("retries", {}),
        ("releases", {}),
        ("extensions", {"timeout_ms": 1}),
    ):
        assert consumer.queue(OTHER, verb, tokens | more).code == "unknown_queue"
        answer = consumer.queue(MINE, verb, tokens | more).json
        assert [each["code"] for each in answer["refused"]] == ["lease_lost"]
    assert world.admin.queue(OTHER, "acks", tokens).json["acked"] == 1


def test_messages_cannot_be_moved_to_a_queue_through_a_door_beside_it(world: World) -> None:
    world.reset()
    manager = world.holders["manage"]
    dead = manager.call("PUT", f"/v1/queues/{MINE}", {"dead_queue": OTHER})
    assert dead.code == "unknown_queue"
    made = manager.call("PUT", f"/v1/queues/{MINE}", {"dead_queue": "billing.dead"})
    assert made.code == "unknown_queue"
    assert manager.queue(MINE, "redrive", {"to": OTHER}).code == "unknown_queue"
    assert world.admin.call("GET", "/v1/queues/billing.dead").status == 404


# What nobody may learn


SECRET = "hush-9173"
SECRET_BODY = "the-body-4711"


def everything_a_caller_can_ask(queue: str, identity: str) -> Iterator[tuple[str, str, object]]:
    for path in ("/", "/metrics", "/v1/queues", "/v1/topics", "/health/ready", "/openapi.json"):
        yield "GET", path, None
    yield "GET", f"/v1/messages/{identity}", None
    yield "GET", "/v1/topics/orders", None
    yield "POST", "/v1/topics/orders/messages", {"messages": [{"text": "x"}]}
    for queue_name in (MINE, queue):
        for verb in VERBS.values():
            if verb.method != "DELETE":
                yield verb.method, f"/v1/queues/{queue_name}{verb.path}", verb.body


@pytest.fixture
def secret(world: World) -> Iterator[str]:
    """A queue with a message, a lease, a removal and a subscription; yields the message's id."""
    world.reset()
    admin = world.admin
    assert admin.call("PUT", f"/v1/queues/{SECRET}", {}).status == 201
    message = {"text": SECRET_BODY, "headers": {SECRET_BODY: SECRET_BODY}}
    published = admin.queue(SECRET, "messages", {"messages": [message] * 3})
    admin.call("POST", f"/v1/queues/{SECRET}/purge")
    admin.queue(SECRET, "messages", {"messages": [message] * 3})
    admin.queue(SECRET, "leases", {"count": 1, "name": "n"})
    assert admin.call("PUT", f"/v1/topics/orders/queues/{SECRET}").status == 200
    yield published.json["receipts"][0]["id"]
    admin.call("DELETE", f"/v1/queues/{SECRET}")


@pytest.mark.parametrize("held", SCOPES)
def test_nothing_of_a_queue_shows_to_who_holds_no_scope_for_it(
    world: World, secret: str, held: str
) -> None:
    caller = world.holders[held]
    for method, path, body in everything_a_caller_can_ask(SECRET, secret):
        answer = caller.call(method, path, body)
        # A refusal says the name that was asked for, and no more.
        told = answer.text.decode().replace(f"'{SECRET}'", "") + json.dumps(answer.headers)
        assert SECRET not in told, (method, path, told)
        assert SECRET_BODY not in told, (method, path, told)
    shown = world.admin.call("GET", "/v1/queues").text.decode()
    assert SECRET in shown


@pytest.mark.parametrize("held", SCOPES)
def test_a_queue_that_is_there_answers_like_one_that_is_not(
    world: World, secret: str, held: str
) -> None:
    caller = world.holders[held]
    for verb in VERBS.values():
        there, not_there = ask(caller, verb, SECRET), ask(caller, verb, "hush-none")
        assert there.status == not_there.status == 404
        assert there.text.replace(SECRET.encode(), b"") == not_there.text.replace(b"hush-none", b"")
    there = caller.call("GET", f"/v1/messages/{secret}").json
    not_there = caller.call("GET", "/v1/messages/ffff-1").json
    assert {**there, "id": ""} == {**not_there, "id": ""}


# Removal


def test_a_removed_token_stops_at_once(world: World) -> None:
    world.reset()
    with world.server.caller(world.users.add("leaver", {"consume": ("orders.*",)})) as leaver:
        assert leaver.queue(MINE, "leases", {}).status == 200
        world.users.remove("leaver")
        assert leaver.queue(MINE, "leases", {}).code == "unauthenticated"


def test_who_waits_for_messages_gets_none_after_the_token_was_removed(world: World) -> None:
    world.reset()
    world.admin.call("POST", f"/v1/queues/{MINE}/purge")
    with world.server.caller(world.users.add("waiter", {"consume": ("orders.*",)})) as waiter:
        body = json.dumps({"wait_ms": 600_000})
        waiter.connection.request("POST", f"/v1/queues/{MINE}/leases", body, waiter.headers)
        # Both orders are right; after another answer it is most likely waiting.
        assert world.admin.call("GET", "/v1/queues").status == 200
        world.users.remove("waiter")
        world.admin.queue(MINE, "messages", {"messages": [{"text": "not for waiter"}]})
        answer = waiter.connection.getresponse()
        assert answer.status == 401
        assert b"not for waiter" not in answer.read()
    wait_until(
        lambda: world.admin.call("GET", f"/v1/queues/{MINE}").json["stats"]["depth"]["ready"] >= 1,
        "the message to be given back",
    )


def test_no_token_is_in_the_log(tmp_path: Path) -> None:
    users = Users(tmp_path / "data")
    token = users.add("shop", dict.fromkeys(SCOPES, ("*",)))
    (tmp_path / "ebbmq.toml").write_text("[log]\nlevel = 'debug'\n")
    options = ("--config", str(tmp_path / "ebbmq.toml"))
    with Running(tmp_path / "data", *options) as server, server.caller(token) as caller:
        assert caller.call("PUT", "/v1/queues/q", {}).status == 201
        assert caller.queue("q", "messages", {"messages": [{"text": "x"}]}).status == 200
        (lease,) = caller.queue("q", "leases", {}).json["leases"]
        assert caller.queue("q", "acks", {"tokens": [lease["token"]]}).json["acked"] == 1
        assert caller.queue("q", "acks", {"tokens": [lease["token"]]}).json["acked"] == 0
        assert caller.call("GET", f"/v1/queues/q/messages?token={token}").status == 400
        assert caller.call("GET", f"/{token}").status == 404
        users.remove("shop")
        assert caller.queue("q", "leases", {}).status in (401, 404)
        (tmp_path / "data" / "users.json").write_text(f'{{"users": {{"{token}": 3}}}}')
        assert caller.queue("q", "leases", {}).status == 401
        server.signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in server.log(), "reloaded")
        assert server.stop() == 0
    everything = server.log() + "\n".join(server.lines)
    assert token not in everything
    assert lease["token"] not in everything
