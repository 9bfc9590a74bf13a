"""What keeps a command of the pipeline from its work is told before Spark is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ebbmq.cli.main import main
from ebbmq.feed import claims
from ebbmq_spark.lake import open_lake

if TYPE_CHECKING:
    from pathlib import Path

    Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once Java is asked for anything."""
    seen, path = tmp_path / "started", tmp_path / "jdk" / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\ntouch {seen}\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return seen


def refused(captured: Captured, *words: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 1
    return captured.readouterr().err


@pytest.mark.parametrize(
    "words", ["pipeline run", "pipeline plan", "pipeline stream", "pipeline report", "simulate"]
)
def test_a_lake_that_is_not_there(
    capsys: Captured, tmp_path: Path, started: Path, words: str
) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert f"there is no lake at {nowhere}" in refused(capsys, *words.split(), "--lake", nowhere)
    assert not started.exists()


@pytest.mark.parametrize(
    "words",
    [
        "pipeline run",
        "pipeline plan",
        "pipeline stream",
        "pipeline report",
        "pipeline history",
        "simulate",
    ],
)
def test_a_directory_that_is_no_lake_is_left_as_it_was(
    capsys: Captured, tmp_path: Path, started: Path, words: str
) -> None:
    claims.claim(tmp_path / "lake", "a")
    (tmp_path / "lake" / "events").mkdir()
    (tmp_path / "empty").mkdir()
    for place, said in (
        (tmp_path / "empty", "name the directory that feed.lake of the nodes' configuration names"),
        (tmp_path / "lake" / "events", f"its parent {tmp_path / 'lake'} is one"),
    ):
        told = refused(capsys, *words.split(), "--lake", str(place))
        assert f"there is no lake at {place}: no node has written to it" in told
        assert said in told
        assert list(place.iterdir()) == []
    assert not started.exists()


@pytest.mark.parametrize(("words", "what"), [("run", "run"), ("plan", "run"), ("stream", "stream")])
def test_another_that_is_at_work_on_the_lake(
    capsys: Captured, tmp_path: Path, started: Path, words: str, what: str
) -> None:
    claims.claim(tmp_path, "a")
    with open_lake(tmp_path).only_one(what):
        told = refused(capsys, "pipeline", words, "--lake", str(tmp_path))
    assert f"process {os.getpid()} is at work on {tmp_path}" in told
    assert not started.exists()


def test_a_run_every_so_often_is_left_to_another_at_work_and_ends_by_ctrl_c(
    tmp_path: Path, started: Path
) -> None:
    claims.claim(tmp_path, "a")
    command = [sys.executable, "-m", "ebbmq.cli", "pipeline", "run", "--lake", str(tmp_path)]
    with (
        open_lake(tmp_path).only_one("run"),
        subprocess.Popen([*command, "--every", "10ms"], stderr=subprocess.PIPE, text=True) as child,
    ):
        assert child.stderr is not None
        for _ in range(2):
            assert "left to another: process" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    assert not started.exists()
