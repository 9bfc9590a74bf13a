"""What a mapping says of how long messages are kept: a duration, whoever's clock was asked."""

from __future__ import annotations

import pytest

from ebbmq.holding import mapping
from ebbmq.holding.mapping import Mapping
from ebbmq.limits import DAY_MS

MADE_MS = 1_700_000_000_000


def made(before_ms: int) -> Mapping:
    return Mapping(store="ab", run="r", made_at_ms=MADE_MS, packs=(), expired_before_ms=before_ms)


@pytest.mark.parametrize(
    ("before_ms", "keep_ms"),
    [
        (MADE_MS - 90 * DAY_MS, 90 * DAY_MS),
        (MADE_MS, 0),
        (0, None),
        (MADE_MS + 1, None),
        (-1, None),
    ],
)
def test_how_long_messages_are_kept_is_told_by_two_instants_of_one_clock(
    before_ms: int, keep_ms: int | None
) -> None:
    assert made(before_ms).keep_ms == keep_ms


def test_a_mapping_is_stored_in_the_form_that_earlier_versions_wrote_and_read() -> None:
    stored = mapping.encode(made(MADE_MS - DAY_MS))
    assert mapping.decode(stored, "ab").keep_ms == DAY_MS
    assert b"keep_ms" not in stored
