from hypothesis import given
from hypothesis import strategies as st

from ebbmq.policy.status import Circuit, Reading, Shown, StatusSpec, composite

SPEC = StatusSpec()
readings = st.builds(
    Reading,
    used_bytes=st.integers(0, 200),
    capacity_bytes=st.just(100),
    latency_ms=st.floats(0, 5_000),
    error_share=st.floats(0, 1),
    depth=st.integers(0, 10_000),
    busy_share=st.floats(0, 1),
)
statuses = st.floats(-100, 0)


@given(readings, st.sampled_from(Reading._fields), st.floats(0, 100))
def test_a_worse_measure_never_makes_a_better_status(reading, field, more):
    if field == "capacity_bytes":
        return
    worse = reading._replace(**{field: getattr(reading, field) + more})
    assert -100 <= composite(worse, SPEC) <= composite(reading, SPEC) <= 0


@given(statuses, st.lists(st.tuples(statuses, st.integers(0, 10_000)), max_size=20))
def test_what_is_shown_is_between_what_was_shown_and_what_is_asked(first, asked):
    shown, now_ms = Shown(first), 0
    for status, later_ms in asked:
        now_ms += later_ms
        after = shown.after(status, now_ms, SPEC)
        assert after.status in (shown.status, status)
        if status <= shown.status - SPEC.step:
            assert after.status == status
        shown = after


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5_000)), max_size=40))
def test_a_circuit_can_always_be_closed_again(story):
    circuit, now_ms = Circuit(), 0
    for worked, later_ms in story:
        now_ms += later_ms
        circuit = (circuit.succeeded if worked else circuit.failed)(now_ms, SPEC)
    now_ms += SPEC.open_ms_max
    for _ in range(SPEC.successes_to_close):
        circuit = circuit.succeeded(now_ms, SPEC)
    assert circuit == Circuit()
