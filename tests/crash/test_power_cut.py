"""Real power cuts: what was confirmed as synced is on the device, and synced acks hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.crash.mounts import PowerCut
from tests.crash.story import Story

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.crash.server import Server

pytestmark = pytest.mark.crash

CUTS = 5


@pytest.fixture
def power(tmp_path: Path) -> Iterator[PowerCut]:
    power = PowerCut(tmp_path)
    try:
        yield power
    finally:
        power.close()


@pytest.mark.xfail(
    strict=False,
    reason="one run in ten: an opening cuts the last old segment before rows that a checkpoint has "
    "in it, and the next one keeps their messages in doubt",
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_promise_holds_after_power_cuts(
    tmp_path: Path, server: Server, power: PowerCut, seed: int
) -> None:
    story = Story(tmp_path, server, seed, power.mountpoint / "data", hands_back=False)
    moments = random.Random(seed)
    for _ in range(CUTS):
        story.live_until_cut(power.cut, after_s=moments.uniform(0.02, 0.25))
        power.power_on()
    assert story.verdict() == []
