import numpy as np
import pytest

from ebbmq import limits
from ebbmq.policy import importance

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("age_ms", "expected"), [(0, 10.0), (HOUR_MS // 2, 7.5), (HOUR_MS, 5.0), (2 * HOUR_MS, 0.0)]
)
def test_importance_falls_linearly_with_age(age_ms, expected):
    assert importance.current_importance(10, 0.5, age_ms, HOUR_MS) == expected


def test_current_importance_never_falls_below_zero():
    assert importance.decayed(10, 1.0, 3 * HOUR_MS, HOUR_MS) == -20
    assert importance.current_importance(10, 1.0, 3 * HOUR_MS, HOUR_MS) == 0


def test_a_rate_of_zero_keeps_the_importance_for_ever():
    assert importance.current_importance(7, 0.0, limits.DURATION_MS_MAX, 1) == 7
    assert importance.crossing_age_ms(7, 0.0, 1, 6.0) is None
    assert importance.stale_age_ms(7, 0.0, 1, 1.0) is None


def test_the_formula_takes_arrays_and_gives_the_same_doubles():
    ages_ms = np.arange(0, 5_000, 7, dtype=np.uint64)
    expected = [importance.decayed(9, 0.3, int(age_ms), 4_000) for age_ms in ages_ms]
    assert importance.decayed(9, 0.3, ages_ms, 4_000).tolist() == expected


@pytest.mark.parametrize(
    ("current", "band_width", "band"),
    [
        (10, 1.0, 10),
        (9.0001, 1.0, 10),
        (9.0, 1.0, 9),
        (0.1, 1.0, 1),
        (0, 1.0, 0),
        (-3, 1.0, 0),
        (10, 2.5, 4),
        (0.1 + 0.2, 0.1, 3),
    ],
)
def test_a_band_includes_its_upper_edge(current, band_width, band):
    assert importance.band_of(current, band_width) == band


def test_exact_order_has_no_bands():
    with pytest.raises(AssertionError, match="no bands"):
        importance.band_of(5.0, 0.0)


def test_a_crossing_is_the_first_millisecond_at_or_below_the_value():
    assert importance.crossing_age_ms(10, 1.0, 1_000, 9) == 100
    assert importance.crossing_age_ms(10, 1.0, 1_000, 10) == 0
    assert importance.crossing_age_ms(10, 1.0, 1_000, 0) == 1_000


def test_a_crossing_that_no_clock_reaches_never_comes():
    assert importance.crossing_age_ms(10, 1e-9, limits.DURATION_MS_MAX, 1) is None
    assert importance.crossing_age_ms(10, 5e-324, 1.0, 1) is None
    assert importance.crossing_age_ms(10, 1.0, 1_000, -0.5) is None


def test_a_message_is_stale_when_below_the_threshold_not_at_it():
    assert importance.stale_age_ms(8, 1.0, 1_024, 1.0) == 897


def test_a_message_of_low_importance_is_stale_below_half_of_it():
    assert importance.stale_age_ms(1, 1.0, 1_000, 1.0) == 501


def test_a_stale_threshold_of_zero_is_never_reached():
    assert importance.stale_age_ms(10, 1.0, 1_000, 0.0) is None


def test_only_a_rate_of_zero_is_in_the_class_that_never_decays():
    assert importance.rate_class(0.0) == 0
    assert importance.rate_class(1e-9) == 1
    assert importance.rate_class(1.0) == 256
    assert importance.class_rate(256) == 1.0
    assert importance.class_rate(importance.rate_class(0.5)) == 0.5


def test_the_longest_span_still_has_a_small_class():
    assert importance.span_class(1) == 0
    assert importance.span_class(limits.DURATION_MS_MAX) < 512
