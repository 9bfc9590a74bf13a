"""One day on three devices: what docs/devices.md says is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ebbmq.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
SECTION = PAGE.split("## One day on three devices")[1].split("\n## ")[0]
#: A day on another clock; what is waited for comes at once or not at all.
TIMEOUT_S = 300


class Command(NamedTuple):
    arguments: list[str]
    #: Lines of its output, some of them.
    said: list[str]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


def commands() -> list[Command]:
    found: list[Command] = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ ebbmq "):
            found.append(Command(shlex.split(line.removeprefix("$ ebbmq ")), []))
        else:
            found[-1].said.append(line)
    return found


def told(text: str) -> list[str]:
    """Lines without their layout, and without what is measured or depends on the day."""
    return [" ".join(re.sub(r"-?\d[\d.:-]*", "#", line).split()) for line in text.splitlines()]


def test_the_example_of_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [config], [program], [output] = blocks("toml"), blocks("python"), blocks("text")
    Path("ebbmq.toml").write_text(config)
    assert [each.arguments[0] for each in commands()] == [
        *("queues", "rules", "publish", "publish", "why", "why")
    ]
    for command in commands():
        with pytest.raises(SystemExit) as exit_:
            main(command.arguments)
        captured = capsys.readouterr()
        assert not exit_.value.code, captured.err
        lines = told(captured.out)
        for line in told("\n".join(command.said)):
            assert line in lines, captured.out
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert sorted(told(run.stdout)) == sorted(told(output))
