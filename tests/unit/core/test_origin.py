"""How a message was published fits beside the reason of its row."""

import itertools

import pytest

from ebbmq.core import origin
from ebbmq.core.row import ORIGIN, REASON
from ebbmq.model import LEVELS, Reason


@pytest.mark.parametrize(("level", "topic"), [*itertools.product([None, *LEVELS], [True, False])])
@pytest.mark.parametrize("reason", [0, *Reason])
def test_level_and_destination_are_read_as_they_were_kept(
    level: str | None, topic: bool, reason: int
) -> None:
    bits = origin.origin(level, topic=topic) | reason
    assert origin.level_of(bits) == level
    assert origin.destination_of(bits) == ("TOPIC" if topic else "QUEUE")
    assert bits & REASON == reason
    assert bits & ORIGIN == origin.origin(level, topic=topic)
    assert bits < 256


def test_a_row_that_did_not_keep_it_says_nothing() -> None:
    assert origin.level_of(0) is None
    assert origin.destination_of(0) == "QUEUE"
