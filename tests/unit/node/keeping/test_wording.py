"""Decisions in words: every event and every reason has some."""

from __future__ import annotations

import pytest

from ebbmq.feed.events import COPIES
from ebbmq.node.keeping import decisions
from ebbmq.node.keeping.decision_log import Told
from ebbmq.node.keeping.wording import words

REASONS = sorted(
    value for name, value in vars(decisions).items() if name.isupper() and isinstance(value, str)
)


@pytest.mark.parametrize("event", sorted(COPIES | {"faded"}))
def test_every_event_is_a_sentence_with_its_device_and_reason(event: str) -> None:
    said = words(Told(1, event, "hdd", "rule W-001", [1]))
    assert "W-001" in said
    assert event in {"faded", "pinned", "unpinned"} or "hdd" in said
    assert not said.startswith("hdd: ")


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_more_than_its_word(reason: str) -> None:
    event = "refused" if "call failed" not in words(Told(1, "refused", "hdd", reason, [1])) else ""
    assert event, f"{reason} is taken for the code of an error"
    assert words(Told(1, "copied", "hdd", reason, [1])) != f"copied to hdd: {reason}"


def test_what_is_said_of_further_copies_stays() -> None:
    told = Told(1, "placed", "ram, log", "default; log because it is durable", [1])
    assert words(told) == (
        "placed on ram, log: no rule is true of it, and this is the default; "
        "log because it is durable"
    )


def test_the_code_of_an_error_is_told_as_such() -> None:
    told = Told(1, "refused", "hdd", "device_full", [1])
    assert words(told) == "hdd did not take a copy: the call failed (device_full)"
