"""Storage rules of a running node: the same verbs on every way, over HTTP, and on SIGHUP."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import (
    Broker,
    EbbError,
    InvalidSpec,
    Message,
    Properties,
    QueueSpec,
    RuleConflict,
    RuleSpec,
    UnknownRule,
)
from ebbmq.node.server.users import Users
from tests.served import Served
from tests.serving import Running, wait_until
from tests.verbs import OVER_HTTP, WAYS, Opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BIG = RuleSpec("big", 60, "hdd", "SIZE > 100")


@pytest.fixture(params=WAYS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param in OVER_HTTP:
        with Served(tmp_path / "data") as served:
            url = f"http://127.0.0.1:{served.port}"
            with Opened(request.param, tmp_path / "data", url) as opened:
                yield opened.broker
    else:
        with Opened(request.param, tmp_path / "data") as opened:
            yield opened.broker


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    configured = {"id": "fixed", "weight": 1, "device": "log"}
    with Served(tmp_path_factory.mktemp("rules") / "data", rules=[configured]) as running:
        yield running


@pytest.fixture
def empty(served: Served) -> Served:
    served.broker.put_rules([], others="remove")
    return served


def file_device(directory: Path, tier: str) -> dict[str, Any]:
    return {
        "kind": "file",
        "directory": str(directory),
        "capacity_bytes": 1 << 30,
        "failure_domain": directory.name,
        "tier": tier,
    }


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("three")
    devices = {
        "log": {"tier": "slow"},
        "arch": file_device(path / "arch", "slow"),
        "hdd": file_device(path / "hdd", "fast"),
    }
    rules = [
        {"id": "text", "weight": 50, "device": "hdd", "when": "TYPE == TEXT"},
        {
            "id": "own",
            "weight": 50,
            "device": "arch",
            "when": "TYPE == OWN AND CLIENT_ID == cellar AND QOS == synced",
        },
    ]
    with Served(path / "data", devices=devices, rules=rules, client="cellar") as running:
        running.broker.declare(QueueSpec("copied", min_copies=2))
        running.broker.declare(QueueSpec("tiered", min_copies=2, tiers=("fast", "slow")))
        yield running


# On every way


def test_rules_are_added_changed_listed_and_removed(broker: Any) -> None:
    added = broker.put_rule(BIG)
    assert (added.id, added.weight, added.device, added.when) == ("big", 60.0, "hdd", "SIZE > 100")
    assert (added.enabled, added.source, added.version) == (True, "added", 1)
    changed = broker.put_rule(RuleSpec("big", 60, "ssd", "SIZE > 100"))
    assert (changed.device, changed.version) == ("ssd", 2)
    assert broker.rule("big") == changed
    assert broker.enable_rule("big", enabled=False).enabled is False
    assert broker.enable_rule("big").enabled is True
    found = broker.rules()
    assert (found.version, found.strategy) == (4, "first_match")
    assert [view.id for view in found.rules] == ["big"]
    broker.remove_rule("big")
    assert broker.rules().rules == []
    assert [change.what for change in broker.rule_changes()] == [
        "added",
        "changed",
        "disabled",
        "enabled",
        "removed",
    ]
    assert {change.who for change in broker.rule_changes()} == {"local"}


def test_many_rules_are_put_at_once(broker: Any) -> None:
    broker.put_rule(BIG)
    specs = [RuleSpec(f"r/{i} ü", 1, "hdd", f'HEADER("h") == "{i}"') for i in range(300)]
    found = broker.put_rules(specs)
    assert (found.version, len(found.rules)) == (2, 301)
    found = broker.put_rules(specs[:1], others="remove")
    assert [view.id for view in found.rules] == ["r/0 ü"]
    assert broker.rule("r/0 ü").device == "hdd"
    broker.remove_rule("r/0 ü")


def test_refusals_are_the_same_everywhere(broker: Any) -> None:
    broker.put_rule(BIG)
    for call, kind, code in (
        (lambda: broker.put_rule(BIG, new=True), RuleConflict, "rule_conflict"),
        (lambda: broker.put_rule(BIG, version=7), RuleConflict, "version_conflict"),
        (lambda: broker.remove_rule("big", version=0), RuleConflict, "version_conflict"),
        (lambda: broker.remove_rule("none"), UnknownRule, "unknown_rule"),
        (lambda: broker.rule("none"), UnknownRule, "unknown_rule"),
        (lambda: broker.rule(""), UnknownRule, "unknown_rule"),
        (lambda: broker.enable_rule("none"), UnknownRule, "unknown_rule"),
        (lambda: broker.put_rule(RuleSpec("a", 1e9, "hdd")), InvalidSpec, "invalid_rule"),
        (lambda: broker.put_rule(RuleSpec("a", 1, "hdd", "SZE > 1")), InvalidSpec, "invalid_rule"),
        (lambda: broker.put_rule(RuleSpec("a", "1", "hdd")), InvalidSpec, "invalid_rule"),
        (lambda: broker.put_rules([BIG, BIG]), InvalidSpec, "invalid_rule"),
    ):
        with pytest.raises(kind) as refused:
            call()
        assert refused.value.code == code
        assert refused.value.detail
        assert refused.value.action
    assert [view.id for view in broker.rules().rules] == ["big"]
    assert broker.rules().version == 1


def test_a_change_with_the_version_that_was_seen_is_taken(broker: Any) -> None:
    seen = broker.put_rule(BIG).version
    broker.put_rule(RuleSpec("other", 1, "hdd"))
    assert broker.put_rule(RuleSpec("big", 61, "hdd"), version=seen).version == 3
    broker.remove_rule("big", version=broker.rules().version)


def test_a_choice_is_explained(broker: Any) -> None:
    broker.put_rules([BIG, RuleSpec("text", 50, "ssd", "TYPE == TEXT AND SIZE < 1000")])
    told = broker.explain_rules(
        Properties(size=500.0, type="TEXT", headers={"a": "b"}), statuses={"hdd": -20, "ssd": -5}
    )
    assert told.chosen[0] == "ssd"
    by_id = {rule.id: rule for rule in told.rules}
    assert by_id["big"].matched
    assert (by_id["big"].weight, by_id["big"].adjusted) == (60, 40)
    assert {device.name for device in told.devices} == {"hdd", "log", "ssd"}
    assert all(device.why for device in told.devices)
    assert broker.explain_rules().chosen == ("log",)


@pytest.mark.parametrize("queue", ["q", "copied", "tiered"])
@pytest.mark.parametrize("kind", ["TEXT", "BYTE", "OWN"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_message_is_kept_where_an_explanation_says(
    three: Served, queue: str, kind: str, replicas: int
) -> None:
    broker = three.broker

    def explained() -> tuple[str, ...]:
        asked = Properties(size=1 / 1024, type=kind, queue=queue)
        return broker.explain_rules(asked, replicas=replicas).chosen

    while True:
        told = explained()
        [receipt] = broker.publish(queue, [Message(b"x", type=kind, replicas=replicas)])
        # What is measured of the devices may have changed between the two.
        if explained() == told:
            break
    wait_until(
        lambda: sorted(broker.why(receipt.id)["copies"]) == sorted(told),
        f"copies on {', '.join(told)}",
    )
    if kind == "BYTE" and (queue, replicas) == ("q", 1):
        assert told == ("log",)


# Over HTTP


def test_a_rule_over_http_is_as_designed(empty: Served) -> None:
    rule = {"id": "W-001", "weight": 31, "device": "HDD", "when": "SIZE > 10", "enabled": True}
    added = empty.ask("POST", "/v1/rules", rule)
    assert added.status == 201
    version = added.json["version"]
    assert added.json == {**rule, "weight": 31.0, "source": "added", "version": version}
    assert added.headers["etag"] == f'"{version}"'
    listed = empty.ask("GET", "/v1/rules")
    assert listed.headers["etag"] == f'"{version}"'
    assert listed.json["version"] == version
    assert [each["id"] for each in listed.json["rules"]] == ["W-001", "fixed"]
    again = empty.ask("GET", "/v1/rules", headers={"if-none-match": listed.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert empty.ask("DELETE", "/v1/rules/W-001").status == 204
    assert empty.ask("GET", "/v1/rules/W-001").status == 404


def test_a_put_changes_only_what_it_names(empty: Served) -> None:
    made = empty.ask("PUT", "/v1/rules/a", {"weight": 5, "device": "hdd", "when": "SIZE > 1"})
    assert made.status == 201
    off = empty.ask("PUT", "/v1/rules/a", {"enabled": False})
    assert off.status == 200
    assert (off.json["when"], off.json["weight"], off.json["enabled"]) == ("SIZE > 1", 5, False)
    assert empty.ask("PUT", "/v1/rules/a", {"id": "b"}).json["code"] == "invalid_spec"
    assert empty.ask("PUT", "/v1/rules/none", {"enabled": True}).json["code"] == "unknown_rule"
    assert "device" in empty.ask("PUT", "/v1/rules/none", {"weight": 1}).json["detail"]


def test_if_match_holds_a_change_to_what_was_seen(empty: Served) -> None:
    tag = empty.ask("POST", "/v1/rules", {"id": "a", "weight": 1, "device": "d"}).headers["etag"]
    change = {"weight": 2}
    assert empty.ask("PUT", "/v1/rules/a", change, {"if-match": tag}).status == 200
    late = empty.ask("PUT", "/v1/rules/a", {"weight": 3}, {"if-match": tag})
    assert (late.status, late.json["code"]) == (412, "version_conflict")
    assert empty.ask("DELETE", "/v1/rules/a", headers={"if-match": tag}).status == 412
    assert empty.ask("PUT", "/v1/rules/a", change, {"if-none-match": "*"}).status == 409
    assert empty.ask("PUT", "/v1/rules/b", change, {"if-match": "*"}).status in {400, 412}
    odd = empty.ask("PUT", "/v1/rules/a", change, {"if-match": '"x"'})
    assert (odd.status, odd.json["code"]) == (400, "invalid_request")
    assert empty.ask("PUT", "/v1/rules/a", change, {"if-match": "*"}).status == 200


def test_a_rule_of_the_configuration_is_shown_and_refuses_changes(empty: Served) -> None:
    assert empty.ask("GET", "/v1/rules/fixed").json["source"] == "configuration"
    for method, body in (("PUT", {"weight": 2}), ("DELETE", None)):
        refused = empty.ask(method, "/v1/rules/fixed", body)
        assert (refused.status, refused.json["code"]) == (409, "rule_read_only")


def test_the_record_of_changes_is_read_over_http(empty: Served) -> None:
    empty.ask("POST", "/v1/rules", {"id": "a", "weight": 1, "device": "d"})
    last = empty.ask("GET", "/v1/rules/audit?count=1").json["changes"]
    assert [(each["who"], each["what"], each["rule"]) for each in last] == [("local", "added", "a")]
    assert empty.ask("GET", "/v1/rules/audit?count=0").status == 400


def test_an_explanation_over_http_has_the_form_of_the_design(empty: Served) -> None:
    empty.ask("POST", "/v1/rules", {"id": "a", "weight": 10, "device": "hdd", "when": "SIZE > 1"})
    asked = {"message": {"size": 5, "headers": {"x": "'; DROP TABLE"}}, "statuses": {"hdd": -3}}
    told = empty.ask("POST", "/v1/rules/explain", asked).json
    assert told["chosen"] == ["hdd"]
    assert told["floor_added"] is None
    assert told["strategy"] == "first_match"
    assert {"name", "status", "score", "why"} <= told["devices"][0].keys()
    rule = next(each for each in told["rules"] if each["id"] == "a")
    assert (rule["matched"], rule["weight"], rule["adjusted"]) == (True, 10, 7)
    unknown = empty.ask("POST", "/v1/rules/explain", {"message": {"colour": 1}})
    assert (unknown.status, unknown.json["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"id": "a", "weight": 1, "device": "d", "when": "SIZE >"}, "column"),
        ({"id": "a", "weight": 1, "device": "d", "when": "SZE > 1"}, "SZE"),
        ({"id": "a", "weight": 1e9, "device": "d"}, "weight"),
        ({"id": "a", "weight": -1, "device": "d"}, "weight"),
        ({"id": "../../etc", "weight": 1, "device": "d", "wehn": ""}, "wehn"),
        ({"id": "a\n", "weight": 1, "device": "d"}, "a\\n"),
        ({"id": "audit", "weight": 1, "device": "d"}, "audit"),
        ({"id": "a", "weight": 1, "device": "d", "when": "(" * 9_000}, "9000"),
        ({"id": "a", "weight": 1, "device": "d", "when": "NOT " * 2_000 + "SIZE > 1"}, "nested"),
        ({"id": "a", "weight": 1, "device": "d" * 300}, "device"),
        ({"weight": 1, "device": "d"}, "id"),
        (["a"], ""),
    ],
)
def test_bad_rules_over_http_are_named_and_change_nothing(
    empty: Served, body: object, said: str
) -> None:
    before = empty.ask("GET", "/v1/rules").json
    refused = empty.ask("POST", "/v1/rules", body)
    assert refused.status == 400
    assert said in refused.json["detail"]
    assert refused.json["action"]
    assert empty.ask("GET", "/v1/rules").json == before


def test_hostile_header_values_are_only_values(empty: Served) -> None:
    hostile = "x'; DROP TABLE messages; --"
    when = f'HEADER("locator") == "{hostile}" OR HEADER("x").contains("%s%n{{}}")'
    added = empty.ask("POST", "/v1/rules", {"id": "a", "weight": 9, "device": "hdd", "when": when})
    assert added.status == 201
    assert hostile in added.json["when"]
    huge = {"locator": hostile, **{f"h{i}": "v" * 5_000 for i in range(10)}}
    told = empty.ask("POST", "/v1/rules/explain", {"message": {"headers": huge}}).json
    assert next(each for each in told["rules"] if each["id"] == "a")["matched"]
    empty.broker.publish("q", [Message(b"x", headers=huge)])
    with pytest.raises(EbbError) as refused:
        empty.broker.publish("q", [Message(b"x", headers={"h": "v" * 100_000})])
    assert refused.value.code == "invalid_message"
    [lease] = empty.broker.lease("q")
    assert dict(lease.headers) == huge
    empty.broker.ack("q", [lease.token])


def test_rules_need_the_scope_manage_for_everything(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        users = Users(tmp_path / "data")
        tokens = {
            name: users.add(name, {scope: (pattern,)})
            for name, scope, pattern in (
                ("boss", "manage", "*"),
                ("team", "manage", "team.*"),
                ("reader", "consume", "*"),
            )
        }

        def ask(name: str, method: str, path: str, body: object = None) -> Any:
            return served.ask(method, path, body, {"authorization": f"Bearer {tokens[name]}"})

        rule = {"id": "a", "weight": 1, "device": "d"}
        for name in ("team", "reader"):
            for method, path, body in (
                ("GET", "/v1/rules", None),
                ("POST", "/v1/rules", rule),
                ("PUT", "/v1/rules", {"rules": [rule]}),
                ("GET", "/v1/rules/a", None),
                ("PUT", "/v1/rules/a", rule),
                ("DELETE", "/v1/rules/a", None),
                ("GET", "/v1/rules/audit", None),
                ("POST", "/v1/rules/explain", {}),
            ):
                assert ask(name, method, path, body).status == 403
        assert ask("boss", "POST", "/v1/rules", rule).status == 201
        [change] = ask("boss", "GET", "/v1/rules/audit").json["changes"]
        assert change["who"] == "boss"


def test_rules_changed_by_many_at_once_are_all_there(served: Served) -> None:
    before = served.broker.put_rules([], others="remove").version

    def add(name: str) -> None:
        for number in range(10):
            answer = served.ask("PUT", f"/v1/rules/{name}-{number}", {"weight": 1, "device": "hdd"})
            assert answer.status == 201, answer.body

    threads = [threading.Thread(target=add, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = served.broker.rules()
    assert (found.version, len(found.rules)) == (before + 40, 41)


# Who published


def test_the_client_of_a_message_is_who_the_server_knows_it_to_be(tmp_path: Path) -> None:
    devices = {
        "vip": {"kind": "file", "directory": str(tmp_path / "vip"), "capacity_bytes": 1 << 30}
    }
    rules = [{"id": "vip", "weight": 9, "device": "vip", "when": "CLIENT_ID == bank"}]
    users = Users(tmp_path / "data")
    with Served(tmp_path / "data", devices=devices, rules=rules, client="cellar") as served:
        served.broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
        tokens = {name: users.add(name, {"publish": ("*",)}) for name in ("bank", "shop")}

        def publish(name: str, queue: str = "work") -> str:
            body = {"messages": [{"text": name, "headers": {"CLIENT_ID": "bank"}}]}
            token = {"authorization": f"Bearer {tokens[name]}"}
            answer = served.ask("POST", f"/v1/queues/{queue}/messages", body, token)
            return str(answer.json["receipts"][0]["id"])

        def copies(message_id: str) -> list[str]:
            return list(served.broker.why(message_id)["copies"])

        bank, shop = publish("bank"), publish("shop")
        own = served.broker.publish("work", [Message(b"own")])[0].id
        wait_until(lambda: copies(bank) == ["vip"], "the bank's message on its device")
        assert copies(shop) == copies(own) == ["log"]
        served.broker.put_rule(RuleSpec("own", 9, "vip", "CLIENT_ID == cellar"))
        later = served.broker.publish("work", [Message(b"own")])[0].id
        wait_until(lambda: copies(later) == ["vip"], "what the node's own process publishes")
        assert len(served.broker.lease("work", 4)) == 4


# Killed


def test_rules_that_were_answered_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", {}
    for _ in range(3):
        with Running(data) as server, server.caller() as caller:
            found = caller.call("GET", "/v1/rules").json
            assert {rule["id"]: rule["weight"] for rule in found["rules"]} == kept
            assert found["version"] == len(caller.call("GET", "/v1/rules/audit").json["changes"])
            for number in range(5):
                weight = float(len(kept) + number)
                body = {"weight": weight, "device": "hdd", "when": f"SIZE > {weight}"}
                name = f"r{weight:g}"
                assert caller.call("PUT", f"/v1/rules/{name}", body).status in {200, 201}
                kept[name] = weight
            gone = sorted(kept)[0]
            assert caller.call("DELETE", f"/v1/rules/{gone}").status == 204
            del kept[gone]
            server.process.kill()
            server.process.wait()


# Reloading


def test_a_reload_takes_over_the_rules_of_the_file(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        broker.put_rule(RuleSpec("added", 5, "hdd"))
    file = tmp_path / "ebbmq.toml"
    rule = '[[rules]]\nid = "{}"\nweight = {}\ndevice = "ssd"\n'
    file.write_text(rule.format("A", 1) + rule.format("B", 2))
    with Running(tmp_path / "data", "--config", str(file)) as server, server.caller() as caller:

        def rules() -> dict[str, float]:
            return {r["id"]: r["weight"] for r in caller.call("GET", "/v1/rules").json["rules"]}

        assert rules() == {"A": 1, "B": 2, "added": 5}
        file.write_text(rule.format("A", 7) + '[placement]\nstrategy = "aggregate"\n')
        server.signal(signal.SIGHUP)
        wait_until(lambda: rules() == {"A": 7, "added": 5}, "the file's rules")
        assert caller.call("GET", "/v1/rules").json["strategy"] == "aggregate (mean)"
        wait_until(lambda: "reloaded" in server.log(), "reloaded")
        file.write_text(rule.format("A", 8) + 'when = "SIZE >"\n')
        server.signal(signal.SIGHUP)
        wait_until(lambda: "reload_refused" in server.log(), "the refusal")
        assert rules() == {"A": 7, "added": 5}
        assert server.stop() == 0
