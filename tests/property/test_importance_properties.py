from hypothesis import given
from hypothesis import strategies as st

from ebbmq import limits
from ebbmq.policy import importance

importances = st.integers(limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX)
rates = st.one_of(
    st.floats(0.001, 1.0), st.integers(1, 10**9).map(lambda billionths: billionths / 1e9)
)
spans_ms = st.one_of(st.integers(1, 100_000), st.integers(1, limits.DURATION_MS_MAX))
band_widths = st.one_of(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.5]), st.floats(0.01, 10.0))


@given(importances, rates, spans_ms, st.integers(0, 1 << 47), st.integers(0, 10_000))
def test_importance_never_rises_with_age(level, rate, span_ms, age_ms, later_ms):
    before = importance.current_importance(level, rate, age_ms, span_ms)
    assert importance.current_importance(level, rate, age_ms + later_ms, span_ms) <= before


@given(importances, rates, spans_ms, band_widths, st.data())
def test_a_crossing_agrees_with_the_band_at_that_millisecond_and_the_one_before(
    level, rate, span_ms, band_width, data
):
    def band_at(age_ms):
        current = importance.current_importance(level, rate, age_ms, span_ms)
        return importance.band_of(current, band_width)

    band = data.draw(st.integers(1, band_at(0)))
    age_ms = importance.crossing_age_ms(level, rate, span_ms, (band - 1) * band_width)
    if age_ms is None:
        assert band_at(importance.AGE_MS_MAX) >= band
    else:
        assert band_at(age_ms) < band
        assert age_ms > 0
        assert band_at(age_ms - 1) >= band


@given(importances, rates, spans_ms, st.one_of(st.just(1.0), st.floats(0.0, 10.0)))
def test_a_message_is_stale_from_its_stale_age_on_and_not_before(level, rate, span_ms, threshold):
    def is_stale(age_ms):
        current = importance.current_importance(level, rate, age_ms, span_ms)
        return current < min(threshold, level / 2)

    age_ms = importance.stale_age_ms(level, rate, span_ms, threshold)
    if age_ms is None:
        assert not is_stale(importance.AGE_MS_MAX)
    else:
        assert is_stale(age_ms)
        assert not is_stale(age_ms - 1)


@given(st.floats(1e-12, 1.0))
def test_the_rate_used_for_order_is_within_half_a_step(rate):
    used = importance.class_rate(importance.rate_class(rate))
    assert used > 0
    assert abs(used - rate) <= 0.5 / 256 or used == 1 / 256


@given(st.integers(1, limits.DURATION_MS_MAX))
def test_the_span_used_for_order_is_within_three_percent(span_ms):
    used = importance.class_span(importance.span_class(span_ms))
    assert 0.97 < used / span_ms < 1.031
