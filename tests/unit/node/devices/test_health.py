"""What a device measured becomes a status, a circuit, and the moment of its next probe."""

from __future__ import annotations

import pytest

from ebbmq.holding.contract import DeviceSpec, Probe
from ebbmq.node.devices.health import Health
from ebbmq.policy.status import StatusSpec

SPEC = DeviceSpec(
    name="hdd", tier="slow", durable=True, failure_domain="shelf", capacity_bytes=1_000
)
JUDGED = StatusSpec(every_ms=5_000, open_ms=1_000, open_ms_max=4_000)


def health(*, known: bool = True, judged: StatusSpec = JUDGED) -> Health:
    made = Health(SPEC, judged)
    if known:
        made.succeeded(0)
        made.measured(probe(0))
    return made


def probe(used: int) -> Probe:
    return Probe(ok=True, used_bytes=used, capacity_bytes=1_000, latency_ms=1.0)


def test_a_device_that_never_answered_is_not_used() -> None:
    made = health(known=False)
    assert not made.is_usable
    made.succeeded(0)
    assert made.is_usable


def test_the_first_failure_of_a_device_nobody_knows_opens_its_circuit() -> None:
    made = health(known=False)
    waits = []
    now_ms = 0
    for _ in range(4):
        made.failed("refused", now_ms)
        at_ms = made.circuit.probe_at_ms()
        assert at_ms is not None
        waits.append(at_ms - now_ms)
        now_ms = at_ms
    assert waits == [1_000, 2_000, 4_000, 4_000]
    made.succeeded(now_ms)
    assert made.is_usable


def test_failures_in_a_row_open_the_circuit_and_successes_of_probes_close_it() -> None:
    made = health()
    made.failed("one", 0)
    made.failed("two", 0)
    assert made.is_usable
    made.failed("three", 0)
    assert not made.is_usable
    assert made.read(0, 0, 0.0).usable is False
    assert made.read(0, 0, 0.0).status == -100.0
    made.succeeded(500)
    assert not made.is_usable, "an answer from before counts nothing"
    made.succeeded(1_000)
    made.succeeded(1_001)
    assert made.is_usable


def test_one_stall_opens_the_circuit() -> None:
    made = health()
    made.stalled("does not come back", 0)
    assert not made.is_usable
    assert made.last_error == "does not come back"


def test_no_room_is_no_failure_but_shows_in_the_status() -> None:
    made = health()
    for _ in range(10):
        made.refused("full")
    assert made.is_usable
    assert made.read(0, 0, 0.0).status == -100.0
    assert made.parts()["errors"] == -100.0


def test_a_probe_is_due_at_the_interval_and_sooner_in_doubt() -> None:
    made = health()
    assert made.probe_at_ms(0) == 5_000
    made.failed("one", 0)
    assert made.probe_at_ms(0) == 1_000
    made.failed("two", 0)
    made.failed("three", 0)
    assert made.probe_at_ms(0) == 1_000
    made.succeeded(1_000)
    assert made.probe_at_ms(1_000) == 2_000


def test_an_operator_need_not_wait_until_the_circuit_is_half_open() -> None:
    made = health()
    made.stalled("x", 0)
    made.try_now(1)
    made.succeeded(1)
    made.succeeded(1)
    assert made.is_usable


@pytest.mark.parametrize(
    ("used", "status", "free"), [(0, 0.0, 100.0), (825, -50.0, 17.5), (950, -100.0, 5.0)]
)
def test_space_is_part_of_the_status(used: int, status: float, free: float) -> None:
    made = health()
    made.measured(probe(used))
    state = made.read(0, 0, 0.0)
    assert (round(state.status, 6), state.free_percent) == (status, free)
    assert (state.tier, state.failure_domain, state.durable) == ("slow", "shelf", True)


def test_latency_is_the_mean_of_calls_and_large_ones_count_by_the_mib() -> None:
    made = health()
    made.worked(10.0, 0)
    made.worked(40.0, 2 << 20)
    assert made.read(0, 0, 0.0).latency_ms == 15.0
    assert made.read(1, 0, 0.0).latency_ms == 15.0, "without calls it stays what it was"


def test_a_call_that_does_not_come_back_shows_as_latency() -> None:
    made = health()
    made.worked(1.0, 0)
    state = made.read(0, 0, 700.0)
    assert state.latency_ms == 700.0
    assert state.status < -50


def test_how_many_wait_and_how_busy_it_is_are_parts_of_the_status() -> None:
    made = health()
    made.read(0, 0, 0.0)
    made.worked(1_000.0, 1 << 30)
    made.read(1_000, 4_096, 0.0)
    parts = made.parts()
    assert parts["depth"] == -100.0
    assert -20 < parts["busy"] < 0
    made.worked(5_000.0, 1 << 30, probe=True)
    made.read(2_000, 0, 0.0)
    assert made.parts()["busy"] == 0.0


def test_the_nodes_own_log_is_used_whatever_is_thought_of_it() -> None:
    made = Health(SPEC, JUDGED, trusted=True)
    made.failed("x", 0)
    made.stalled("y", 0)
    state = made.read(0, 0, 0.0)
    assert state.usable
    assert state.status == -100.0
