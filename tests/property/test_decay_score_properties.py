from hypothesis import given
from hypothesis import strategies as st

from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import Access, Score, next_crossing_ms

scores = st.builds(
    Score,
    base=st.floats(-100, 100),
    per_day=st.one_of(st.just(0.0), st.floats(0.001, 1000)),
    access_bonus=st.floats(0, 100),
    medium=st.floats(-50, 50),
    high=st.floats(50, 200),
)
instants_ms = st.integers(0, 1000 * DAY_MS)
accesses = st.builds(Access, rate=st.floats(0, 50), at_ms=st.just(0))


@given(scores, accesses, instants_ms, st.integers(0, 10 * DAY_MS))
def test_the_score_never_falls_while_nobody_reads(score, access, at_ms, more_ms):
    before = score.at(at_ms, access.rate_at(at_ms))
    later_ms = at_ms + more_ms
    assert score.at(later_ms, access.rate_at(later_ms)) >= before


@given(scores, accesses, instants_ms)
def test_the_phase_changes_at_the_crossing_and_not_before(score, access, now_ms):
    def phase(at_ms):
        return score.phase(score.at(at_ms, access.rate_at(at_ms)))

    crossing_ms = next_crossing_ms(score, 0, access, now_ms)
    if crossing_ms is None:
        assert phase(9_999 * DAY_MS) == phase(now_ms)
    else:
        assert phase(crossing_ms - 1) == phase(now_ms)
        assert phase(crossing_ms) > phase(now_ms)


@given(scores, accesses, instants_ms)
def test_a_read_never_makes_a_message_more_faded(score, access, now_ms):
    read = access.credited(now_ms)
    assert score.at(now_ms, read.rate_at(now_ms)) <= score.at(now_ms, access.rate_at(now_ms))
