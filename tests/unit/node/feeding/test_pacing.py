"""How long a snapshot rests between its steps."""

from __future__ import annotations

import pytest

from ebbmq.node.feeding.pacing import Pace

ROWS, STEP_S, ROW_S = 1_000, 0.002, 10e-6
#: With every fourth step a file of the rows of all four is written.
FILE_STEPS = 4


def rests(pace: Pace, steps: int, row_s: float = ROW_S) -> list[float]:
    """What one snapshot rests after each of its steps."""
    pace.begin()
    found = []
    for number in range(1, steps + 1):
        written = 0 if number % FILE_STEPS else FILE_STEPS * ROWS
        found.append(pace.rest_s(STEP_S, ROWS, written * row_s, written))
    return found


def test_the_first_file_is_rested_for_after_it_is_written() -> None:
    found = rests(Pace(), FILE_STEPS)
    assert found[:-1] == pytest.approx([99 * STEP_S] * (FILE_STEPS - 1))
    assert found[-1] == pytest.approx(99 * (STEP_S + FILE_STEPS * ROWS * ROW_S))


def test_rests_are_even_once_it_is_known_what_writing_takes() -> None:
    pace = Pace()
    rests(pace, FILE_STEPS)
    assert rests(pace, 2 * FILE_STEPS) == pytest.approx([99 * (STEP_S + ROWS * ROW_S)] * 8)


def test_all_that_was_done_is_rested_for_however_long_writing_was_expected_to_take() -> None:
    for before in (0.1, 1.0, 10.0):
        pace = Pace()
        rests(pace, FILE_STEPS, ROW_S * before)
        done = FILE_STEPS * (STEP_S + ROWS * ROW_S)
        assert sum(rests(pace, FILE_STEPS)) >= 99 * done * (1 - 1e-9)


def test_what_was_rested_for_in_vain_does_not_count_for_the_next_snapshot() -> None:
    pace = Pace()
    rests(pace, FILE_STEPS)
    rests(pace, FILE_STEPS - 1)  # ended before its file was written
    assert rests(pace, FILE_STEPS) == pytest.approx([99 * (STEP_S + ROWS * ROW_S)] * FILE_STEPS)
