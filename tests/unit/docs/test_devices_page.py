"""What docs/devices.md says of devices is what they do."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from ebbmq.holding.contract import Kind
from ebbmq.node import config
from ebbmq.node.devices.settings import DeviceConfig
from ebbmq.policy.status import StatusSpec

PAGE = (Path(__file__).parents[3] / "docs" / "devices.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def settings(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_configuration_on_the_page_is_taken() -> None:
    read = config.load(tomllib.loads(block("toml")))
    assert list(read.devices) == ["log", "ram", "hdd", "db1", "archive"]
    assert read.devices["archive"].status.every_ms == 30_000
    assert "SECRET" not in str(config.settings(read))


def test_the_example_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "docs/devices.md", "exec"), {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["log", "log"], ["ram", "memory"], ["hdd", "file"]]


def test_every_kind_is_on_the_page() -> None:
    kinds = re.findall(r"^\| `(\w+)` \|", PAGE.split("\n## ")[0], re.MULTILINE)
    assert set(kinds) == set(get_args(Kind))


def test_every_setting_is_on_the_page() -> None:
    assert settings("Declaring them") == set(DeviceConfig.__struct_fields__)
    assert settings("How they are doing") == set(StatusSpec.__struct_fields__)
