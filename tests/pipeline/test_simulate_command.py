"""`ebbmq simulate` as a user runs it, and what he is told where it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ebbmq_spark.java import JavaMissing, require_java
from tests.pipeline.handwritten import tell, wiped

if TYPE_CHECKING:
    from pathlib import Path

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WITHOUT = "import sys; sys.modules['pyspark'] = None; from ebbmq.cli.main import main; main()"


def ebbmq(directory: Path, *arguments: str, program: str = "", **environment: str):
    start = ["-c", program] if program else ["-m", "ebbmq.cli"]
    return subprocess.run(
        [sys.executable, *start, "simulate", *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_made_up_traffic_is_tried_and_the_best_can_be_used_again(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        "[sweep]\ndecay_rate = [1.0]\ndecay_unit_ms = [60000, 120000]\n"
    )
    done = ebbmq(
        tmp_path, "--generate", "overload", "--messages", "600", "--policies", "sweep.toml",
        "--master", "local[2]", "--memory", "512m", "--json",
        JAVA_TOOL_OPTIONS=QUICK_JAVA,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["queues"]["work"]
    found = {each["policy"]: each for each in told["policies"]}
    assert set(found) == {
        "fifo", "importance", "decay_rate=1.0 decay_unit_ms=60000",
        "decay_rate=1.0 decay_unit_ms=120000",
    }  # fmt: skip
    assert found[told["best"]]["worth_on_time"] > found["fifo"]["worth_on_time"]
    assert found["importance"]["important_on_time"] > found["fifo"]["important_on_time"]
    assert "decay_unit_ms = " in (tmp_path / "ebbmq-best.toml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ebbmq-best.toml", "ebbmq-simulate.png", "sweep.toml",
    ]  # fmt: skip


def test_a_damaged_file_of_a_lake_is_named_and_the_rest_replayed(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    done = {"seq": 200, "message_id": "a1", "event": "acked", "latency_ms": 20}
    tell(lake, 1, [*({"seq": n, "message_id": f"a{n}"} for n in range(1, 51)), done])
    wiped(tell(lake, 2, [{"seq": n, "message_id": f"b{n}"} for n in range(51, 101)]))
    (tmp_path / "sweep.toml").write_text("[policies.today]\n")
    done = ebbmq(
        tmp_path, "--lake", "lake", "--policies", "sweep.toml", "--useful", "60s",
        "--master", "local[2]", "--memory", "512m", "--json",
        JAVA_TOOL_OPTIONS=QUICK_JAVA,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1-000000002.parquet cannot be read" in done.stderr
    (queue,) = json.loads(done.stdout)["queues"].values()
    assert {each["messages"] for each in queue["policies"]} == {50}
    # None of them is of importance 8 or more.
    assert {each["important_on_time"] for each in queue["policies"]} == {None}


def test_what_of_a_lake_is_not_simulated_is_said(tmp_path: Path) -> None:
    told = [{"seq": n, "message_id": f"o{n}", "queue": "orders"} for n in range(1, 6)]
    told += [{"seq": 10, "message_id": "o1", "queue": "orders", "event": "acked", "latency_ms": 5}]
    tell(tmp_path / "lake", 1, [*told, {"seq": 11, "message_id": "d", "queue": "dead"}])
    (tmp_path / "sweep.toml").write_text("[policies.today]\n[queues.ordres]\nmax_attempts = 2\n")
    done = ebbmq(
        tmp_path, "--lake", "lake", "--policies", "sweep.toml", "--useful", "60s",
        "--master", "local[2]", "--memory", "512m",
        JAVA_TOOL_OPTIONS=QUICK_JAVA,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told_of = [line for line in done.stderr.splitlines() if "attention:" in line]
    missing, left_out, astray = told_of[:3]
    assert missing == "attention: the lake lacks 4 events of node a"
    assert left_out == "attention: left out, as no message of it was ever done: dead"
    assert astray.startswith("attention: [queues.ordres] counts for nothing: there is no such")
    assert "queue orders: 5 messages" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "fifo" in line]
    assert row.partition("fifo")[2].split()[:4] == ["100.0%", "100.0%", "-", "0.0%"]


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    done = ebbmq(tmp_path, "--generate", "bursts", "--messages", "10", JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    error, hint = [line for line in done.stderr.splitlines() if ":" in line][-2:]
    assert error.startswith("error: Spark needs Java 17 or newer")
    assert "apt-get install openjdk-17-jre-headless" in hint


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    done = ebbmq(tmp_path, "--generate", "bursts", program=WITHOUT)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: simulating runs on Spark, and pyspark is not installed",
        "hint: pip install 'ebbmq[spark]'; Spark also needs Java 17 or newer",
    ]


@pytest.mark.parametrize("arguments", [(), ("--generate", "bursts", "--trace", "x")])
def test_traffic_is_named_once(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = ebbmq(tmp_path, *arguments)
    assert done.returncode == 2
    assert "name the traffic once" in done.stderr


@pytest.mark.parametrize(
    ("version", "fits"),
    [('openjdk version "21.0.1"', True), ('openjdk version "17"', True),
     ('openjdk version "11.0.2"', False), ('java version "1.8.0_292"', False), ("boo", False)],
)  # fmt: skip
def test_java_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if fits:
        require_java()
    else:
        with pytest.raises(JavaMissing, match="Java 17 or newer"):
            require_java()
