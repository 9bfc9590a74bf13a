"""kill -9 of a broker with a feed: whatever the instant, nobody ever sees a part of a file."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker
from ebbmq.feed.snapshots import CATALOG
from tests.feeds import rows_of
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.crash

WORK = """
import json, sys, time
from ebbmq import Broker, Message, QueueSpec
data, config, pause_s = sys.argv[1:]
broker = Broker.open(data, json.loads(config))
broker.declare(QueueSpec("q"))
print("ready", flush=True)
while True:
    time.sleep(float(pause_s))
    broker.publish("q", [Message(b"x" * 100)] * 50, confirm="written")
    leases = broker.lease("q", count=40)
    broker.ack("q", [lease.token for lease in leases])
"""


def feed_of(lake: Path, **more: int) -> dict[str, object]:
    return {"feed": {"lake": str(lake), "every_ms": 10, "snapshot_every_ms": 20, **more}}


@contextlib.contextmanager
def working(
    data: Path, config: dict[str, object], lake: Path, pause_s: float = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """A broker that works without end, once something it told is visible."""
    before = len(_manifests(lake))
    command = [sys.executable, "-c", WORK, str(data), json.dumps(config), str(pause_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            wait_until(lambda: len(_manifests(lake)) > before, "the first file of the feed")
            yield child
        finally:
            child.kill()


def killed_while_working(tmp_path: Path, lake: Path, seed: int) -> None:
    with working(tmp_path / "data", feed_of(lake), lake) as child:
        time.sleep(random.Random(seed).random() / 4)  # any instant will do
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


def test_what_is_visible_after_a_kill_is_whole_and_the_next_start_goes_on(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for seed in range(4):
        killed_while_working(tmp_path, lake, seed)
        rows = rows_of(lake)
        of_boot = {boot: [r["seq"] for r in rows if r["boot"] == boot] for boot in _boots(rows)}
        assert len(of_boot) == seed + 1
        for numbers in of_boot.values():
            assert numbers == list(range(1, len(numbers) + 1))
        assert all(row["copies"] == 1 for row in rows_of(lake, CATALOG))
    with Broker.open(tmp_path / "data", feed_of(lake)) as broker:
        assert broker.health()["feed"] == []
    named = {str(path) for path in _files(lake) if path.suffix == ".json"}
    parts = {str(path) for path in _files(lake)} - named
    assert all(path.endswith(".parquet") for path in parts)


def _boots(rows: list[dict[str, object]]) -> list[object]:
    return sorted({row["boot"] for row in rows}, key=str)


def _manifests(lake: Path) -> list[Path]:
    return list((lake / "events" / "_manifests").rglob("*.json"))


def _files(lake: Path) -> list[Path]:
    return [path for path in lake.rglob("*") if path.is_file()]
