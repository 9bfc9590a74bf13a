"""What is told of a calendar that jumped."""

from __future__ import annotations

import pytest

from ebbmq.limits import DAY_MS
from ebbmq.node.clock import doubt_of


@pytest.mark.parametrize(
    ("since_ms", "told"),
    [
        (-90_000, "90 seconds behind"),
        (-600_000, "10 minutes behind"),
        (-5 * 3_600_000, "5 hours behind"),
        (-31_535_999_264, "364 days behind"),
        (3_000 * DAY_MS, "3,000 days ahead"),
    ],
)
def test_how_far_it_is_off_is_told_as_people_say_it(since_ms: int, told: str) -> None:
    assert told in (doubt_of(since_ms) or "")
