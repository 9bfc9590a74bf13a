"""`[devices.NAME]` is read strictly, and what it has of secrets is not shown."""

from __future__ import annotations

from typing import Any

import pytest

from ebbmq.errors import InvalidSpec
from ebbmq.node import config
from ebbmq.node.devices.settings import DeviceConfig, place_of, public_url

MEMORY = {"kind": "memory", "capacity_bytes": 1_000}


def refusal(devices: Any) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as refused:
        config.load({"devices": devices})
    return refused.value


@pytest.mark.parametrize(
    ("devices", "detail", "action"),
    [
        (5, "'devices' is a section", "[devices.NAME]"),
        ({"ram": 5}, "'devices.ram' is a section", "[devices.ram]"),
        ({"ram": {}}, "'ram' has no kind", "memory, file, sql, grid, object"),
        ({"ram": {"kind": "memroy"}}, "kind 'memroy'", "did you mean 'memory'?"),
        ({"ram": {"kind": 5}}, "kind 5", "use one of memory, file"),
        ({"ram": {"kind": "tape"}}, "kind 'tape'", "use one of memory, file"),
        ({"ram": {"kind": "memory"}}, "'ram' has no capacity_bytes", "capacity_bytes = "),
        ({"ram": {**MEMORY, "capacity_bytes": 0}}, "'ram': capacity_bytes is 0", "above 0"),
        ({"ram": {**MEMORY, "capacity_bytes": "9"}}, "'devices.ram.capacity_bytes'", "correct"),
        ({"ram": {**MEMORY, "tir": "x"}}, "'devices.ram.tir'", "did you mean 'tier'?"),
        ({"ram": {**MEMORY, "zzzz": "x"}}, "'devices.ram.zzzz'", "known keys: capacity_bytes"),
        ({"ram": {**MEMORY, "status": {"every": 1}}}, "ram.status.every'", "'every_ms'?"),
        ({"ram": {**MEMORY, "status": {"every_ms": 1}}}, "'ram': status every_ms", "10 or more"),
        ({"ram": {**MEMORY, "status": {"space": [0.9, 0.5]}}}, "status space is 0.9", "smaller"),
        ({"ram": {**MEMORY, "directory": "x"}}, "of kind memory has a directory", "file, sql"),
        ({"ram": {**MEMORY, "cost_per_gib_month": -1}}, "cost_per_gib_month is -1", "0 or more"),
        ({"ram": {**MEMORY, "tier": " "}}, "device tier", "printable"),
        ({"ram": {**MEMORY, "stall_ms": 0}}, "'ram': stall_ms is 0", "use 1 to"),
        ({"db": {**MEMORY, "kind": "sql"}}, "'db' of kind sql has no address", "set url"),
        ({"db": {**MEMORY, "kind": "grid"}}, "'db' of kind grid has no address", "set url"),
        (
            {"db": {**MEMORY, "kind": "file", "url": "file:///x", "directory": "y"}},
            "has a directory and a url",
            "one of both",
        ),
        (
            {"db": {**MEMORY, "kind": "sql", "url": "postgresql://caf\udce9:secret@h/x"}},
            "'db': url is",
            "%XX",
        ),
        ({"log": {"kind": "file"}}, "'devices.log.kind' is not for the node's own log", "'log'"),
        ({"log": {"tir": "x"}}, "'devices.log.tir'", "did you mean 'tier'?"),
    ],
)
def test_a_device_that_cannot_be_understood_is_refused_by_name(
    devices: Any, detail: str, action: str
) -> None:
    error = refusal(devices)
    assert detail in error.detail
    assert action in error.action


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "../hdd", "a/b", "a b", "9", "a\n", "é", "-x", "a" * 65, "a\0"]
)
def test_a_device_name_that_is_no_plain_word_is_refused(name: str) -> None:
    error = refusal({name: MEMORY})
    assert "device name" in error.detail
    assert "letters" in error.action


def test_too_many_devices_are_refused() -> None:
    assert "limit is 64" in refusal({f"d{i}": MEMORY for i in range(65)}).detail


def test_what_is_not_said_follows_from_the_kind() -> None:
    read = config.load(
        {
            "devices": {
                "log": {"tier": "fast", "cost_per_gib_month": 0.2},
                "ram": MEMORY,
                "hdd": {"kind": "file", "capacity_bytes": 5},
                "grid": {"kind": "grid", "capacity_bytes": 5, "url": "valkey://h"},
                "db": {"kind": "sql", "capacity_bytes": 5, "directory": "x", "durable": True},
                "mem": {"kind": "object", "capacity_bytes": 5, "url": "memory:///"},
            }
        }
    ).devices
    specs = {name: device.spec(name) for name, device in read.items()}
    assert [(s.name, s.tier, s.durable, s.failure_domain) for s in specs.values()] == [
        ("log", "fast", True, "log"),
        ("ram", "memory", False, "ram"),
        ("hdd", "file", True, "hdd"),
        ("grid", "grid", False, "grid"),
        ("db", "sql", True, "db"),
        ("mem", "object", False, "mem"),
    ]


def test_secrets_of_devices_are_not_in_the_effective_configuration() -> None:
    read = config.load(
        {
            "devices": {
                "db": {
                    "kind": "sql",
                    "capacity_bytes": 5,
                    "url": "postgresql://me:hush@host:5/db?sslpassword=hush",
                },
                "s3": {
                    "kind": "object",
                    "capacity_bytes": 5,
                    "url": "s3://bucket/x",
                    "options": {"secret_access_key": "hush", "region": "hush"},
                    "status": {"every_ms": 50},
                },
            }
        }
    )
    shown = config.settings(read)
    assert "hush" not in str(shown)
    assert shown["devices.db.url"] == "postgresql://me:(hidden)@host:5/db?(hidden)"
    assert shown["devices.s3.url"] == "s3://bucket/x"
    assert shown["devices.s3.options"] == {
        "secret_access_key": "(hidden)",
        "region": "(hidden)",
    }
    assert shown["devices.s3.status"] == {"every_ms": 50}
    assert "devices.s3.tier" not in shown
    assert "hush" in str(config.settings(read, hide=False))


def test_a_secret_is_not_in_the_error_about_its_device() -> None:
    given = {
        "kind": "sql",
        "capacity_bytes": 5,
        "url": "postgresql://me:hush@h/db",
        "replicas": "x",
    }
    assert "hush" not in str(refusal({"db": given}))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valkey://:hush@h:1", "valkey://:(hidden)@h:1"),
        ("valkey://h:1", "valkey://h:1"),
        ("http://[", "(hidden)"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert public_url(url) == shown


AT_STORE = {"endpoint": "http://u:hush@store:9"}
AT_HOME = {"endpoint": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("kind", "url", "options", "place"),
    [
        ("file", "", {}, ""),
        ("sql", "", {}, ""),
        ("object", "", {}, ""),
        ("sql", "sqlite:///db/copies.db", {}, ""),
        ("object", "memory:///", {}, ""),
        ("object", "file:///mnt/cold", {}, ""),
        ("object", "s3://b/x/", {}, "s3://b/x"),
        ("object", "s3://b", AT_STORE, "s3://b at store:9"),
        ("object", "s3://b", AT_HOME, ""),
        ("sql", "postgresql://me:hush@DB/d?password=hush", {}, "sql at db:5432/d"),
        ("sql", "postgresql://me@db:5432/d", {}, "sql at db:5432/d"),
        ("sql", "postgresql:///d?host=db", {}, "sql at db:5432/d"),
        ("sql", "postgresql://localhost/d", {}, ""),
        ("sql", "postgresql:///d", {}, ""),
        ("sql", "postgresql:///d?host=/run/postgresql", {}, ""),
        ("grid", "valkey://:hush@h", {}, "grid at h:6379"),
        ("grid", "valkey://[fd00::2]:1", {}, "grid at [fd00::2]:1"),
        ("grid", "valkey://[::1]:1", {}, ""),
        ("grid", "unix:///run/v.sock", {}, ""),
    ],
)
def test_the_place_of_a_device_is_the_server_it_is_on_and_none_if_it_is_the_nodes_own(
    kind: Any, url: str, options: dict[str, str], place: str
) -> None:
    directory = "" if url else "devices/x"
    given = DeviceConfig(kind=kind, url=url, directory=directory, options=options)
    assert place_of(given) == place


def test_a_device_of_which_nothing_is_said_is_the_nodes_own() -> None:
    assert place_of(None) == ""


def test_devices_survive_a_change_of_other_settings() -> None:
    before = config.load(
        {"devices": {"log": {"tier": "ssd"}, "ram": {**MEMORY, "status": {"every_ms": 50}}}}
    )
    after = config.changed(before, {"http.port": 9})
    assert after.devices == before.devices
    assert config.changed(config.Config(), {"devices": before.devices}).devices == before.devices
