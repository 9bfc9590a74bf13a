"""Where Java or Spark is missing every command that needs it says so, in a line, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ebbmq.feed import claims

if TYPE_CHECKING:
    from pathlib import Path

ON_SPARK = {
    "run": ("pipeline", "run", "--lake", "lake"),
    "plan": ("pipeline", "plan", "--lake", "lake"),
    "stream": ("pipeline", "stream", "--lake", "lake", "--once"),
    "report": ("pipeline", "report", "--lake", "lake"),
    "simulate": ("simulate", "--generate", "bursts", "--messages", "10"),
}


def ebbmq(directory: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """The exit code of a command, and what it said was wrong."""
    claims.claim(directory / "lake", "a")
    known = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "ebbmq.cli", *arguments],
        cwd=directory,
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    told = done.stderr.splitlines()
    return done.returncode, [each for each in told if each.startswith(("error:", "hint:"))]


@pytest.mark.parametrize("command", ON_SPARK)
def test_without_java_one_line_says_what_to_install(tmp_path: Path, command: str) -> None:
    code, (error, *hint) = ebbmq(tmp_path, *ON_SPARK[command], PATH=str(tmp_path))
    assert code != 0
    assert error.lower().startswith("error: spark needs java 17 or newer: there is none here")
    assert "apt-get install openjdk-17-jre-headless" in "".join((error, *hint))
    assert not (tmp_path / "lake" / "plans").exists()


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    code, (error, _) = ebbmq(tmp_path, *ON_SPARK["run"], JAVA_HOME=str(tmp_path))
    assert code == 1
    assert f"JAVA_HOME is {tmp_path}, where there is no bin/java" in error


@pytest.mark.parametrize("command", ON_SPARK)
def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, command: str) -> None:
    hidden = tmp_path / "hidden" / "pyspark.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError('hidden', name='pyspark')\n")
    code, told = ebbmq(tmp_path, *ON_SPARK[command], PYTHONPATH=str(hidden.parent))
    assert code != 0
    assert "pyspark" in told[0]
    assert "pip install 'ebbmq[" in "".join(told)


@pytest.mark.parametrize("budget", ["-1", "nan", "inf", "much"])
def test_a_budget_that_is_no_amount_of_money_is_refused_before_spark_starts(
    tmp_path: Path, budget: str
) -> None:
    code, told = ebbmq(tmp_path, *ON_SPARK["plan"], "--budget", budget, PATH=str(tmp_path))
    assert code == 2
    assert f"'{budget}' is no amount of money" in told[0]


def test_what_was_is_shown_without_java(tmp_path: Path) -> None:
    assert ebbmq(tmp_path, "pipeline", "history", "--lake", "lake", PATH=str(tmp_path)) == (0, [])
