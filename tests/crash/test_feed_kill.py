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
    from collections.abc import Callable, Iterator
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
    data: Path, config: dict[str, object], shown: Callable[[], int], pause_s: float = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """A broker that works without end, once something it told is visible: more is shown."""
    before = shown()
    command = [sys.executable, "-c", WORK, str(data), json.dumps(config), str(pause_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            wait_until(lambda: shown() > before, "the first file of the feed")
            yield child
        finally:
            child.kill()


def killed_while_working(tmp_path: Path, lake: Path, seed: int) -> None:
    with working(tmp_path / "data", feed_of(lake), lambda: shown_in(lake)) as child:
        time.sleep(random.Random(seed).random() / 4)  # any instant will do
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


def test_what_is_visible_after_a_kill_is_whole_and_the_next_start_goes_on(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for seed in range(4):
        killed_while_working(tmp_path, lake, seed)
        assert_nothing_is_missing(lake, boots=seed + 1)
        assert all(row["copies"] == 1 for row in rows_of(lake, CATALOG))
    with Broker.open(tmp_path / "data", feed_of(lake)) as broker:
        assert broker.health()["feed"] == []
    named = {str(path) for path in _files(lake) if path.suffix == ".json"}
    parts = {str(path) for path in _files(lake)} - named
    assert all(path.endswith(".parquet") for path in parts)


def assert_nothing_is_missing(lake: Path, boots: int) -> None:
    """What is visible of each boot begins with its first event and has no gaps."""
    of_boot: dict[object, list[int]] = {}
    for row in rows_of(lake):
        of_boot.setdefault(row["boot"], []).append(row["seq"])
    assert len(of_boot) == boots
    for numbers in of_boot.values():
        assert numbers == list(range(1, len(numbers) + 1))


def shown_in(lake: Path) -> int:
    """How many files of events are visible."""
    return len(list((lake / "events" / "_manifests").rglob("*.json")))


def _files(lake: Path) -> list[Path]:
    return [path for path in lake.rglob("*") if path.is_file()]
