"""What a device's status says, when it changes, and when the circuit opens and closes."""

import pytest

from ebbmq.errors import InvalidSpec
from ebbmq.policy.status import Circuit, Reading, Shown, StatusSpec, composite

SPEC = StatusSpec(
    step=5, better_after_ms=3_000, failures_to_open=2, open_ms=100, open_ms_max=300,
    successes_to_close=2,
)  # fmt: skip
IDLE = Reading(used_bytes=10, capacity_bytes=100, latency_ms=1)


def test_an_idle_device_is_good() -> None:
    assert composite(IDLE, SPEC) == 0


@pytest.mark.parametrize(
    "reading",
    [
        IDLE._replace(used_bytes=95),
        IDLE._replace(latency_ms=1_000),
        IDLE._replace(error_share=0.5),
        IDLE._replace(depth=5_000),
    ],
)
def test_one_full_strain_is_enough_for_the_worst(reading: Reading) -> None:
    assert composite(reading, SPEC) == -100


def test_two_half_strains_are_worse_than_one() -> None:
    one = composite(IDLE._replace(error_share=0.25), SPEC)
    two = composite(IDLE._replace(error_share=0.25, latency_ms=510), SPEC)
    assert one == -50
    assert two == -75


def test_throughput_alone_makes_a_device_less_liked_but_never_the_worst() -> None:
    assert -100 < composite(IDLE._replace(busy_share=1.0), SPEC) < 0


def test_worse_is_shown_at_once_and_better_only_when_it_lasts() -> None:
    shown = Shown().after(-30, 0, SPEC)
    assert shown.status == -30
    shown = shown.after(-10, 1_000, SPEC)
    assert shown.status == -30
    shown = shown.after(-10, 3_999, SPEC)
    assert shown.status == -30
    assert shown.after(-10, 4_000, SPEC).status == -10


def test_a_relapse_starts_the_wait_anew() -> None:
    shown = Shown(-30.0).after(-10, 0, SPEC).after(-30, 1_000, SPEC).after(-10, 2_000, SPEC)
    assert shown.after(-10, 4_999, SPEC).status == -30
    assert shown.after(-10, 5_000, SPEC).status == -10


def test_small_changes_are_not_shown_but_both_ends_are_reached() -> None:
    assert Shown(-30.0).after(-33, 0, SPEC).status == -30
    assert Shown(-98.0).after(-100, 0, SPEC).status == -100
    almost = Shown(-3.0).after(0, 0, SPEC)
    assert almost.after(0, 3_000, SPEC).status == 0


def test_a_circuit_opens_after_failures_in_a_row_is_probed_and_closes_after_successes() -> None:
    circuit = Circuit().failed(0, SPEC).succeeded(1, SPEC).failed(2, SPEC)
    assert circuit.at(3) == "closed"
    circuit = circuit.failed(4, SPEC)
    assert circuit.at(4) == circuit.at(103) == "open"
    assert circuit.probe_at_ms() == 104
    assert circuit.at(104) == "half_open"
    circuit = circuit.succeeded(104, SPEC)
    assert circuit.at(105) == "half_open"
    assert circuit.succeeded(105, SPEC) == Circuit()


def test_a_failed_probe_opens_for_longer_up_to_a_bound() -> None:
    circuit = Circuit().failed(0, SPEC).failed(0, SPEC)
    waits = []
    now_ms = 0
    for _ in range(4):
        due_ms = circuit.probe_at_ms()
        assert due_ms is not None
        waits.append(due_ms - now_ms)
        now_ms = due_ms
        circuit = circuit.failed(now_ms, SPEC)
    assert waits == [100, 200, 300, 300]


def test_late_answers_of_an_open_device_change_nothing() -> None:
    circuit = Circuit().failed(0, SPEC).failed(0, SPEC)
    assert circuit.failed(50, SPEC) == circuit.succeeded(50, SPEC) == circuit


@pytest.mark.parametrize(
    "changes",
    [{"space": (0.9, 0.1)}, {"every_ms": 1}, {"open_ms": 0}, {"failures_to_open": 0}],
)
def test_settings_out_of_order_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec):
        StatusSpec(**changes)  # type: ignore[arg-type]  # what a file may say
