"""A configuration is read strictly: what is not understood is refused with a hint, in any place."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ebbmq import Broker
from ebbmq.errors import InvalidSpec
from ebbmq.node import config
from ebbmq.node.devices.settings import DeviceConfig
from ebbmq.policy.rules.spec import RuleSpec

ROOT = Path(__file__).parents[3]


def refusal(given: dict[str, Any] | str | Path) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as refused:
        config.load(given)
    return refused.value


@pytest.mark.parametrize(
    ("given", "key", "hint"),
    [
        ({"segment_byte": 1}, "'segment_byte'", "did you mean 'segment_bytes'?"),
        ({"htpp": {}}, "'htpp'", "did you mean 'http'?"),
        ({"http": {"prt": 1}}, "'http.prt'", "did you mean 'http.port'?"),
        ({"log": {"levle": "info"}}, "'log.levle'", "did you mean 'log.level'?"),
        ({"port": 8080}, "'port'", "it belongs into [http]"),
        ({"http": {"cache_bytes": 1}}, "'http.cache_bytes'", "it belongs at the top"),
        ({"log": {"zzzzzz": 1}}, "'log.zzzzzz'", "known keys: log.format, log.level"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(
    given: dict[str, Any], key: str, hint: str
) -> None:
    error = refusal(given)
    assert key in error.detail
    assert error.action == hint


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"http": {"port": 65_536}}, "http.port"),
        ({"http": {"port": "8080"}}, "http.port"),
        ({"http": {"port": True}}, "http.port"),
        ({"http": {"host": " "}}, "http.host"),
        ({"http": {"tls_key": "key.pem"}}, "http.tls_certificate"),
        ({"http": {"request_bytes_max": 0}}, "http.request_bytes_max"),
        ({"http": 8080}, "'http' is a section"),
        ({"log": {"format": "xml"}}, "log.format"),
        ({"segment_bytes": 1}, "segment_bytes"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"node": ""}, "node"),
        ({"node": "n" * 65}, "node"),
        ({"node": "\N{GREEK SMALL LETTER NU}" * 33}, "node"),
        ({"node": "half of a pair: \ud800"}, "node"),
        ({"node": "two\nlines"}, "node"),
        ({"client": ""}, "client"),
        ({"client": "c" * 256}, "client"),
        ({"client": "\udfff"}, "client"),
        ({"client": " c"}, "client"),
        ({"pipeline": {"every_ms": 10}}, "pipeline.every_ms is 10"),
        ({"pipeline": {"memory": "lots"}}, "pipeline.memory is 'lots'"),
        ({"pipeline": {"memory": "1"}}, "pipeline.memory is '1'"),
        ({"pipeline": {"memory": "449m"}}, "pipeline.memory is '449m'"),
        ({"pipeline": {"budget": -0.5}}, "pipeline.budget is -0.5"),
        ({"pipeline": {"budget": math.nan}}, "pipeline.budget is nan"),
        ({"pipeline": {"budget": math.inf}}, "pipeline.budget is inf"),
        ({"pipeline": {"conf": {"spark.executor.cores": 2}}}, "pipeline.conf"),
    ],
)
def test_a_value_outside_its_limits_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    error = refusal(given)
    assert named in error.detail
    assert error.action


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.toml").detail


@pytest.mark.parametrize("text", [b"port = ", b"\xff = 1", b"[http]\nport = 1\nport = 2\n"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text)
    assert "is not TOML" in refusal(path).detail


def test_a_secret_is_neither_shown_nor_named_in_an_error() -> None:
    http = {"tls_certificate": "c", "tls_key": "k", "tls_key_password": "open sesame"}
    shown = config.settings(config.load({"http": http}))
    assert shown["http.tls_key_password"] == "(hidden)"
    assert "open sesame" not in str(shown)
    assert "open sesame" not in str(refusal({"http": {**http, "port": "x"}}))


def test_the_default_configuration_shows_every_setting() -> None:
    shown = config.settings(config.Config())
    assert shown["segment_bytes"] == config.Config().segment_bytes
    assert shown["http.host"] == "127.0.0.1"
    assert shown["http.tls_key_password"] is None


def test_settings_can_be_changed_by_their_full_names() -> None:
    changed = config.changed(config.Config(), {"http.port": 9, "node": "b"})
    assert (changed.http.port, changed.node) == (9, "b")
    assert changed.http.host == "127.0.0.1"


def test_a_broker_opens_on_a_file_with_sections(tmp_path: Path) -> None:
    path = tmp_path / "ebbmq.toml"
    path.write_text("segment_bytes = 65536\n[http]\nport = 8081\n[log]\nlevel = 'error'\n")
    with Broker.open(tmp_path / "data", config=path) as broker:
        assert broker.engine.config.segment_bytes == 65_536


def example_files() -> list[Path]:
    found = (ROOT / "docs", ROOT / "deploy", ROOT / "examples")
    return sorted(path for folder in found for path in folder.rglob("*.toml"))


def test_there_is_an_example_file() -> None:
    assert example_files()


@pytest.mark.parametrize("path", example_files(), ids=lambda path: path.name)
def test_every_example_file_is_valid(path: Path) -> None:
    config.load(path)


def test_what_the_example_file_shows_of_devices_and_rules_can_be_used() -> None:
    text = (ROOT / "deploy" / "ebbmq.toml").read_text()
    shown = text[text.index("# [devices.log]") :].replace("# Storage rules", "# # Storage rules")
    read = config.load(tomllib.loads(re.sub(r"^# ?", "", shown, flags=re.MULTILINE)))
    assert list(read.devices) == ["log", "hdd", "archive"]
    assert len(read.rules) == 1


def test_the_example_file_of_the_server_names_every_setting_with_its_default() -> None:
    lines = (ROOT / "deploy" / "ebbmq.toml").read_text().splitlines()
    section, named = "", {}
    for line in lines:
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif line.startswith("# [["):
            section = f"{line[4:-2]}[]."
        elif line.startswith("# ["):
            section = f"{line[3:-1]}."
        elif "=" in line:
            name, _, value = line.removeprefix("# ").partition(" = ")
            named[section + name] = value
    defaults = config.settings(config.Config())
    rule = {name for name in named if name.startswith("rules[]")}
    assert rule == {f"rules[].{name}" for name in RuleSpec.__struct_fields__}
    device = {name for name in named if name.startswith("devices.")}
    assert {name.rpartition(".")[2] for name in device} <= {*DeviceConfig.__struct_fields__}
    assert named.keys() - rule - device == defaults.keys() - {"rules"}
    for name, default in defaults.items():
        if default is not None and name != "rules":
            told = named[name].strip('"')
            assert told == (str(default).lower() if isinstance(default, bool) else str(default))
