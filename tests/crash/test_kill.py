"""kill -9 at any moment: what was confirmed is there, what was acked stays away."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.crash.conftest import LIVES
from tests.crash.faults import Fault
from tests.crash.story import Story

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.server import Server

pytestmark = pytest.mark.crash

KILL_WITHIN_S = 0.12


def test_every_promise_holds_after_kill_9_at_random_moments(
    tmp_path: Path, server: Server, story_number: int
) -> None:
    story = Story(tmp_path, server, seed=story_number)
    moments = random.Random(story_number)
    for _ in range(LIVES):
        status = story.live(kill_after_s=moments.uniform(0, KILL_WITHIN_S))
        assert status in (0, -signal.SIGKILL), story.error()
    assert story.verdict() == []


POINTS = {
    "before a write": Fault("write", "before", "young-", 40),
    "in the middle of a write": Fault("write", "middle", "young-", 40),
    "after a write, before its sync": Fault("write", "after", "young-", 40),
    "before a sync": Fault("sync", "before", "young-", 20),
    "after a sync, before the reply": Fault("sync", "after", "young-", 20),
    "before a segment is made": Fault("create", "before", "young-", 3),
    "after a segment was made": Fault("create", "after", "young-", 3),
    "before a segment is deleted": Fault("delete", "before", "young-", 1),
    "after a segment was deleted": Fault("delete", "after", "young-", 1),
    "before a relocation is written": Fault("write", "before", "old-", 1),
    "in the middle of a relocation": Fault("write", "middle", "old-", 1),
    "after a relocation, before its sync": Fault("write", "after", "old-", 1),
    "after the sync of a relocation": Fault("sync", "after", "old-", 1),
    "in the middle of a page of a checkpoint": Fault("write", "middle", "checkpoint-", 2),
    "after the sync of pages or a manifest": Fault("sync", "after", "checkpoint-", 1),
    "before a checkpoint counts": Fault("rename", "before", "checkpoint-", 1),
    "after a checkpoint counts, before others go": Fault("rename", "after", "checkpoint-", 1),
    "before a checkpoint is deleted": Fault("delete", "before", "checkpoint-", 1),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_every_promise_holds_after_a_kill_at(
    tmp_path: Path, server: Server, point: str, nth: int
) -> None:
    story = Story(tmp_path, server, seed=nth)
    fault = POINTS[point]
    story.live(calls=60)
    first = Fault(fault.operation, fault.moment, fault.prefix, fault.nth * nth)
    # As many as it takes: upkeep comes to its point by itself, late on a busy machine.
    status = story.live(fault=first, calls=100_000)
    assert status == -signal.SIGKILL, f"never came to the point {point}: {story.error()}"
    # The second life meets the same point while it recovers or works on what the first one left.
    story.live(fault=fault, calls=100)
    assert story.verdict() == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_promise_holds_when_all_checkpoints_are_deleted_after_each_kill(
    tmp_path: Path, server: Server, seed: int
) -> None:
    story = Story(tmp_path, server, seed=seed)
    moments = random.Random(seed)
    first = story.directory / "journal" / "young-0000000001.seg"
    for life in range(8 * LIVES):
        # Longer and longer, so that a slow machine comes to reclaim something too.
        longest_s = (2 + (life / LIVES) ** 2) * KILL_WITHIN_S
        story.live(kill_after_s=moments.uniform(0.05, longest_s))
        for path in (story.directory / "checkpoints").glob("*"):
            path.unlink()
        if life > LIVES // 2 and not first.exists():
            break
    assert not first.exists(), "no segment was ever reclaimed"
    assert story.verdict() == []
