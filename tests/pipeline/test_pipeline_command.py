"""`ebbmq serve` runs the pipeline, and people run the rest of it: with real Spark, to the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Client, Message, QueueSpec
from ebbmq.feed import runs
from ebbmq.feed.profiles import PROFILES
from tests.pipeline.lakes import rows
from tests.serving import Running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
DEADLINE_S = 600
ONCE = {"published": 7, "leased": 3, "acked": 3}
TOML = """
node = "a"
[feed]
lake = "lake"
every_ms = 50
plans_every_ms = 100
[pipeline]
every_ms = 1000
master = "local[2]"
memory = "512m"
[devices.log]
tier = "ssd"
cost_per_gib_month = 0.1
# There is no room for a copy, which a plan that is not bounded does not look at.
[devices.full]
kind = "file"
tier = "s3"
capacity_bytes = 1
cost_per_gib_month = 0.1
"""


def ebbmq(lake: Path, command: str, *options: str) -> tuple[str, str]:
    """What a command prints, and what somebody who watches it sees."""
    terminal, end = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "ebbmq.cli", "pipeline", command, "--lake", str(lake), *options],
        stdout=subprocess.PIPE,
        stderr=end,
        env={**os.environ, **QUICK_JAVA, "TERM": "xterm"},
        text=True,
    ) as child:
        os.close(end)
        seen = b""
        # A terminal that nobody holds any more is an error to who reads it.
        with contextlib.suppress(OSError):
            while some := os.read(terminal, 65_536):
                seen += some
        assert child.stdout is not None
        out = child.stdout.read()
    os.close(terminal)
    assert child.returncode == 0, seen.decode()
    return out, seen.decode()


def wait_for_run(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_there():
        assert time.monotonic() < deadline, "a run that read all of it"
        time.sleep(0.1)


def is_running(lake: Path) -> bool:
    """Whether a run is at work on a lake."""
    with (lake / runs.RUNS / ".run.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def plan_without_money(lake: Path) -> None:
    """Plan by the command: four ask for a second copy."""
    log = lake.parent / "told"
    log.mkdir()
    conf = {
        "spark.executor.memory": "777m", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(), "spark.eventLog.compress": "false",
    }  # fmt: skip
    more = [word for each in conf.items() for word in ("--conf", "=".join(each))]
    more += ["--memory", "512m", "--budget", "0"]
    out, watched = ebbmq(lake, "plan", "--full", "--unbounded", *more)
    assert "plan " in out
    assert "left out for want of money: 4 messages, " in out
    assert "after, of 0.00" in out
    assert "planning" in watched
    # What Spark writes down of itself has what it was told.
    (told,) = log.rglob("events_1_local-*")
    assert '"spark.executor.memory":"777m"' in told.read_text()
    shown, _ = ebbmq(lake, "history", "--last", "1")
    head, last = (" ".join(line.split()) for line in shown.splitlines())
    assert head.endswith(" ACTIONS NO MONEY REFUSED")
    assert last.endswith(" 0 4 0")


@pytest.mark.crash
def test_a_server_runs_the_pipeline_and_commands_show_and_plan_the_rest(tmp_path: Path) -> None:
    (tmp_path / "ebbmq.toml").write_text(TOML)
    lake = tmp_path / "data" / "lake"
    options = (tmp_path / "data", "--config", str(tmp_path / "ebbmq.toml"))

    def records() -> list[Any]:
        found = sorted((lake / runs.RUNS).glob("*.json"))
        return [runs.decode(each.read_bytes(), each.name) for each in found]

    # It is killed in the middle of a run, which ends with it and counts for nothing.
    with Running(*options, environment=QUICK_JAVA) as server, Client(server.url) as client:
        client.declare(QueueSpec("orders", tiers=("ssd", "s3")))
        client.publish("orders", [Message(b"x", replicas=2)] * 7)
        client.ack("orders", [each.token for each in client.lease("orders", 3)])
        wait_for_run(lambda: any((lake / "profiles").glob("run=*")))
        server.kill()
    wait_until(lambda: not is_running(lake), "the run is gone")
    assert not any(each.events for each in records())
    with Running(*options, environment=QUICK_JAVA) as server, Client(server.url) as client:

        def is_counted() -> bool:
            return sum(each.events for each in records() if each.kind == "run") >= 13

        wait_for_run(is_counted)
        # The same child runs on.
        wait_for_run(lambda: len(records()) > 2)
        assert "pipeline_ended" not in server.log()
        first = records()[0].run
        counts = {row["event"]: row["count"] for row in rows(lake, PROFILES)}
        assert {event: counts[event] for event in ONCE} == ONCE
        # What was planned is taken up by the server itself.
        wait_until(lambda: first in {each.run for each in client.plans().runs}, "it is taken up")
        with server.caller() as caller:
            assert caller.call("GET", "/health/ready").json["pipeline"] == []
        assert server.stop() == 0
    plan_without_money(lake)
    shown, _ = ebbmq(lake, "history", "--json")
    told = [each for each in json.loads(shown) if each["ended_at_ms"]]
    assert (told[0]["run"], told[-1]["kind"], told[-1]["full"]) == (first, "plan", True)
    page = tmp_path / "page.html"
    shown, _ = ebbmq(lake, "report", "--out", str(page), "--memory", "512m", "--json")
    assert json.loads(shown) == {"report": str(page)}
    assert told[-1]["run"] in page.read_text()
    assert "orders" in page.read_text()
