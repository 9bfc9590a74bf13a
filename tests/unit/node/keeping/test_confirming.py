"""Who waits for copies: records as wholes, and message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, QueueSpec
from ebbmq.node.keeping.confirming import Confirming
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUEUE = QueueSpec("q", copy_timeout_ms=1_000)


class Shard:
    """As much of a partition as is asked for."""

    class queue:  # noqa: N801
        spec = QUEUE


SHARD = Shard()
#: Where records of no partition would be: everything has its copies.
ALL = 1 << 63


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def waiting(tmp_path: Path, clock: ManualClock) -> Iterator[Confirming]:
    with Broker.open(tmp_path / "data", clock=clock) as broker:
        yield Confirming(broker.engine)


def publish(waiting: Confirming, position: int, names) -> list:
    """Hold a record back and have its call told; what it was told comes into the list."""
    told = []
    waiting.hold(SHARD, position, names)
    waiting.note_call(position)
    assert waiting.when_copied(position, told.append)
    return told


@pytest.mark.parametrize("kind", [range, lambda *ends: list(range(*ends))], ids=["whole", "names"])
@pytest.mark.parametrize(
    "parts",
    [
        [range(100, 200)],
        [list(range(100, 200))],
        [range(100, 150), range(150, 200)],
        [list(range(90, 120)), list(range(199, 119, -1))],
        [[number] for number in range(100, 200)],
    ],
)
def test_a_call_is_told_once_its_last_message_has_its_copies_and_not_before(waiting, kind, parts):
    told = publish(waiting, 7, kind(100, 200))
    for some in parts:
        assert (told, waiting.reached(SHARD, ALL)) == ([], 6)
        waiting.copied(some)
    assert (told, waiting.reached(SHARD, ALL), bool(waiting)) == ([None], ALL, False)


def test_copies_of_other_messages_say_nothing_of_a_record(waiting):
    first, second = publish(waiting, 7, range(100, 200)), publish(waiting, 9, range(200, 300))
    waiting.copied(range(300, 400))
    waiting.copied(list(range(100)))
    assert (first, second) == ([], [])
    waiting.copied(range(200, 300))
    assert (first, second, waiting.reached(SHARD, ALL)) == ([], [None], 6)


def test_a_call_that_repeats_one_message_waits_for_all_of_its_record(waiting):
    told = publish(waiting, 7, range(100, 200))
    waiting.repeat([150])
    waiting.note_call(8)
    again = []
    assert waiting.when_copied(8, again.append)
    waiting.copied(range(100, 199))
    assert (told, again) == ([], [])
    waiting.copied([199])
    assert (told, again) == ([None], [None])


def test_a_record_is_overdue_after_each_patience_of_its_queue_until_it_has_its_copies(
    waiting, clock
):
    publish(waiting, 7, range(100, 104))
    clock.advance(999)
    assert waiting.overdue() == []
    waiting.copied([101])
    for _ in range(2):
        clock.advance(1_000)
        ((shard, _, names),) = waiting.overdue()
        assert (shard, names) == (SHARD, [100, 102, 103])
        assert waiting.overdue() == []
    waiting.copied([100, 102, 103])
    clock.advance(1_000)
    assert waiting.overdue() == []


def test_a_call_that_is_refused_is_told_once_and_who_repeats_it_waits_on(waiting, clock):
    told, error = publish(waiting, 7, range(100, 102)), ValueError()
    clock.advance(1_000)
    ((_, record, _),) = waiting.overdue()
    waiting.refuse(record, error)
    assert told == [error]
    late: list[object] = []
    assert waiting.when_copied(7, late.append)
    assert late == [error]
    waiting.repeat([100])
    waiting.note_call(7)
    again: list[object] = []
    assert waiting.when_copied(7, again.append)
    assert again == []
    waiting.copied(range(100, 102))
    assert (told, late, again) == ([error], [error], [None])
    assert not waiting.when_copied(7, again.append)
