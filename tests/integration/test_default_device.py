"""A queue's default device: where messages are kept that no rule is true of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, InvalidSpec, Message, Properties, QueueSpec
from ebbmq.cli.main import main
from ebbmq.limits import DAY_MS
from ebbmq.testing import ManualClock
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 64 << 20
DEVICES = {
    "log": {"tier": "fast"},
    "hdd": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
    "old": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
    "ram": {"kind": "memory", "capacity_bytes": ROOM, "tier": "fast"},
}
TEXT = [{"id": "text", "weight": 9, "device": "hdd", "when": "TYPE == TEXT"}]
GONE = {"id": "gone", "weight": 9, "device": "hdd", "when": "TYPE == JSON"}


def open_broker(path: Path, clock: ManualClock | None = None, **settings: Any) -> Broker:
    config = {"devices": DEVICES, "rules": TEXT, "upkeep_every_ms": 20, **settings}
    return Broker.open(path / "data", config, clock)


def until_on(broker: Any, message_id: str, *devices: str) -> None:
    wait_until(
        lambda: sorted(broker.why(message_id)["copies"]) == sorted(devices),
        f"{message_id} on {', '.join(devices)}",
    )


def published(broker: Any, queue: str = "q", **fields: Any) -> str:
    return str(broker.publish(queue, [Message(b"x", **fields)])[0].id)


def test_what_no_rule_is_true_of_goes_to_the_default_device_of_its_queue(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", default_device="old"))
        broker.declare(QueueSpec("plain"))
        until_on(broker, published(broker), "old")
        until_on(broker, published(broker, type="TEXT"), "hdd")
        until_on(broker, published(broker, "plain"), "log")


def test_that_the_device_of_a_rule_cannot_be_used_is_said_of_what_goes_elsewhere(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", default_device="old"))
        broker.evict_device("hdd", force=True)
        told = broker.explain_rules(Properties(queue="q", type="TEXT"))
        why = {device.name: device.why for device in told.devices}
        assert why["old"] == (
            "chosen: no device that rules speak for can be used, and it is the default"
        )
        assert why["hdd"] == "it cannot be used just now"
        moved = published(broker, type="TEXT")
        until_on(broker, moved, "old")
        assert broker.why(moved)["decisions"][0]["text"] == (
            "placed on old: this is the default, as hdd of rule text cannot be used"
        )
        twice = published(broker, type="TEXT", replicas=2)
        assert broker.why(twice)["decisions"][0]["reason"] == (
            "default, as hdd of rule text cannot be used; log as the message wants 2 copies"
        )
        plain = published(broker)
        assert broker.why(plain)["decisions"][0]["reason"] == "default"


def test_a_rule_for_the_log_is_told_and_that_nothing_was_decided_is_not(tmp_path: Path) -> None:
    rules = [{"id": "here", "weight": 9, "device": "log", "when": "TYPE == TEXT"}, GONE]
    with open_broker(tmp_path, rules=rules) as broker:
        broker.declare(QueueSpec("q"))
        broker.evict_device("hdd", force=True)
        stays, instead, plain = (published(broker, type=kind) for kind in ("TEXT", "JSON", "BYTE"))
        reasons = [
            [
                (each["event"], each["device"], each["reason"])
                for each in broker.why(id_)["decisions"]
            ]
            for id_ in (stays, instead, plain)
        ]
        assert reasons == [
            [("placed", "log", "rule here")],
            [("placed", "log", "default, as hdd of rule gone cannot be used")],
            [],
        ]


def test_what_is_drained_goes_to_the_device_that_rules_choose_by_its_headers(
    tmp_path: Path,
) -> None:
    rules = [
        {"id": "one", "weight": 9, "device": "hdd", "when": 'HEADER("audit").isPresent'},
        {"id": "two", "weight": 5, "device": "old", "when": 'HEADER("audit").isPresent'},
    ]
    with open_broker(tmp_path, rules=rules) as broker:
        broker.declare(QueueSpec("q"))
        moved = published(broker, headers={"audit": "yes"})
        until_on(broker, moved, "hdd")
    # Nothing of it is in RAM, nor in the log: hdd has the only copy of its headers.
    with open_broker(tmp_path, rules=rules) as broker:
        assert broker.evict_device("hdd", force=True).drained == 1
        until_on(broker, moved, "old")


def test_a_default_device_is_kept_through_a_restart_and_changed_at_once(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", default_device="old"))
        until_on(broker, published(broker), "old")
    with open_broker(tmp_path) as broker:
        assert [spec.default_device for spec in broker.queues()] == ["old"]
        until_on(broker, published(broker), "old")
        broker.declare(QueueSpec("q", default_device="hdd"), change=True)
        until_on(broker, published(broker), "hdd")
        broker.declare(QueueSpec("q"), change=True)
        until_on(broker, published(broker), "log")


def test_a_volatile_default_device_gets_a_durable_one_beside_it(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", default_device="ram"))
        durable, other = published(broker), published(broker, durable=False)
        wait_until(lambda: "ram" in broker.why(durable)["copies"], "a copy in RAM")
        assert len(broker.why(durable)["copies"]) == 2
        until_on(broker, other, "ram")


def test_rules_applied_to_what_is_stored_use_the_default_device(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        plain, text = published(broker), published(broker, type="TEXT")
        until_on(broker, text, "hdd")
        broker.declare(QueueSpec("q", default_device="old"), change=True)
        assert broker.apply_rules() == 1
        until_on(broker, plain, "old")
        until_on(broker, text, "hdd")


def test_at_a_crossing_the_default_device_comes_before_others_of_its_tier(tmp_path: Path) -> None:
    clock = ManualClock()
    fading = {
        "score_per_day": 10.0,
        "score_medium": 20.0,
        "score_high": 100.0,
        "tiers": ("fast", "slow", "none"),
    }
    with open_broker(tmp_path, clock) as broker:
        broker.declare(QueueSpec("q", **fading))
        broker.declare(QueueSpec("plain", **fading))
        one, other = published(broker), published(broker, "plain")
        broker.declare(QueueSpec("q", **fading, default_device="old"), change=True)
        clock.advance(3 * DAY_MS)
        until_on(broker, one, "old")
        # Of devices that do equally well the first by name.
        until_on(broker, other, "hdd")


@pytest.mark.parametrize("fields", [{}, {"type": "TEXT"}, {"replicas": 2}, {"durable": False}])
def test_an_explanation_knows_the_default_device(tmp_path: Path, fields: dict[str, Any]) -> None:
    others = {name: value for name, value in fields.items() if name != "type"}
    with open_broker(tmp_path) as broker:
        for default in (None, "old", "hdd", "ram", "log"):
            broker.declare(QueueSpec("q", default_device=default), change=True)
            asked = Properties(size=1 / 1024, type=fields.get("type", "BYTE"), queue="q")
            while True:
                told = broker.explain_rules(asked, **others).chosen
                message_id = published(broker, **fields)
                # What is measured of the devices may have changed between the two.
                if broker.explain_rules(asked, **others).chosen == told:
                    break
            until_on(broker, message_id, *told)
            if "type" not in fields:
                assert told[0] == (default or "log")


def test_a_default_device_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        with pytest.raises(InvalidSpec) as refused:
            broker.declare(QueueSpec("q", default_device="hd"))
        assert "default_device is 'hd'" in refused.value.detail
        assert "did you mean 'hdd'?" in refused.value.action
        assert "hdd, log, old, ram" in refused.value.action
        assert broker.queues() == []
    with Broker.open(tmp_path / "alone") as broker:
        broker.declare(QueueSpec("q", default_device="log"))
        with pytest.raises(InvalidSpec) as refused:
            broker.declare(QueueSpec("p", default_device="hdd"))
        assert "devices are log;" in refused.value.action


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "..", ".", "", "a\\b", "a\0", "x" * 65, "-rf", "'; DROP TABLE q"]
)
def test_a_default_device_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        QueueSpec("q", default_device=name)
    assert "default_device" in refused.value.detail
    assert "letters" in refused.value.action


def test_a_default_device_that_was_configured_away_is_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", default_device="ram"))
    less = {name: DEVICES[name] for name in ("log", "hdd")}
    with Broker.open(tmp_path / "data", {"devices": less}) as broker:
        message_id = published(broker)
        assert broker.lease("q")[0].id == message_id
        # The same again changes nothing and is no error.
        broker.declare(QueueSpec("q", default_device="ram"))
    assert "default_device_missing queue='q' device='ram'" in caplog.text


# Over HTTP and at the command line


def test_a_default_device_is_declared_over_http(tmp_path: Path) -> None:
    hdd = {"kind": "file", "directory": str(tmp_path / "hdd"), "capacity_bytes": ROOM}
    with Served(tmp_path / "data", devices={"hdd": hdd}) as served:
        declared = served.ask("PUT", "/v1/queues/work", {"default_device": "hdd"})
        assert declared.status in {200, 201}
        assert served.ask("GET", "/v1/queues/work").json["spec"]["default_device"] == "hdd"
        until_on(served.broker, published(served.broker, "work"), "hdd")
        told = served.ask("POST", "/v1/rules/explain", {"message": {"queue": "work"}}).json
        assert told["chosen"] == ["hdd"]
        fields = served.ask("GET", "/openapi.json").json["components"]["schemas"]["QueueForm"]
        assert "default_device" in fields["properties"]
        for name in ("hd", "../../etc", "", "x" * 300, "a'; DROP TABLE"):
            refused = served.ask("PUT", "/v1/queues/work", {"default_device": name})
            assert refused.status == 400
            assert "default_device" in refused.json["detail"]
            assert refused.json["action"]
        assert served.ask("GET", "/v1/queues/work").json["spec"]["default_device"] == "hdd"


@pytest.mark.parametrize("way", ["--data", "--url"])
def test_a_default_device_is_declared_at_the_command_line(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    def check(*place: str) -> None:
        declare = "queues", "declare", "work", "--set"
        assert run(*declare, "default_device=hdd", *place)[0] == 0
        _, out, _ = run("queues", "show", "work", "--json", *place)
        assert json.loads(out)["spec"]["default_device"] == "hdd"
        _, out, _ = run("rules", "explain", "--set", "QUEUE=work", "--json", *place)
        assert json.loads(out)["chosen"] == ["hdd"]
        for name in ("hd", "../../etc"):
            code, _, err = run(*declare, f"default_device={name}", *place)
            assert code == 1
            assert "default_device" in err
        change = "queues", "change", "work", "--default-device"
        assert run(*change, "none", *place)[0] == 0
        _, out, _ = run("queues", "show", "work", "--json", *place)
        assert json.loads(out)["spec"]["default_device"] is None

    hdd = {"kind": "file", "directory": str(tmp_path / "hdd"), "capacity_bytes": ROOM}
    if way == "--url":
        with Served(tmp_path / "data", devices={"hdd": hdd}) as served:
            check("--url", f"http://127.0.0.1:{served.port}")
        return
    config = tmp_path / "ebbmq.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in hdd.items()]
    config.write_text("\n".join(["[devices.hdd]", *lines]))
    check("--data", str(tmp_path / "data"), "--config", str(config))
