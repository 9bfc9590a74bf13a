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
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from ebbmq.feed import layout
from ebbmq.feed.plans import PLANS
from tests.advice import plan_row, publish, until_usable, write
from tests.relay import Relay
from tests.serving import Running, wait_until

if TYPE_CHECKING:
    from tests.serving import Caller

pytestmark = pytest.mark.crash

PARTS, ROWS = 5, 150
#: As many as two requests take.
MANY_ROWS = limits.PLAN_ROWS_MAX // 4
TOML = """
node = "n1"
[devices.log]
tier = "fast"
[devices.hdd]
kind = "file"
capacity_bytes = 268435456
tier = "slow"
"""
#: Whether the command says which run.
NAMED = pytest.mark.parametrize("options", [("--run", "r1"), ()], ids=["named", "all that is new"])
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


def planned(path: Path, count: int = ROWS) -> list[bytes]:
    """A store with messages, and a plan for all of them; returns the bodies."""
    bodies = [b"body %d" % number for number in range(PARTS * count)]
    with Broker.open(path / "data", config_of(path)) as broker:
        broker.declare(QueueSpec("q", tiers=("fast", "slow")))
        ids = [each.id for each in broker.publish("q", [Message(body) for body in bodies])]
    now_ms = time.time_ns() // 1_000_000
    times = {"decided_at_ms": now_ms, "until_ms": now_ms + 3_600_000, "to_tier": "slow"}
    rows = [plan_row(each, action="move", **times) for each in ids]
    files = [
        write(
            path / "lake", PLANS, layout.plan_file("r1", part), rows[part * count :][:count], None
        )
        for part in range(PARTS)
    ]
    publish(path / "lake", PLANS, files, now_ms, rows=count)
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


def apply(path: Path, url: str, *options: str) -> subprocess.Popen[str]:
    """`ebbmq pipeline apply` on a server that has no lake of its own."""
    command = ("pipeline", "apply", "--lake", str(path / "lake"), "--url", url, *options)
    return subprocess.Popen(
        [sys.executable, "-m", "ebbmq.cli", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told_by(command: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What a command says that is carried through."""
    with command:
        out, errors = command.communicate()
    assert command.returncode == 0, errors
    found: list[dict[str, Any]] = json.loads(out)
    return found


def configured(path: Path) -> tuple[Path, str, str]:
    """What a server is started with."""
    (path / "ebbmq.toml").write_text(TOML)
    return path / "data", "--config", str(path / "ebbmq.toml")


def wait_begun(caller: Caller, cut: subprocess.Popen[str]) -> None:
    """Until some of the plan is in force."""

    def has_begun() -> bool:
        return bool(caller.call("GET", "/v1/plans").json["pinned"])

    wait_until(lambda: has_begun() or cut.poll() is not None, "the plan is begun")


def apply_again(path: Path, server: Running, caller: Caller, count: int, *options: str) -> None:
    """Hand over the same plan once more: what is in force stays so, the rest is done."""

    def are_usable() -> bool:
        return all(each["usable"] for each in caller.call("GET", "/v1/devices").json["devices"])

    wait_until(are_usable, "devices that answer")
    before = caller.call("GET", "/v1/plans").json["pinned"]
    (told,) = told_by(apply(path, server.url, *options))
    assert (told["applied"], told["in_force"]) == (count - before, before)
    assert told["refused"] == {}
    assert told_by(apply(path, server.url)) == [], "it is known as a whole"


def assert_moved(path: Path, once: dict[str, Any]) -> None:
    """Messages are where they would be had nobody been killed."""
    with Broker.open(path / "data", config_of(path)) as broker:
        holdings = broker.engine.holdings
        wait_until(lambda: holdings.counts("hdd") == (len(once), 0), "all are moved")
        assert kept(broker, len(once)) == once


@NAMED
def test_a_server_that_is_killed_while_it_is_handed_a_plan_has_it_applied_once(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    planned(tmp_path, MANY_ROWS)
    once, settings = applied_once(tmp_path), configured(tmp_path)
    with (
        Running(*settings) as server,
        server.caller() as caller,
        apply(tmp_path, server.url, *options) as cut,
    ):
        wait_begun(caller, cut)
        server.kill()
        cut.kill()
    with Running(*settings) as server, server.caller() as caller:
        apply_again(tmp_path, server, caller, len(once), *options)
        server.kill()
    assert_moved(tmp_path, once)


class OnePart(Relay):
    """Passes on what is asked before a plan, and the first part of it."""

    def loses(self, what: str, path: str) -> bool:
        return what == "request" and self.requests["plans"] > 2


@NAMED
def test_a_command_that_is_killed_while_it_hands_over_a_plan_has_it_applied_once(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    planned(tmp_path, MANY_ROWS)
    once = applied_once(tmp_path)
    with Running(*configured(tmp_path)) as server, server.caller() as caller:
        with OnePart(server.url) as relay, apply(tmp_path, relay.url, *options) as cut:
            wait_begun(caller, cut)
            cut.kill()
        assert cut.returncode == -signal.SIGKILL, "it was killed in the middle"
        # The server goes on with the part it has.
        wait_until(
            lambda: caller.call("GET", "/v1/plans").json["pinned"] == limits.PLAN_ROWS_MAX,
            "one part is in force",
        )
        apply_again(tmp_path, server, caller, len(once), *options)
        server.kill()
    assert_moved(tmp_path, once)
