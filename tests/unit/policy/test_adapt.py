import math

import msgspec
import pytest

from ebbmq.errors import InvalidSpec
from ebbmq.model import AdaptSpec
from ebbmq.policy.adapt import AdaptiveDecay, AdaptState, adapted_rate

NOW = 1_700_000_000_000
SPEC = AdaptSpec(
    raise_above_ms=1_000,
    lower_below_ms=500,
    step=2.0,
    dwell_ms=10_000,
    factor_min=0.5,
    factor_max=8.0,
    window=4,
)


def observed(controller, duration_ms, from_ms, seconds):
    """The factors after each second in which one lease of that duration was settled."""
    factors = []
    for now_ms in range(from_ms, from_ms + seconds * 1_000, 1_000):
        controller.observe(duration_ms, now_ms)
        factors.append(controller.factor(now_ms))
    return factors


def test_without_observations_the_factor_is_one():
    assert AdaptiveDecay(SPEC).factor(NOW) == 1.0


def test_latency_above_the_threshold_raises_the_factor_step_by_step_to_its_bound():
    factors = observed(AdaptiveDecay(SPEC), 2_000, NOW, 60)
    assert factors[:10] == [1.0] * 10
    assert factors[10:20] == [2.0] * 10
    assert factors[20:30] == [4.0] * 10
    assert factors[30:] == [8.0] * 30


def test_latency_below_the_threshold_lowers_the_factor_to_its_bound():
    controller = AdaptiveDecay(SPEC)
    observed(controller, 2_000, NOW, 25)
    factors = observed(controller, 100, NOW + 25_000, 60)
    assert factors[0] == 4.0
    assert sorted(set(factors), reverse=True) == [4.0, 2.0, 1.0, 0.5]
    assert factors[-1] == 0.5


def test_latency_between_the_thresholds_changes_nothing():
    controller = AdaptiveDecay(SPEC)
    observed(controller, 2_000, NOW, 11)
    assert set(observed(controller, 700, NOW + 11_000, 100)) == {2.0}


def test_a_step_judges_only_what_was_observed_since_the_one_before():
    controller = AdaptiveDecay(SPEC)
    observed(controller, 2_000, NOW, 11)
    assert controller.factor(NOW + 3_600_000) == 2.0


def test_what_was_observed_while_a_bound_held_does_not_delay_the_way_back():
    controller = AdaptiveDecay(msgspec.structs.replace(SPEC, window=256))
    assert observed(controller, 60_000, NOW, 200)[-1] == 8.0
    since = observed(controller, 10, NOW + 200_000, 40)
    assert since[-1] < 8.0
    slow = observed(controller, 10, NOW + 240_000, 600)
    assert slow[-1] == 0.5
    assert observed(controller, 1_500, NOW + 840_000, 40)[-1] > 0.5


def test_the_mean_is_over_the_window():
    controller = AdaptiveDecay(SPEC)
    for duration_ms in (9_000, 9_000, 100, 200, 300, 400):
        controller.observe(duration_ms, NOW)
    assert controller.mean_ms() == 250


def test_the_fleets_factor_counts_while_it_is_larger_and_ends_by_itself():
    controller = AdaptiveDecay(SPEC)
    controller.apply_external(3.0, NOW + 5_000, "run-7")
    assert controller.factor(NOW) == 3.0
    assert controller.factor(NOW + 4_999) == 3.0
    assert controller.factor(NOW + 5_000) == 1.0
    controller.apply_external(1.5, NOW + 60_000, "run-8")
    assert observed(controller, 2_000, NOW + 6_000, 11)[-1] == 2.0


def test_the_fleets_factor_stays_within_the_queues_bound():
    controller = AdaptiveDecay(SPEC)
    controller.apply_external(100.0, NOW + 5_000, "run-7")
    assert controller.factor(NOW) == 8.0


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_a_factor_that_is_not_a_positive_number_is_refused(factor):
    controller = AdaptiveDecay(SPEC)
    with pytest.raises(InvalidSpec, match="run-7"):
        controller.apply_external(factor, NOW + 5_000, "run-7")
    assert controller.factor(NOW) == 1.0


def test_a_restored_controller_goes_on_where_it_was():
    controller = AdaptiveDecay(SPEC)
    observed(controller, 2_000, NOW, 15)
    controller.apply_external(5.0, NOW + 20_000, "run-7")
    stored = msgspec.msgpack.encode(controller.state())
    restored = AdaptiveDecay(SPEC)
    restored.restore(msgspec.msgpack.decode(stored, type=AdaptState))
    assert restored.factor(NOW + 15_000) == 5.0
    assert restored.factor(NOW + 20_000) == 2.0
    assert restored.state() == controller.state()
    # The rest between steps is counted through the restart.
    assert observed(restored, 2_000, NOW + 19_000, 2) == [5.0, 4.0]


def test_a_restored_factor_is_moved_into_the_bounds_of_a_changed_spec():
    controller = AdaptiveDecay(AdaptSpec(factor_max=2.0))
    controller.restore(AdaptState(factor=8.0))
    assert controller.factor(NOW) == 2.0


def test_a_clock_that_stands_still_or_goes_back_makes_no_step():
    controller = AdaptiveDecay(SPEC)
    for now_ms in (NOW, NOW, NOW - 3_600_000):
        controller.observe(9_000, now_ms)
        assert controller.factor(now_ms) == 1.0


def test_a_factor_on_a_rate_of_zero_does_nothing_and_a_rate_never_exceeds_one():
    assert adapted_rate(0.0, 8.0) == 0.0
    assert adapted_rate(0.25, 2.0) == 0.5
    assert adapted_rate(0.5, 8.0) == 1.0
