"""From which copy a body is read."""

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.policy.reads import before_log, fastest_first
from ebbmq.policy.rules.properties import ARCHIVE, DeviceState
from ebbmq.policy.status import EXTRA_COPIES_ABOVE

LOG = "log"
STATES = {
    "ram": DeviceState(durable=False, latency_ms=0.03),
    LOG: DeviceState(latency_ms=1.6, slowness=2),
    "disk": DeviceState(latency_ms=1.1, slowness=2),
    "archive": DeviceState(latency_ms=9.0, slowness=ARCHIVE),
}


def states(**changes):
    return {name: changes.get(name, state) for name, state in STATES.items()}


def test_the_faster_kind_comes_first_and_what_is_as_good_as_the_log_comes_after_it():
    assert fastest_first(STATES, STATES, LOG) == ["ram", "log", "disk", "archive"]
    assert before_log(STATES, STATES, LOG) == ["ram"]


def test_a_log_whose_disk_is_slow_or_strains_is_read_last():
    slow = DeviceState(latency_ms=200.0, slowness=2)
    assert fastest_first(STATES, states(log=slow), LOG)[-1] == "log"
    strained = DeviceState(latency_ms=1.6, slowness=2, status=-60.0)
    assert before_log(STATES, states(log=strained), LOG) == ["ram", "disk", "archive"]


def test_a_faster_device_that_is_slow_now_strains_or_cannot_be_used_is_not_read_before_the_log():
    for ram in (
        DeviceState(latency_ms=100.0),
        DeviceState(status=-60.0),
        DeviceState(usable=False),
    ):
        assert before_log(STATES, states(ram=ram), LOG) == []


device_states = st.builds(
    DeviceState,
    status=st.sampled_from([0.0, -15.0, -20.0, -60.0]),
    latency_ms=st.sampled_from([0.0, 1.0, 19.0, 40.0, 1_000.0]),
    usable=st.booleans(),
    slowness=st.sampled_from([0, 2, ARCHIVE]),
)


@given(st.fixed_dictionaries(dict.fromkeys(STATES, device_states)))
def test_a_device_that_strains_is_never_read_before_one_that_does_not(devices):
    ordered = fastest_first(devices, devices, LOG)
    assert set(ordered) == {name for name, state in devices.items() if state.usable}
    strained = [devices[name].status < EXTRA_COPIES_ABOVE for name in ordered]
    assert strained == sorted(strained)
    assert before_log(devices, devices, LOG) == (
        ordered[: ordered.index(LOG)] if LOG in ordered else ordered
    )
