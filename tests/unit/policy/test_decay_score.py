"""What the decay score asks for, and when."""

import math

import pytest

from ebbmq.limits import DAY_MS
from ebbmq.model import QueueSpec
from ebbmq.policy.decay import (
    Access,
    Phase,
    Score,
    decay_score,
    has_crossed,
    next_crossing_ms,
)

SCORE = Score(base=0, per_day=10, access_bonus=5, medium=20, high=70)


def test_the_score_rises_with_age_and_falls_with_access() -> None:
    assert decay_score(3.0, 2.0, 1.0, 10.0, 5.0) == 1 + 30 - 10


def test_the_literal_formula_decides_the_same_with_mirrored_thresholds() -> None:
    for age_days in range(20):
        for accesses in (0.0, 1.0, 3.0):
            literal = -SCORE.base - age_days * SCORE.per_day + accesses * SCORE.access_bonus
            mirrored = (
                Phase.FADED
                if literal < -SCORE.high
                else Phase.KEPT
                if literal < -SCORE.medium
                else Phase.FRESH
            )
            assert SCORE.phase(SCORE.at(age_days * DAY_MS, accesses)) is mirrored


def test_a_threshold_itself_is_not_above_it() -> None:
    assert [SCORE.phase(score) for score in (20, 20.1, 70, 70.1)] == [
        Phase.FRESH,
        Phase.KEPT,
        Phase.KEPT,
        Phase.FADED,
    ]


def test_an_access_counts_one_a_day_and_fades() -> None:
    access = Access().credited(0)
    assert access.rate_at(0) == 1
    assert access.rate_at(DAY_MS) == pytest.approx(math.exp(-1))
    assert access.credited(DAY_MS).rate_at(DAY_MS) == pytest.approx(1 + math.exp(-1))


def test_a_lease_that_failed_leaves_no_trace_in_the_access_rate() -> None:
    before = Access().credited(0)
    after = before.credited(DAY_MS).reversed(DAY_MS, 3 * DAY_MS)
    assert after.rate_at(3 * DAY_MS) == pytest.approx(before.rate_at(3 * DAY_MS))
    assert Access().credited(0).reversed(0, 0).rate == 0


def test_crossings_come_at_the_first_millisecond_above_a_threshold() -> None:
    first = next_crossing_ms(SCORE, 0, Access(), 0)
    assert first == 2 * DAY_MS + 1
    second = next_crossing_ms(SCORE, 0, Access(), first)
    assert second == 7 * DAY_MS + 1
    assert next_crossing_ms(SCORE, 0, Access(), second) is None


def test_an_access_delays_a_crossing() -> None:
    without = next_crossing_ms(SCORE, 0, Access(), 0)
    with_one = next_crossing_ms(SCORE, 0, Access().credited(DAY_MS), DAY_MS)
    assert without is not None
    assert with_one is not None
    assert with_one > without


def test_a_queue_that_sets_nothing_never_crosses() -> None:
    score = Score.of(QueueSpec("q"))
    assert next_crossing_ms(score, 0, Access(), 0) is None
    assert score.phase(score.at(10_000 * DAY_MS, 0)) is Phase.FRESH


@pytest.mark.parametrize(
    ("since_days", "now_days", "access", "crossed"),
    [
        (1.0, 1.9, Access(), False),
        (1.9, 2.1, Access(), True),
        (2.1, 4.9, Access(), False),
        (1.0, 6.0, Access(), True),
        # Read before: what that does to the score is known at both instants.
        (1.9, 2.1, Access(1.0, round(1.5 * DAY_MS)), False),
        # Read since: what the score was before is not known any more.
        (1.0, 1.5, Access(1.0, round(1.2 * DAY_MS)), True),
        # Decided before it was published, by a clock that is behind.
        (-1.0, 0.5, Access(), False),
    ],
)
def test_whether_a_threshold_was_crossed_since_an_instant(
    since_days: float, now_days: float, access: Access, crossed: bool
) -> None:
    score = Score(per_day=10.0, access_bonus=10.0, medium=20.0, high=50.0)
    since_ms, now_ms = round(since_days * DAY_MS), round(now_days * DAY_MS)
    assert has_crossed(score, 0, access, since_ms, now_ms) is crossed
