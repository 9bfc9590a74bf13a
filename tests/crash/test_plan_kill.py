"""kill -9 while a plan is applied: what is on record holds, and applying again does the rest."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.feed import layout
from ebbmq.feed.plans import PLANS
from tests.advice import plan_row, publish, until_usable, write
from tests.serving import wait_until

pytestmark = pytest.mark.crash

PARTS, ROWS = 5, 150
WORK = """
import json, sys
from ebbmq import Broker
from tests.advice import until_usable
data, config = sys.argv[1], json.loads(sys.argv[2])
broker = Broker.open(data, config)
until_usable(broker)
print("ready", flush=True)
broker.apply_plans("r1", progress=lambda told: print(told.applied, flush=True))
sys.stdin.read()
"""


def config_of(path: Path) -> dict[str, Any]:
    return {
        "node": "n1",
        "feed": {"lake": str(path / "lake"), "plans_every_ms": 0, "snapshot_every_ms": 0},
        "devices": {
            "log": {"tier": "fast"},
            "hdd": {"kind": "file", "capacity_bytes": 1 << 28, "tier": "slow"},
        },
    }


def planned(path: Path) -> list[bytes]:
    """A store with messages, and a plan for all of them; returns the bodies."""
    bodies = [b"body %d" % number for number in range(PARTS * ROWS)]
    with Broker.open(path / "data", config_of(path)) as broker:
        broker.declare(QueueSpec("q", tiers=("fast", "slow")))
        ids = [each.id for each in broker.publish("q", [Message(body) for body in bodies])]
    now_ms = time.time_ns() // 1_000_000
    times = {"decided_at_ms": now_ms, "until_ms": now_ms + 3_600_000, "to_tier": "slow"}
    rows = [plan_row(each, action="move", **times) for each in ids]
    files = [
        write(path / "lake", PLANS, layout.plan_file("r1", part), rows[part * ROWS :][:ROWS], None)
        for part in range(PARTS)
    ]
    publish(path / "lake", PLANS, files, now_ms, rows=ROWS)
    return bodies


def applied_once(path: Path) -> dict[str, Any]:
    """How messages are kept where a copy of the store has the plan applied, undisturbed."""
    shutil.copytree(path / "data", path / "once")
    with Broker.open(path / "once", config_of(path)) as broker:
        until_usable(broker)
        (told,) = broker.apply_plans("r1")
        assert told.applied == told.rows
        engine = broker.engine
        wait_until(lambda: engine.holdings.counts("hdd") == (told.rows, 0), "all are moved")
        found = kept(broker, told.rows)
    shutil.rmtree(path / "once")
    return found


def kept(broker: Broker, count: int) -> dict[str, Any]:
    """Where each message is, how many copies it should have, and which plan says so."""
    return {
        each.id: (each.copies, each.tier, each.replica_target, broker.why(each.id)["pinned"])
        for each in broker.peek("q", count)
    }


def killed_while_applying(path: Path, moments: random.Random) -> None:
    command = [sys.executable, "-c", WORK, str(path / "data"), json.dumps(config_of(path))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        for _ in range(moments.randrange(PARTS)):
            child.stdout.readline()
        time.sleep(moments.random() / 50)  # any instant will do
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("checkpoints", ["kept", "deleted"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_plan_that_was_cut_short_is_applied_to_the_end(
    tmp_path: Path, seed: int, checkpoints: str
) -> None:
    bodies, moments = planned(tmp_path), random.Random(seed)
    once = applied_once(tmp_path)
    for _ in range(2):
        killed_while_applying(tmp_path, moments)
        if checkpoints == "deleted":
            shutil.rmtree(tmp_path / "data" / "checkpoints")
    with Broker.open(tmp_path / "data", config_of(tmp_path)) as broker:
        engine = broker.engine
        until_usable(broker)
        with engine.lock:
            before = len(engine.pins)
            for name in engine.pins.names():
                holding = engine.holdings.of(name)
                assert "hdd" in holding.copies | holding.pending, "a pin without what follows"
        (told,) = broker.apply_plans("r1")
        assert (told.rows, told.refused) == (len(bodies), {})
        assert told.in_force == before
        assert broker.plans().pinned == len(bodies)
        wait_until(lambda: engine.holdings.counts("hdd") == (len(bodies), 0), "all are moved")
        assert kept(broker, len(bodies)) == once
        leases = broker.lease("q", len(bodies))
        assert [lease.body for lease in leases] == bodies
