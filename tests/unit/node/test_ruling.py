"""The rules of a node: configured ones, added ones, and what becomes of them."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, EbbError, InvalidSpec, Message, QueueSpec
from ebbmq.errors import RuleConflict, UnknownRule
from ebbmq.journal.disk import MemoryDisk
from ebbmq.node import rule_changes
from ebbmq.node.config import load, settings
from ebbmq.node.rule_changes import Terms
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.spec import RuleSpec

if TYPE_CHECKING:
    from pathlib import Path

STATES = {name: DeviceState() for name in ("log", "ssd", "hdd")}
ME = Terms("me")


def configured(*rules: dict[str, Any], **placement: Any) -> dict[str, Any]:
    return {"rules": list(rules), "placement": placement}


def chosen(broker: Broker, **message: Any) -> str | None:
    choice = broker.engine.rules.view(STATES).choose(Properties(**message), "log")
    return choice and choice.device


def put(
    broker: Broker, rule_id: str, device: str = "ssd", when: str = "ALWAYS", **more: Any
) -> int:
    spec = RuleSpec(rule_id, more.pop("weight", 10), device, when, more.pop("enabled", True))
    views, _ = rule_changes.put(broker.engine, [spec], more.pop("terms", ME), **more)
    return views[0].version


def ids(broker: Broker) -> list[str]:
    return [rule.id for rule in broker.engine.rules.listed().rules]


def test_rules_of_the_configuration_choose_devices(tmp_path: Path) -> None:
    rules = [
        {"id": "big", "weight": 50, "device": "hdd", "when": "SIZE > 100"},
        {"id": "rest", "weight": 10, "device": "ssd"},
        {"id": "off", "weight": 90, "device": "hdd", "enabled": False},
    ]
    with Broker.open(tmp_path, configured(*rules)) as broker:
        assert chosen(broker, size=200.0) == "hdd"
        assert chosen(broker, size=2.0) == "ssd"


def test_without_rules_the_default_device_is_chosen(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        assert broker.engine.rules.is_empty()
        assert chosen(broker) == "log"
        assert broker.engine.rules.listed().rules == []


def test_the_strategy_of_the_configuration_is_used(tmp_path: Path) -> None:
    rules = [
        {"id": "a", "weight": 60, "device": "hdd"},
        {"id": "b", "weight": 10, "device": "hdd"},
        {"id": "c", "weight": 40, "device": "ssd"},
    ]
    for number, (placement, device) in enumerate(
        [
            ({"strategy": "first_match"}, "hdd"),
            ({"strategy": "aggregate"}, "ssd"),
            ({"strategy": "aggregate", "combine": "sum"}, "hdd"),
            ({"strategy": "fuzzy"}, "ssd"),
        ]
    ):
        with Broker.open(tmp_path / str(number), configured(*rules, **placement)) as broker:
            assert chosen(broker) == device, placement


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (configured({"id": "A", "weight": 1, "device": "d", "when": "SZE > 1"}), "SZE"),
        (configured({"id": "A", "weight": 1e9, "device": "d"}), "'A'"),
        (configured({"id": "A", "weight": float("nan"), "device": "d"}), "'A'"),
        (configured({"id": "A", "weight": "1", "device": "d"}), "rules[0].weight"),
        (configured({"id": "A", "weight": 1, "device": "d", "wen": "ALWAYS"}), "rules[0].wen"),
        (configured({"id": "A", "weight": 1}), "device"),
        (configured(*[{"id": "A", "weight": 1, "device": "d"}] * 2), "two rules 'A'"),
        ({"rules": "A"}, "rules"),
        (configured(strategy="best"), "placement.strategy"),
        (configured(softness=7.0), "softness"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        Broker.open(tmp_path, config)
    assert named in refused.value.detail
    assert refused.value.action
    Broker.open(tmp_path).close()


def test_a_key_of_a_rule_that_is_nearly_right_is_named() -> None:
    with pytest.raises(InvalidSpec) as refused:
        load(configured({"id": "A", "weight": 1, "device": "d", "wehn": "ALWAYS"}))
    assert "when" in refused.value.action


def test_thousands_of_rules_do_not_fill_the_log_of_the_settings() -> None:
    rules = [{"id": f"r{i}", "weight": 1, "device": "d"} for i in range(2_000)]
    assert settings(load(configured(*rules)))["rules"] == 2_000


def test_an_added_rule_is_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "big", "hdd", "SIZE > 100")
        assert chosen(broker, size=200.0) == "hdd"
    with Broker.open(tmp_path) as broker:
        assert chosen(broker, size=200.0) == "hdd"
        assert chosen(broker, size=1.0) == "log"


@pytest.mark.parametrize("checkpoint", [False, True])
def test_rules_survive_a_kill(tmp_path: Path, checkpoint: bool) -> None:
    broker = Broker.open(tmp_path / "a")
    put(broker, "one")
    put(broker, "two")
    if checkpoint:
        broker.engine.checkpoint()
    put(broker, "three")
    rule_changes.remove(broker.engine, ["one"], ME)
    position = rule_changes.set_enabled(broker.engine, "two", ME, enabled=False)[1]
    broker.engine.journal.wait("synced", position)
    told = broker.engine.rules.listed()
    changes = list(broker.engine.rules.changes)
    broker.backup(tmp_path / "b")  # the journal as a kill would leave it, without a checkpoint
    with Broker.open(tmp_path / "b") as copy:
        assert copy.engine.rules.listed() == told
        assert list(copy.engine.rules.changes) == changes
    broker.close()
    with Broker.open(tmp_path / "a") as again:
        assert again.engine.rules.listed() == told
        assert list(again.engine.rules.changes) == changes


def test_rules_outlive_the_segments_they_were_noted_in(tmp_path: Path) -> None:
    config = {"segment_bytes": 64 * 1024, "upkeep_every_ms": 3_600_000}
    broker = Broker.open(tmp_path / "a", config)
    broker.declare(QueueSpec("q"))
    put(broker, "kept", "hdd")
    for _ in range(3):
        put(broker, "often", weight=_ + 1)
        broker.publish("q", [Message(b"x" * 30_000) for _ in range(8)])
        for lease in broker.lease("q", 8):
            broker.ack("q", [lease.token])
    first = min(s.number for s in broker.engine.journal.segments())
    broker.engine.checkpoint()
    broker.engine.upkeep()
    assert min(s.number for s in broker.engine.journal.segments()) > first
    told = broker.engine.rules.listed()
    broker.backup(tmp_path / "b")
    broker.close()
    with Broker.open(tmp_path / "b", config) as copy:
        assert copy.engine.rules.listed() == told


def test_the_record_of_changes_says_who_did_what_and_is_bounded(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "A", "hdd", "SIZE > 1", terms=Terms("ann"))
        put(broker, "A", "ssd", "SIZE > 1", terms=Terms("bob"))
        rule_changes.set_enabled(broker.engine, "A", Terms("cid"), enabled=False)
        rule_changes.set_enabled(broker.engine, "A", Terms("cid"), enabled=False)
        rule_changes.set_enabled(broker.engine, "A", Terms("cid"), enabled=True)
        rule_changes.remove(broker.engine, ["A"], Terms("dan"))
        changes = list(broker.engine.rules.changes)
        assert [(c.who, c.what, c.rule, c.version) for c in changes] == [
            ("ann", "added", "A", 1),
            ("bob", "changed", "A", 2),
            ("cid", "disabled", "A", 3),
            ("cid", "enabled", "A", 4),
            ("dan", "removed", "A", 5),
        ]
        assert changes[1].before == "WEIGHT 10 USE hdd WHEN SIZE > 1"
        assert changes[1].after == "WEIGHT 10 USE ssd WHEN SIZE > 1"
        assert all(change.at_ms > 0 for change in changes)
        for _ in range(1_100):
            put(broker, "B")
            rule_changes.remove(broker.engine, ["B"], ME)
        assert len(broker.engine.rules.changes) == 1_000


def test_switching_a_rule_on_and_off_for_ever_ends_where_it_should(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "A", "hdd")
        for number in range(1, 201):
            rule_changes.set_enabled(broker.engine, "A", ME, enabled=number % 2 == 0)
        assert chosen(broker) == "hdd"
        assert broker.engine.rules.version == 201
    with Broker.open(tmp_path) as broker:
        assert chosen(broker) == "hdd"


def test_a_change_based_on_an_old_version_is_refused(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        seen = put(broker, "A", "hdd")
        put(broker, "B")
        put(broker, "A", "ssd", terms=Terms("me", version=seen))
        with pytest.raises(RuleConflict) as refused:
            put(broker, "A", "hdd", terms=Terms("me", version=seen))
        assert refused.value.code == "version_conflict"
        assert "version 3" in refused.value.detail
        put(broker, "A", "hdd", terms=Terms("me", version=3))
        with pytest.raises(RuleConflict):
            put(broker, "A", terms=Terms("me", version=99))
        with pytest.raises(RuleConflict):
            put(broker, "new", terms=Terms("me", version=3))
        with pytest.raises(RuleConflict):
            put(broker, "A", terms=Terms("me", only_new=True))


def test_a_rule_of_the_configuration_cannot_be_changed_from_outside(tmp_path: Path) -> None:
    rule = {"id": "A", "weight": 5, "device": "hdd"}
    with Broker.open(tmp_path, configured(rule)) as broker:
        for call in (
            lambda: put(broker, "A"),
            lambda: rule_changes.remove(broker.engine, ["A"], ME),
            lambda: rule_changes.set_enabled(broker.engine, "A", ME, enabled=False),
        ):
            with pytest.raises(RuleConflict) as refused:
                call()
            assert refused.value.code == "rule_read_only"
        assert chosen(broker) == "hdd"


def test_a_rule_that_is_not_there_is_refused_with_the_nearest_id(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "orders")
        with pytest.raises(UnknownRule) as refused:
            rule_changes.remove(broker.engine, ["ordres"], ME)
        assert "'orders'" in refused.value.action
        assert ids(broker) == ["orders"]


def test_a_batch_of_rules_is_taken_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "old")
        good, bad = RuleSpec("good", 1, "ssd"), RuleSpec("bad", 1, "ssd", "SIZE >")
        with pytest.raises(InvalidSpec):
            rule_changes.put(broker.engine, [good, bad], ME)
        with pytest.raises(InvalidSpec):
            rule_changes.put(broker.engine, [good, good], ME)
        assert ids(broker) == ["old"]
        rule_changes.put(broker.engine, [good], ME, "remove")
        assert ids(broker) == ["good"]
        assert broker.engine.rules.version == 2


def test_the_same_rule_again_changes_nothing(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        assert put(broker, "A", "hdd", "SIZE>1") == 1
        assert put(broker, "A", "hdd", "SIZE > 1") == 1
        assert broker.engine.rules.version == 1


def test_a_configured_rule_hides_an_added_one_of_its_id_until_it_goes(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "A", "ssd")
    with Broker.open(tmp_path, configured({"id": "A", "weight": 1, "device": "hdd"})) as broker:
        assert chosen(broker) == "hdd"
        assert [rule.source for rule in broker.engine.rules.listed().rules] == ["configuration"]
    with Broker.open(tmp_path) as broker:
        assert chosen(broker) == "ssd"


def test_a_changed_configuration_makes_a_version_and_an_entry_in_the_record(tmp_path: Path) -> None:
    rule = {"id": "A", "weight": 1, "device": "hdd"}
    versions = []
    for config in (configured(rule), configured(rule), configured(rule, strategy="fuzzy"), None):
        with Broker.open(tmp_path, config) as broker:
            versions.append(broker.engine.rules.version)
    assert versions == [1, 1, 2, 3]
    with Broker.open(tmp_path) as broker:
        assert [c.after for c in broker.engine.rules.changes] == [
            "1 rules, first_match",
            "1 rules, fuzzy",
            "0 rules, first_match",
        ]


def test_a_configuration_taken_over_while_running_counts_at_once(tmp_path: Path) -> None:
    with Broker.open(tmp_path, configured({"id": "A", "weight": 1, "device": "hdd"})) as broker:
        put(broker, "B", "ssd", "SIZE > 100", weight=50)
        fresh = load(configured({"id": "A", "weight": 9, "device": "ssd"}))
        rule_changes.configure(broker.engine, rule_changes.prepare(broker.engine, fresh))
        assert chosen(broker) == "ssd"
        version = broker.engine.rules.version
        rule_changes.configure(broker.engine, rule_changes.prepare(broker.engine, fresh))
        assert broker.engine.rules.version == version
        broken = load(configured({"id": "A", "weight": 1, "device": "d", "when": "("}))
        with pytest.raises(InvalidSpec):
            rule_changes.prepare(broker.engine, broken)
        assert chosen(broker) == "ssd"
        assert ids(broker) == ["A", "B"]


def test_the_view_is_made_anew_only_when_states_or_rules_change(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        rules = broker.engine.rules
        view = rules.view(STATES)
        assert rules.view(STATES) is view
        assert rules.view(dict(STATES)) is not view
        view = rules.view(STATES)
        put(broker, "A")
        assert rules.view(STATES) is not view


def test_choosing_goes_on_while_rules_change(tmp_path: Path) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "always", "hdd")
        stop, found = threading.Event(), set()

        def choose() -> None:
            while not stop.is_set():
                found.add(chosen(broker, size=5.0))

        thread = threading.Thread(target=choose)
        thread.start()
        try:
            for number in range(50):
                put(broker, f"r{number}", "ssd", f"SIZE > {100 + number}", weight=99)
        finally:
            stop.set()
            thread.join()
        assert found == {"hdd"}


@pytest.mark.parametrize(
    "spec",
    [
        RuleSpec("A", 1e9, "ssd"),
        RuleSpec("A", float("nan"), "ssd"),
        RuleSpec("A", -1, "ssd"),
        RuleSpec("A", True, "ssd"),
        RuleSpec("A", "5", "ssd"),  # type: ignore[arg-type]
        RuleSpec("", 1, "ssd"),
        RuleSpec("audit", 1, "ssd"),
        RuleSpec("A", 1, ""),
        RuleSpec("A", 1, 7),  # type: ignore[arg-type]
        RuleSpec("A", 1, "ssd", "SIZE > 10 ADN SIZE < 5"),
        RuleSpec("A", 1, "ssd", "x" * 10_000),
        RuleSpec("A", 1, "ssd", None),  # type: ignore[arg-type]
        RuleSpec("A", 1, "ssd", "ALWAYS", "yes"),  # type: ignore[arg-type]
        RuleSpec(None, 1, "ssd"),  # type: ignore[arg-type]
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_and_nothing_changes(
    tmp_path: Path, spec: RuleSpec
) -> None:
    with Broker.open(tmp_path) as broker:
        put(broker, "before")
        with pytest.raises(EbbError) as refused:
            rule_changes.put(broker.engine, [spec], ME)
        assert refused.value.code == "invalid_rule"
        assert refused.value.action
        assert ids(broker) == ["before"]
        assert broker.engine.rules.version == 1


def test_a_rule_for_a_device_nobody_has_is_refused_by_name(tmp_path: Path) -> None:
    devices: dict[str, Any] = {"hdd": {"kind": "file", "directory": str(tmp_path / "hdd")}}
    devices["hdd"]["capacity_bytes"] = 1 << 30
    bad = {"devices": devices, **configured({"id": "A", "weight": 1, "device": "hddd"})}
    with pytest.raises(InvalidSpec) as refused:
        Broker.open(tmp_path / "data", bad)
    assert "rule 'A': there is no device 'hddd'" in refused.value.detail
    assert "'hdd'" in refused.value.action
    with Broker.open(tmp_path / "data", {"devices": devices}) as broker:
        for device, when in (("tape", "ALWAYS"), ("hdd", "STATUS(tape) > -5")):
            with pytest.raises(InvalidSpec) as refused:
                put(broker, "A", device, when)
            assert "'tape'" in refused.value.detail
        with pytest.raises(InvalidSpec):
            broker.explain_rules(statuses={"tape": -3})
        put(broker, "A", "hdd", "SIZE > 1")
        put(broker, "B", "log")
        told = broker.explain_rules(Properties(size=9.0), statuses={"hdd": 0})
        assert told.chosen == ("hdd",)
    with Broker.open(tmp_path / "data") as broker:  # without the device
        assert ids(broker) == ["A", "B"]
        assert broker.explain_rules(Properties(size=9.0)).chosen == ("log",)


def put_for_ever(broker: Broker) -> None:
    for number in itertools.count():
        put(broker, f"r{number}", "ssd", " OR ".join(["SIZE > 5000"] * 400))


def test_a_full_disk_refuses_changes_by_name_and_the_rules_stay(tmp_path: Path) -> None:
    disk = MemoryDisk(capacity=1 << 20)
    config = {"segment_bytes": 64 * 1024}
    with Broker.open(tmp_path, config, disk=disk, threaded=False) as broker:
        put(broker, "first", "hdd", "SIZE > 100")
        with pytest.raises(EbbError) as refused:
            put_for_ever(broker)
        assert refused.value.code == "disk_full"
        told = broker.engine.rules.listed()
        assert chosen(broker, size=200.0) == "hdd"
        assert len(told.rules) == told.version
    with Broker.open(tmp_path, config, disk=disk, threaded=False) as broker:
        assert broker.engine.rules.listed() == told
        disk.capacity = 1 << 30
        put(broker, "last")
        assert broker.engine.rules.version == told.version + 1
