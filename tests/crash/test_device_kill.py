"""kill -9 of a broker with devices: what was confirmed is there once, copies are as told."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.conftest import LIVES
from tests.crash.copies import differences, is_settled
from tests.crash.devices import MIB, SOON
from tests.crash.mounts import PowerCut
from tests.crash.points import Point
from tests.crash.story import OPTIONS, Story
from tests.crash.worker import CONFIG
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq import Broker
    from tests.crash.server import Server

pytestmark = pytest.mark.crash

KILL_WITHIN_S = 0.4
FILE: dict[str, Any] = {"kind": "file", "capacity_bytes": 16 * MIB, "status": SOON}
#: What is important leaves the log, the least is only there, the rest has a copy beside it.
RULES = [
    {"id": "A", "weight": 90, "device": "a", "when": "IMPORTANCE > 6"},
    {"id": "B", "weight": 80, "device": "b", "when": "IMPORTANCE > 3"},
    {"id": "C", "weight": 70, "device": "c", "when": "IMPORTANCE > 6"},
]
DEVICES = {
    **CONFIG,
    "devices": {"a": FILE, "b": FILE, "c": FILE},
    "rules": RULES,
    "placement": {"repair_after_ms": 100},
}
#: A message whose copies are not there yet, or whose device is not, comes after others.
UNORDERED = replace(OPTIONS, ordered=frozenset())
LIFE: dict[str, Any] = {"replicas": (None, 1, 2, 3), "calls": 2_000}


def is_as_told(broker: Broker) -> None:
    """Devices have what the broker says, and nothing else."""
    # Messages end meanwhile: what is told is what was there a moment ago.
    wait_until(lambda: is_settled(broker) and differences(broker) == {}, "settling")


def forget_checkpoints(story: Story) -> None:
    directory = story.directory / "checkpoints"
    # A life may end before it made the directory.
    if directory.exists():
        shutil.rmtree(directory)


@pytest.mark.parametrize("min_copies", [1, 2])
@pytest.mark.parametrize("checkpoints", ["kept", "deleted"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_promise_holds_after_kill_9_at_random_moments(
    tmp_path: Path, server: Server, seed: int, checkpoints: str, min_copies: int
) -> None:
    story = Story(tmp_path, server, seed=seed, config=DEVICES, options=UNORDERED)
    moments = random.Random(seed)
    for _ in range(LIVES // 2):
        after_s = moments.uniform(0.05, KILL_WITHIN_S)
        status = story.live(kill_after_s=after_s, min_copies=min_copies, **LIFE)
        assert status in (0, -signal.SIGKILL), story.error()
        if checkpoints == "deleted":
            forget_checkpoints(story)
    assert story.verdict(also=is_as_told) == []


@pytest.mark.xfail(strict=False, reason="one run in ten: see test_power_cut")
@pytest.mark.parametrize("seed", [1, 2])
def test_every_promise_holds_after_power_cuts(tmp_path: Path, server: Server, seed: int) -> None:
    power = PowerCut(tmp_path)
    try:
        directory = power.mountpoint / "data"
        story = Story(
            tmp_path, server, seed, directory, config=DEVICES, options=UNORDERED, hands_back=False
        )
        moments = random.Random(seed)
        for _ in range(LIVES // 2):
            after_s = moments.uniform(0.1, KILL_WITHIN_S)
            story.live_until_cut(power.cut, after_s, min_copies=seed, replicas=LIFE["replicas"])
            power.power_on()
        assert story.verdict(also=is_as_told) == []
    finally:
        power.close()


POINTS = {
    "before a copy is started": Point("put", "before", 5),
    "after a copy was started": Point("put", "after", 5),
    "before a copy is read back": Point("read_back", "before", 3),
    "after a copy was made, before that is told": Point("made", "before", 4),
    "after a copy is told of, before what follows": Point("made", "after", 4),
    "before a copy is deleted": Point("delete", "before", 2),
    "after a copy is being deleted": Point("delete", "after", 2),
    "after a copy was deleted, before that is told": Point("deleted", "before", 2),
    "after the deletion of a copy is told of": Point("deleted", "after", 2),
    "after an ack, before its copies are": Point("gone", "before", 10),
    "after an ack, and its copies were": Point("gone", "after", 10),
}


@pytest.mark.parametrize("point", POINTS)
def test_every_promise_holds_after_a_kill(tmp_path: Path, server: Server, point: str) -> None:
    story = Story(tmp_path, server, seed=1, config=DEVICES, options=UNORDERED)
    story.live(calls=60, replicas=LIFE["replicas"])
    for _ in range(2):
        status = story.live(point=POINTS[point], min_copies=2, **LIFE)
        assert status == -signal.SIGKILL, f"never came to the point {point}: {story.error()}"
    assert story.verdict(also=is_as_told) == []
