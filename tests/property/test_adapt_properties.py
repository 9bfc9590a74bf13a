from hypothesis import given
from hypothesis import strategies as st

from ebbmq.model import AdaptSpec
from ebbmq.policy.adapt import AdaptiveDecay

SPEC = AdaptSpec(step=1.5, dwell_ms=1_000, factor_min=0.5, factor_max=4.0, window=5)
observations = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3_000)), max_size=200)


@given(observations)
def test_the_factor_stays_in_its_bounds_and_rests_between_steps(history):
    controller = AdaptiveDecay(SPEC)
    now_ms = stepped_at_ms = 1_000_000
    before = 1.0
    for pause_ms, duration_ms in history:
        now_ms += pause_ms
        controller.observe(duration_ms, now_ms)
        factor = controller.factor(now_ms)
        assert SPEC.factor_min <= factor <= SPEC.factor_max
        if factor != before:
            assert now_ms - stepped_at_ms >= SPEC.dwell_ms
            assert max(factor, before) / min(factor, before) <= SPEC.step * (1 + 1e-12)
            stepped_at_ms = now_ms
        before = factor


@given(observations, st.integers(0, 200))
def test_the_mean_is_that_of_the_last_observations(history, cut):
    controller = AdaptiveDecay(AdaptSpec(window=7))
    durations_ms = [duration_ms for _, duration_ms in history[:cut]]
    for duration_ms in durations_ms:
        controller.observe(duration_ms, 1)
    last = durations_ms[-7:]
    assert controller.mean_ms() == (sum(last) / len(last) if last else None)
