"""Devices that an operator gives up, and takes back (ADR 0031).

Theory of operation. What a lost device had counts no more, and is copied anew from elsewhere. One
that is evicted by force is drained first if it answers: it is read, but not chosen any more, until
every message has another copy that can be read. Then the device is let go of, whatever it answers:
its port refuses every call, so nobody can place, move, read or mend anything there. A device that
was lost is taken back when it answers; the other one when it is admitted. Either way it is compared
first: what it has and should not have is deleted.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.core.copies import LOG, NO_DEVICES
from ebbmq.errors import DeviceInUse, InvalidSpec, UnknownDevice
from ebbmq.model import Evicted
from ebbmq.node.devices import describing
from ebbmq.node.devices.evictions import Eviction, Evictions
from ebbmq.node.devices.identities import Identities
from ebbmq.node.keeping.decisions import EVICTED
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ebbmq.core.copies import Devices, Holding, Name
    from ebbmq.model import DeviceStatus
    from ebbmq.node.devices.evictions import Until
    from ebbmq.node.engine import Engine

_LOG_ONLY: Final = frozenset({LOG})
_AT_ONCE: Final = 512
#: Bodies that are read at once for the headers in front of them.
_FETCHED_AT_ONCE: Final = 128
_LOOK_EVERY_S: Final = 0.05
#: How often what no device has taken is asked for again.
_ASK_EVERY_S: Final = 1.0
#: How long nothing may get another copy: while nobody tries, and at all.
_IDLE_S: Final = 5.0
_STUCK_S: Final = 60.0


def evict(engine: Engine, device: str, *, force: bool = False, drain: bool = True) -> Evicted:
    """Count on a device no more.

    Args:
        engine: the engine.
        device: its name; it need not be configured any more.
        force: also if it answers, and until it is admitted; otherwise until it answers.
        drain: if it answers, have everything copied first that only it has.

    Raises:
        UnknownDevice: no such device is configured, and no message has a copy there.
        InvalidSpec: the node's own log cannot be evicted.
        DeviceInUse: it answers, and `force` is not given; or, code `not_drained`, not everything
            that only it has could be copied: it is used as before.
    """
    if device == LOG:
        raise InvalidSpec("the node's own log cannot be evicted", "name another device")
    with engine.lock:
        engine.check_open()
        states = engine.devices.states if engine.devices is not None else {}
        copies, moves = engine.holdings.counts(device)
        if device not in states and not copies and not moves:
            known = ", ".join(name for name in states if name != LOG) or "none"
            raise UnknownDevice(f"there is no device {device!r}", f"configured are: {known}")
        answers = device in states and states[device].usable
        if answers and not force:
            raise DeviceInUse(
                f"device {device!r} answers and has {copies} {'copy' if copies == 1 else 'copies'}",
                "evict what is lost for good; one that works is drained and taken out of use with "
                f"force: `ebbmq devices evict {device} --force`",
            )
    until: Until = "admit" if force else "return"
    drained = _Draining(engine, device).run() if answers and drain else 0
    until = _shut(engine, device, until)
    lost = _give_up(engine, device)
    # Another disk may take its name; without this it would be refused as not the one it was.
    Identities(engine.directory.path).forget(device)
    if engine.devices is not None:
        engine.devices.end_draining(device)
        if until == "return":
            engine.devices.watch_for(device)
    log.warning(
        "device_evicted",
        device=device,
        copies=copies,
        drained=drained,
        messages_lost=lost,
        until=until,
    )
    return Evicted(device, copies, lost, drained, until)


def admit(engine: Engine, device: str) -> DeviceStatus:
    """Take back a device that was evicted, or end its draining; it is compared, then used.

    Raises:
        UnknownDevice: no such device is configured.
    """
    with engine.lock:
        engine.check_open()
    devices = engine.devices
    if devices is None or device not in devices.states:
        raise describing.unknown(device, [LOG] if devices is None else devices.states)
    devices.end_draining(device)
    if devices.admit(device):
        log.warning("device_admitted", device=device, by="operator")
    return devices.probe(device)


def _shut(engine: Engine, device: str, until: Until) -> Until:
    """Have nothing placed, read or deleted there any more, also after a restart."""
    if engine.devices is not None:
        until = engine.devices.evict(device, until)
    elif until == "admit":
        evictions = Evictions(engine.directory.path)
        evictions.note(device, Eviction(engine.clock.wall_ms(), until))
    if engine.keeping.mover is not None:
        with engine.lock:
            engine.keeping.mover.forget(device)
    return until


def _give_up(engine: Engine, device: str) -> int:
    """Forget all copies of a device; returns how many messages had no other."""
    lost, name = 0, 0
    while True:
        with engine.lock:
            engine.check_open()
            held = engine.holdings.after(name, _AT_ONCE)
            some = [each for each, _ in held]
            # Of what came meanwhile, all that is there is asked at the end.
            engine.keeping.given_up(device, held or engine.holdings.items())
            step = (
                engine.holdings.evict_copies(device, some)
                if some
                else engine.holdings.evict_device(device)
            )
            lost += len(step.effects)
            engine.keeping.apply([step])
            engine.keeping.mend(fact.name for fact in step.facts)
            position = engine.journal.position
        if not some:
            break
        name = some[-1] + 1
        engine.let_others_in()
    engine.journal.wait("synced", position)
    return lost


class _Left(NamedTuple):
    """Messages that only a device has, and how many of them are being copied."""

    messages: int
    asked: int


class _Draining:
    """Has everything copied elsewhere that only one device has."""

    def __init__(self, engine: Engine, device: str) -> None:
        assert engine.devices is not None
        self._engine = engine
        self._device = device
        self._devices = engine.devices

    def run(self) -> int:
        """Return how many messages there were, once each has another copy that can be read.

        Raises:
            DeviceInUse: code `not_drained`; the device is used as before.
        """
        total = self._left().messages
        log.info("device_draining", device=self._device, messages=total)
        self._devices.drain(self._device, total)
        try:
            # What was to come there goes elsewhere: nothing may be only there from now on.
            self._each(lambda holding: self._device in holding.pending, self._turn_away)
            self._wait()
        except BaseException:
            self._devices.end_draining(self._device)
            raise
        return total

    def _wait(self) -> None:
        pause = threading.Event()
        least, since_s, ask_at_s = 1 << 62, time.monotonic(), 0.0
        while True:
            left, now_s = self._left(), time.monotonic()
            if not left.messages:
                return
            self._check(left.messages)
            if left.messages < least:
                least, since_s = left.messages, now_s
            waited_s = now_s - since_s
            if waited_s > (_STUCK_S if left.asked else _IDLE_S):
                raise _not_drained(
                    f"{left.messages} messages are only on device {self._device!r}, and no other "
                    f"device takes them",
                    "see `ebbmq devices`: make room or add a device; what cannot be copied is "
                    "given up, on the record, without draining",
                )
            if left.asked < left.messages and now_s >= ask_at_s:
                ask_at_s = now_s + _ASK_EVERY_S
                self._ask()
            pause.wait(_LOOK_EVERY_S)

    def _check(self, left: int) -> None:
        with self._engine.lock:
            self._engine.check_open()
        if not self._devices.drained_to(self._device, left):
            raise _not_drained(
                f"device {self._device!r} was admitted while it was drained",
                f"{left} messages are only there: evict it again",
            )
        if not self._devices.states[self._device].usable:
            raise _not_drained(
                f"device {self._device!r} does not answer any more, and {left} messages are only "
                "there",
                "evict it again when it answers; if it is lost for good, evict it now",
            )

    def _left(self) -> _Left:
        with self._engine.lock:
            alike = self._engine.holdings.alike()
        count = asked = 0
        for holding, number in alike:
            if self._is_only_here(holding):
                count += number
                asked += number * bool(holding.pending - self._refusing())
        return _Left(count, asked)

    def _refusing(self) -> Devices:
        """Devices that were asked in vain, and are asked on."""
        mover = self._engine.keeping.mover
        return _LOG_ONLY if mover is not None and mover.is_log_full else NO_DEVICES

    def _is_only_here(self, holding: Holding) -> bool:
        """Whether no other copy can be read, or none that is durable where it should be."""
        if self._device not in holding.copies:
            return False
        states, draining = self._devices.states, self._devices.draining
        return not any(
            name != self._device
            and name in states
            and states[name].usable
            and name not in draining
            and (states[name].durable or not holding.durable)
            for name in holding.copies
        )

    def _is_unasked(self, holding: Holding) -> bool:
        return not holding.pending and self._is_only_here(holding)

    def _each(self, is_meant: Callable[[Holding], bool], act: Callable[[list[Name]], None]) -> None:
        """Do something to all messages of which something is true, a few at a time."""
        for some in self._slices(is_meant):
            with self._engine.lock:
                self._engine.check_open()
                # Something else may have become of them since they were looked for.
                of = self._engine.holdings.of
                act([name for name in some if is_meant(of(name))])
            self._engine.let_others_in()

    def _slices(self, is_meant: Callable[[Holding], bool]) -> Iterator[list[Name]]:
        name: Name | None = 0
        while name is not None:
            with self._engine.lock:
                told, name = self._engine.holdings.told_from(name, _AT_ONCE)
            meant = [names for holding, names in told.held.items() if is_meant(holding)]
            if meant:
                yield [each for names in meant for each in names]

    def _turn_away(self, names: list[Name]) -> None:
        self._engine.keeping.copies_failed(self._device, names, EVICTED)

    def _ask(self) -> None:
        """Have copies made of what is only there, on the devices that rules choose."""
        keeping, of = self._engine.keeping, self._engine.holdings.of
        for some in self._slices(self._is_unasked):
            for at in range(0, len(some), _FETCHED_AT_ONCE):
                names = some[at : at + _FETCHED_AT_ONCE]
                # Rules may ask about headers, and nobody but this device has them.
                fetched = keeping.fetch_headers_of(names)
                with self._engine.lock:
                    self._engine.check_open()
                    meant = [name for name in names if self._is_unasked(of(name))]
                    keeping.mend(meant, frozenset({self._device}), fetched)
                self._engine.let_others_in()


def _not_drained(detail: str, action: str) -> DeviceInUse:
    return DeviceInUse(detail, action, code="not_drained")
