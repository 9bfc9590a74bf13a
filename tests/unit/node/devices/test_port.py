"""A port in front of a device in RAM that can be held, broken and repaired."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import crc32c
import pytest
from typing_extensions import override

from ebbmq.errors import InvalidSpec, StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack, Probe
from ebbmq.holding.memory import MemoryDevice
from ebbmq.node.devices.calls import PENDING_BYTES_MAX
from ebbmq.node.devices.port import Judging, Port
from ebbmq.policy.status import StatusSpec
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.policy.rules.properties import DeviceState

TIMEOUT_S = 60
SPEC = DeviceSpec(name="d", tier="t", durable=False, failure_domain="d", capacity_bytes=1 << 40)


class Held(MemoryDevice):
    """Answers when it is let, and fails as it is told."""

    def __init__(self) -> None:
        super().__init__(SPEC, lambda: 0.0)
        self.let = threading.Event()
        self.let.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.made: list[str] = []

    def _pass(self, what: str) -> None:
        self.made.append(what)
        self.entered.set()
        assert self.let.wait(TIMEOUT_S)
        if self.failure is not None:
            raise self.failure

    @override
    def put_many(self, copies: Sequence[Copy]) -> None:
        self._pass(f"put {len(copies)}")
        super().put_many(copies)

    @override
    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        self._pass(f"get {len(keys)}")
        return super().get_many(keys)

    @override
    def probe(self) -> Probe:
        self._pass("probe")
        return super().probe()

    def hold(self) -> None:
        """The next call does not come back."""
        self.entered.clear()
        self.let.clear()


class HeldPlace:
    """The device, or why it cannot be opened."""

    kind, shown, reopens, spec = "memory", "here", False, SPEC

    def __init__(self) -> None:
        self.device = Held()
        self.failure: Exception | None = None

    def open(self) -> Held:
        if self.failure is not None:
            raise self.failure
        return self.device

    def release(self) -> None:
        pass


class Told:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.states: list[DeviceState] = []
        self.came_back = threading.Event()

    def changed(self, name: str, state: DeviceState) -> None:
        self.states.append(state)

    def damaged(self, name: str, keys: tuple[Key, ...]) -> None:
        self.told_damaged = name, keys

    def returned(self, name: str) -> None:
        self.came_back.set()
        raise RuntimeError("whoever listens may fail")


class Rig:
    def __init__(self, stall_ms: int = 1_000_000) -> None:
        self.place, self.told, self.clock = HeldPlace(), Told(), ManualClock()
        judging = Judging(StatusSpec(every_ms=1_000, open_ms=1_000), stall_ms)
        self.port = Port(self.place, judging, self.clock, self.told)
        self.device = self.place.device

    def start(self) -> Rig:
        self.port.start()
        assert self.port.tried.wait(TIMEOUT_S)
        return self

    def probe_after(self, ms: int) -> None:
        self.clock.advance(ms)
        begun = self.port.tick()
        assert begun is not None
        begun.exception(TIMEOUT_S)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.device.let.set()
    made.port.close()


def copy(seq: int, payload: bytes = b"body") -> Copy:
    return Copy(Key(b"s" * 16, 1, seq), payload, crc32c.crc32c(payload))


def key(seq: int) -> Key:
    return Key(b"s" * 16, 1, seq)


def test_reads_overtake_puts_that_wait_and_those_are_made_together(rig: Rig) -> None:
    port, device = rig.start().port, rig.device
    device.hold()
    first = port.put([copy(0)])
    assert device.entered.wait(TIMEOUT_S)
    puts = [port.put([copy(seq)]) for seq in range(1, 4)]
    reads = [port.get([key(0)]), port.get([key(0), key(9)])]
    assert port.pending_bytes > 0
    device.let.set()
    assert reads[0].result(TIMEOUT_S) == [b"body"]
    assert reads[1].result(TIMEOUT_S) == [b"body", Lack.MISSING]
    for put in (first, *puts):
        put.result(TIMEOUT_S)
    assert device.made == ["probe", "put 1", "get 3", "put 3"]
    assert port.pending_bytes == 0


def test_more_bytes_than_may_wait_are_refused_at_once(rig: Rig) -> None:
    port, device = rig.start().port, rig.device
    device.hold()
    port.get([key(0)])
    assert device.entered.wait(TIMEOUT_S)
    large = port.put([copy(1, bytes(PENDING_BYTES_MAX))])
    refused = port.put([copy(2)]).exception(TIMEOUT_S)
    assert isinstance(refused, DeviceFull)
    assert refused.code == "device_busy"
    device.let.set()
    large.result(TIMEOUT_S)
    port.put([copy(2)]).result(TIMEOUT_S)


def test_failures_open_the_circuit_and_probes_close_it(rig: Rig) -> None:
    port, device = rig.start().port, rig.device
    device.failure = StorageFailed("the disk is gone")
    for _ in range(3):
        assert port.put([copy(1)]).exception(TIMEOUT_S) is device.failure
    assert not port.state.usable
    assert not rig.told.states[-1].usable
    refused = port.get([key(1)]).exception(TIMEOUT_S)
    assert isinstance(refused, StorageFailed)
    assert refused.code == "device_unreachable"
    assert "the disk is gone" in refused.detail
    assert device.made == ["probe", "put 1", "put 1", "put 1"]
    rig.probe_after(1_000)
    assert not port.state.usable
    device.failure = None
    assert port.tick() is None, "it waits twice as long after a probe that failed"
    rig.probe_after(2_000)
    assert not rig.told.came_back.is_set()
    rig.probe_after(1_000)
    assert port.state.usable
    assert rig.told.came_back.wait(TIMEOUT_S)
    port.put([copy(1)]).result(TIMEOUT_S)


def test_what_waits_behind_failures_is_refused_when_the_circuit_opens(rig: Rig) -> None:
    port, device = rig.start().port, rig.device
    device.failure = StorageFailed("no")
    device.hold()
    first = port.get([key(0)])
    assert device.entered.wait(TIMEOUT_S)
    waiting = [
        port.put([copy(1)]),
        port.scan(b"s" * 16),
        port.put([copy(2)]),
        port.delete([key(1)]),
    ]
    device.let.set()
    for future in (first, *waiting):
        error = future.exception(TIMEOUT_S)
        assert error is None or isinstance(error, StorageFailed)
    assert first.exception() is device.failure


def test_a_call_that_stalls_is_given_up_with_all_behind_it() -> None:
    rig = Rig(stall_ms=1).start()
    port, device = rig.port, rig.device
    device.hold()
    stuck, behind = port.put([copy(1)]), port.put([copy(2, bytes(5))])
    assert device.entered.wait(TIMEOUT_S)
    while port.state.usable:
        port.tick()
    for future in (stuck, behind):
        error = future.exception(TIMEOUT_S)
        assert isinstance(error, StorageFailed)
        assert "did not come back" in error.detail
    assert not port.state.usable
    device.let.set()
    rig.probe_after(1_000)
    rig.probe_after(1_000)
    while not port.state.usable:
        rig.probe_after(60_000)
    assert rig.told.came_back.wait(TIMEOUT_S)
    rig.port.close()


def test_an_error_nobody_foresaw_is_told_and_the_thread_goes_on(rig: Rig) -> None:
    port, device = rig.start().port, rig.device
    device.failure = RuntimeError("a secret of some library")
    error = port.put([copy(1)]).exception(TIMEOUT_S)
    assert isinstance(error, StorageFailed)
    assert "secret" not in str(error)
    device.failure = None
    port.put([copy(1)]).result(TIMEOUT_S)


def test_a_device_that_cannot_be_opened_is_tried_again(rig: Rig) -> None:
    rig.place.failure = StorageFailed("not mounted")
    port = rig.start().port
    assert not port.state.usable
    assert port.health.last_error == "not mounted"
    assert port.health.circuit.state == "open"
    rig.place.failure = None
    rig.probe_after(1_000)
    assert port.state.usable
    assert rig.told.came_back.wait(TIMEOUT_S)


def test_a_device_that_can_never_be_opened_says_so(rig: Rig) -> None:
    rig.place.failure = InvalidSpec("not so")
    assert rig.start().port.refusal is rig.place.failure


def test_a_closed_port_answers_everything_with_an_error(rig: Rig) -> None:
    port, device = rig.start().port, rig.device
    device.hold()
    running = port.get([key(0)])
    assert device.entered.wait(TIMEOUT_S)
    waiting = port.put([copy(1)])
    port.stop()
    assert isinstance(waiting.exception(TIMEOUT_S), StorageFailed)
    device.let.set()
    assert running.result(TIMEOUT_S) == [Lack.MISSING]
    port.close()
    assert isinstance(port.get([key(1)]).exception(TIMEOUT_S), StorageFailed)
    assert isinstance(port.probe().exception(TIMEOUT_S), StorageFailed)
