"""In which order messages get the copies they lack, without sorting them all."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.policy.precedence import BANDS, bands_of, groups_of

values = st.tuples(st.floats(-1, 10), st.floats(-50, 200))


@given(values, values, st.sampled_from([0.0, 1.0, 100.0]))
def test_a_band_is_never_higher_where_importance_is_lower_or_as_high_and_it_has_faded_more(
    one, other, high
):
    first, second = (int(bands_of(*each, high)) for each in (one, other))
    assert 0 <= first < BANDS
    if one[0] <= other[0] and one[1] >= other[1]:
        assert first <= second
    if one[0] + 1 / 16 <= other[0] and other[0] > 0:
        assert first < second or one[0] < 0


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 12))
def test_taking_bands_by_group_is_taking_them_in_order_and_no_group_is_too_large(bands, most):
    counts = [bands.count(band) for band in range(31)]
    groups = groups_of(counts, most)
    taken = [
        band
        for group in groups
        for band in sorted((each for each in bands if each in group), reverse=True)
    ]
    assert taken == sorted(bands, reverse=True)
    for group in groups:
        assert len(group) == 1 or sum(counts[band] for band in group) <= most
    # Two neighbours could not have been one: passes are as few as can be, within a factor of two.
    sizes = [sum(counts[band] for band in group) for group in groups]
    assert all(left + right > most for left, right in pairwise(sizes))
