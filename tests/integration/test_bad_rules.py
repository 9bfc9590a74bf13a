"""Bad rules, devices and headers over HTTP and at the command line: named errors, nothing lost."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pytest

from ebbmq import Broker, Message, QueueSpec, RuleSpec
from ebbmq.cli.main import main
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROOM = 64 << 20
SQL = "x'); DROP TABLE copies; --"
HOSTILE = {
    "locator": SQL,
    "'; DELETE FROM copies; --": '" OR 1=1; --',
    "percent": "%s %n {} ${jndi:ldap://x} \\x00",
    "path": "../../../etc/passwd",
}


class Outcome(NamedTuple):
    ok: bool
    said: str
    value: Any = None


class Way(ABC):
    """How somebody outside reaches a node."""

    @abstractmethod
    def add(self, weight: float, device: str, when: str) -> Outcome: ...

    @abstractmethod
    def switch(self, rule: str, *, on: bool) -> Outcome: ...

    @abstractmethod
    def rules(self) -> Any: ...

    @abstractmethod
    def publish(self, headers: dict[str, str], kind: str = "TEXT") -> Outcome: ...

    @abstractmethod
    def evict(self, device: str) -> Outcome: ...

    @abstractmethod
    def declare(self, **fields: str) -> Outcome: ...

    @abstractmethod
    def explain(self, headers: dict[str, str]) -> Outcome: ...


class OverHttp(Way):
    def __init__(self, served: Served) -> None:
        self._served = served

    def _ask(self, method: str, path: str, body: object = None) -> Outcome:
        answer = self._served.ask(method, path, body)
        if answer.status < 400:
            return Outcome(True, "", answer.json)
        assert answer.json["code"]
        assert answer.json["action"]
        return Outcome(False, f"{answer.json['detail']} {answer.json['action']}")

    def add(self, weight: float, device: str, when: str) -> Outcome:
        rule = {"id": "bad", "weight": weight, "device": device, "when": when}
        return self._ask("POST", "/v1/rules", rule)

    def switch(self, rule: str, *, on: bool) -> Outcome:
        return self._ask("PUT", f"/v1/rules/{rule}", {"enabled": on})

    def rules(self) -> Any:
        return self._ask("GET", "/v1/rules").value

    def publish(self, headers: dict[str, str], kind: str = "TEXT") -> Outcome:
        message = {"text": "hostile", "type": kind, "headers": headers}
        return self._ask("POST", "/v1/queues/q/messages", {"messages": [message]})

    def evict(self, device: str) -> Outcome:
        return self._ask("POST", f"/v1/devices/{quote(device, safe='')}/evict", {})

    def declare(self, **fields: str) -> Outcome:
        return self._ask("PUT", "/v1/queues/other", fields)

    def explain(self, headers: dict[str, str]) -> Outcome:
        return self._ask("POST", "/v1/rules/explain", {"message": {"headers": headers}})


class AtTheCommandLine(Way):
    def __init__(self, place: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        self._place, self._capsys = place, capsys

    def _run(self, *arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as exit_:
            main((*arguments, *self._place, "--json"))
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        if exit_.value.code:
            return Outcome(False, said.err)
        return Outcome(True, "", json.loads(said.out))

    def add(self, weight: float, device: str, when: str) -> Outcome:
        return self._run("rules", "add", f"bad: WEIGHT {weight:f} USE {device} WHEN {when}")

    def switch(self, rule: str, *, on: bool) -> Outcome:
        return self._run("rules", "enable" if on else "disable", rule)

    def rules(self) -> Any:
        return self._run("rules", "list").value

    def publish(self, headers: dict[str, str], kind: str = "TEXT") -> Outcome:
        given = [word for pair in headers.items() for word in ("--header", "=".join(pair))]
        return self._run("publish", "q", "hostile", "--type", kind, *given)

    def evict(self, device: str) -> Outcome:
        return self._run("devices", "evict", device, "--yes")

    def declare(self, **fields: str) -> Outcome:
        given = [word for pair in fields.items() for word in ("--set", "=".join(pair))]
        return self._run("queues", "declare", "other", *given)

    def explain(self, headers: dict[str, str]) -> Outcome:
        given = [word for pair in headers.items() for word in ("--header", "=".join(pair))]
        return self._run("rules", "explain", *given)


class Scene(NamedTuple):
    way: Way
    #: Does something with a broker on the same store.
    with_broker: Callable[[Callable[[Any], Any]], Any]


@pytest.fixture(params=["http", "--url", "--data"])
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Scene]:
    devices = {
        "db": {"kind": "sql", "directory": str(tmp_path / "db"), "capacity_bytes": ROOM},
        "hdd": {"kind": "file", "directory": str(tmp_path / "hdd"), "capacity_bytes": ROOM},
    }
    data = tmp_path / "data"
    if request.param == "--data":
        config = tmp_path / "ebbmq.toml"
        lines = []
        for name, device in devices.items():
            lines += [f"[devices.{name}]", *(f"{k} = {json.dumps(v)}" for k, v in device.items())]
        config.write_text("\n".join(lines))

        def opened(story: Callable[[Any], Any]) -> Any:
            with Broker.open(data, config) as broker:
                return story(broker)

        opened(prepare)
        place = "--data", str(data), "--config", str(config)
        yield Scene(AtTheCommandLine(place, capsys), opened)
        return
    with Served(data, devices=devices) as served:
        prepare(served.broker)
        url = "--url", f"http://127.0.0.1:{served.port}"
        way = OverHttp(served) if request.param == "http" else AtTheCommandLine(url, capsys)
        yield Scene(way, lambda story: story(served.broker))


def prepare(broker: Broker) -> None:
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"text %d" % n, type="TEXT") for n in range(20)])


def nothing_is_lost(broker: Broker) -> None:
    """Every message is there, and nothing but them."""
    assert [each.body for each in broker.peek("q", 100)] == [b"text %d" % n for n in range(20)]
    assert [spec.name for spec in broker.queues()] == ["q"]


#: By what is wrong with it: weight, device and condition of a rule, and what is said of it.
BAD_RULES: dict[str, tuple[float, str, str, str]] = {
    "a typo in a keyword": (9, "hdd", "SZE > 10", "did you mean SIZE"),
    "a typo in a word": (9, "hdd", "SIZE > 10 AN TYPE == TEXT", "column"),
    "a text without its end": (9, "hdd", 'HEADER("x") == "a', "column"),
    "a value there is not": (9, "hdd", "DESTINATION == TOPPIC", "TOPIC"),
    "a weight of 1e9": (1e9, "hdd", "ALWAYS", "weight"),
    "a weight below 0": (-1, "hdd", "ALWAYS", "-1"),
    "a device there is not": (9, "hd", "ALWAYS", "hdd"),
    "the status of a device there is not": (9, "hdd", "STATUS(hd) > -10", "hdd"),
    "a path for a device": (9, "../../etc", "ALWAYS", ".."),
    "a path within a device": (9, "hdd/../db", "ALWAYS", "/"),
    "the status of a path": (9, "hdd", "STATUS(../../etc) < 0", ".."),
}


def test_a_bad_rule_is_refused_by_name(scene: Scene) -> None:
    before = scene.way.rules()
    for what, (weight, device, when, said) in BAD_RULES.items():
        refused = scene.way.add(weight, device, when)
        assert not refused.ok, what
        assert said in refused.said, what
    assert scene.way.rules() == before
    scene.with_broker(nothing_is_lost)


def test_a_rule_switched_on_and_off_again_and_again_ends_as_it_was_last_told(scene: Scene) -> None:
    assert scene.way.add(9, "hdd", "TYPE == TEXT").ok
    before = scene.way.rules()["version"]
    for turn in range(6):
        # Twice is as once.
        assert scene.way.switch("bad", on=bool(turn % 2)).ok
        assert scene.way.switch("bad", on=bool(turn % 2)).ok
    rules = scene.way.rules()
    assert [(each["id"], each["enabled"]) for each in rules["rules"]] == [("bad", True)]
    assert rules["version"] == before + 6
    unknown = scene.way.switch("worse", on=True)
    assert not unknown.ok
    assert "worse" in unknown.said
    scene.with_broker(nothing_is_lost)


def test_rules_that_send_messages_round_in_a_circle_choose_one_device(scene: Scene) -> None:
    circle = [
        RuleSpec("a", 9, "hdd", "STATUS(db) <= 0 AND NOT STATUS(hdd) < -50"),
        RuleSpec("b", 9, "db", "STATUS(hdd) <= 0 AND NOT STATUS(db) < -50"),
    ]
    scene.with_broker(lambda broker: broker.put_rules(circle))
    told = scene.way.explain({})
    assert len(told.value["chosen"]) == 1
    assert scene.way.publish({}).ok
    # What is stored is asked about once, and then where it should be.
    scene.with_broker(lambda broker: broker.apply_rules())

    def is_settled(broker: Broker) -> None:
        first = broker.peek("q", 1)[0].id
        wait_until(lambda: "moving" not in broker.why(first), "the move")
        assert len(broker.peek("q", 100)) == 21

    scene.with_broker(is_settled)


def test_a_device_that_is_not_there_is_refused_by_name(scene: Scene) -> None:
    for device in ("../../etc", "..", "hd", "'; DROP TABLE copies"):
        refused = scene.way.evict(device)
        assert not refused.ok, device
        assert device in refused.said
        refused = scene.way.declare(default_device=device)
        assert not refused.ok, device
        assert "default_device" in refused.said
    refused = scene.way.evict("log")
    assert "own log" in refused.said
    scene.with_broker(nothing_is_lost)


def test_sql_in_headers_is_only_a_value(scene: Scene) -> None:
    assert scene.way.add(9, "db", f'HEADER("locator") == "{SQL}"').ok
    told = scene.way.explain(HOSTILE)
    assert told.value["chosen"] == ["db"]
    published = scene.way.publish(HOSTILE)
    assert published.ok
    message_id = published.value["receipts"][0]["id"]

    def is_kept(broker: Broker) -> None:
        wait_until(lambda: list(broker.why(message_id)["copies"]) == ["db"], "a copy in SQL")
        leases = broker.lease("q", 100)
        assert [lease.body for lease in leases[:20]] == [b"text %d" % n for n in range(20)]
        assert dict(leases[20].headers) == HOSTILE
        assert leases[20].body == b"hostile"

    scene.with_broker(is_kept)


def test_headers_beyond_their_bound_are_refused_and_those_below_are_kept(scene: Scene) -> None:
    below = {f"h{n}": "v" * 5_000 for n in range(10)}
    assert scene.way.add(9, "db", 'HEADER("h3").isPresent').ok
    refused = scene.way.publish({**below, **{f"more{n}": "v" * 5_000 for n in range(5)}})
    assert not refused.ok
    assert "headers take" in refused.said
    scene.with_broker(nothing_is_lost)
    published = scene.way.publish(below)
    message_id = published.value["receipts"][0]["id"]

    def is_kept(broker: Broker) -> None:
        wait_until(lambda: list(broker.why(message_id)["copies"]) == ["db"], "a copy in SQL")
        assert dict(broker.lease("q", 100)[20].headers) == below

    scene.with_broker(is_kept)
