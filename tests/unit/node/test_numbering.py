from __future__ import annotations

from ebbmq import limits
from ebbmq.model import QueueSpec
from ebbmq.node.catalog import Declared, DeclaredQueue
from ebbmq.node.numbering import Missing, Numbering

JUMP = limits.LOST_NUMBERS_MAX


def declared(
    epoch: int, next_seq: int, spans: dict[int, tuple[int, int]] | None = None
) -> Declared:
    queue = DeclaredQueue(QueueSpec("q"), [1], [next_seq])
    told = {segment: {1: span} for segment, span in (spans or {}).items()}
    return Declared(2, epoch, [queue], [], spans=told)


def started() -> Numbering:
    """Ten messages of the first run are known."""
    numbering = Numbering()
    numbering.declared(declared(1, 1))
    numbering.published(1, 1, 10)
    return numbering


def missing(numbering: Numbering, expected: tuple[int, ...] = ()) -> list[Missing]:
    return [found for found in numbering.missing(expected) if found.first < found.end]


def test_numbers_after_what_cannot_be_read_are_missing_up_to_the_next_that_is_known() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.published(1, 14, 2)
    numbering.published(1, 20, 1)
    assert missing(numbering) == [Missing(1, 11, 14, [1], in_doubt=False)]


def test_a_start_after_a_kill_passed_numbers_over_after_those_that_are_missing() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.declared(declared(2, 13 + JUMP))
    assert missing(numbering) == [Missing(1, 11, 13, [1], in_doubt=False)]


def test_a_start_that_passed_numbers_over_without_a_loss_misses_none() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.declared(declared(2, 11 + JUMP))
    assert missing(numbering) == []


def test_where_a_start_cannot_be_read_nobody_knows_on_which_side_of_it_messages_were() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.published(1, 13 + JUMP, 1)
    assert missing(numbering) == [Missing(1, 11, 13 + JUMP, [1], in_doubt=True)]


def test_what_was_given_back_is_told_from_what_is_lost_by_what_segments_have() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.absent(2)
    numbering.declared(declared(1, 60, spans={1: (1, 12), 3: (50, 55)}))
    assert missing(numbering) == [Missing(1, 11, 13, [1], in_doubt=False)]


def test_without_that_it_is_in_doubt() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.absent(2)
    numbering.declared(declared(1, 60))
    assert missing(numbering) == [Missing(1, 11, 60, [1], in_doubt=True)]


def test_a_segment_that_should_be_there_is_missing_with_its_messages() -> None:
    numbering = started()
    numbering.absent(2)
    numbering.declared(declared(1, 60))
    assert missing(numbering, expected=(2,)) == [Missing(1, 11, 60, [2], in_doubt=False)]
    assert missing(numbering) == []


def test_a_segment_may_have_been_given_back_by_what_cannot_be_read() -> None:
    numbering = started()
    numbering.absent(2)
    numbering.published(1, 60, 1)
    numbering.unread(3)
    assert missing(numbering, expected=(2,)) == [Missing(1, 11, 60, [], in_doubt=True)]


def test_what_left_is_known_before_and_after_its_gap_is() -> None:
    numbering = started()
    numbering.unread(1)
    numbering.left(1, range(11, 12))
    numbering.published(1, 14, 2)
    numbering.left(1, range(9, 13))
    assert numbering.has_left(1, 11, 14) == {11, 12}
