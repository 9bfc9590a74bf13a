"""All devices of a node: opened together, watched, and told of as rules and people need it."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from time import monotonic
from typing import TYPE_CHECKING, Final

from ebbmq.node.devices.describing import USED, Counts, Seen, Standing, told, unknown
from ebbmq.node.devices.evictions import Eviction, Evictions
from ebbmq.node.devices.identities import Identities
from ebbmq.node.devices.monitor import Monitor
from ebbmq.node.devices.own_log import LogPlace
from ebbmq.node.devices.places import places
from ebbmq.node.devices.port import Judging, Port
from ebbmq.node.devices.settings import LOG, DeviceConfig
from ebbmq.node.ending import end_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ebbmq.holding.contract import Key
    from ebbmq.model import DeviceStatus
    from ebbmq.node.clock import Clock
    from ebbmq.node.config import Config
    from ebbmq.node.devices.evictions import Until
    from ebbmq.node.devices.monitor import Guarded
    from ebbmq.node.devices.talking import Openable
    from ebbmq.node.directory import Directory
    from ebbmq.policy.rules.properties import DeviceState

#: How long a start waits for the first answers; who is later is not used until then.
_START_TIMEOUT_S: Final = 3.0


class Devices:
    """The devices of a node.

    `states` has every device, the node's own log too, and is another mapping after each change.
    """

    def __init__(self, config: Config, directory: Directory, clock: Clock) -> None:
        self._clock = clock
        self._identities = Identities(directory.path)
        self._evictions = Evictions(directory.path)
        #: Devices that are read but take nothing new, by how many messages are only there.
        self._undrained: dict[str, int] = {}
        self.draining: frozenset[str] = frozenset()
        #: Guards `states` while one is replaced; taken with the lock of a port held.
        self._lock = threading.Lock()
        self.states: Mapping[str, DeviceState] = {}
        #: Called, by a device's own thread, when a device that could not be used can be again.
        self.on_return: Callable[[str], None] = lambda name: None
        #: Called likewise with copies that a device cannot give as they were put.
        self.on_damaged: Callable[[str, tuple[Key, ...]], None] = lambda name, keys: None
        #: Called several times a second; it may not wait for a device.
        self.on_tick: Callable[[], None] = lambda: None
        #: What the node knows of a device that the device itself does not.
        self.counts: Callable[[str], Counts] = lambda name: Counts()
        self._log = self._port(
            LogPlace(config.devices.get(LOG, DeviceConfig()).spec(LOG), directory.path),
            config.devices.get(LOG, DeviceConfig()),
        )
        others = {name: given for name, given in config.devices.items() if name != LOG}
        self.ports: dict[str, Port] = {
            place.spec.name: self._port(place, others[place.spec.name])
            for place in places(others, directory.path)
        }
        self._all = [self._log, *self.ports.values()]
        self._is_restricted = any(port.spec.readers != ("*",) for port in self._all)
        #: Devices that were given up, until what they have was compared again.
        self.evicted = {name for name in self.ports if self._evictions.of(name) is not None}
        for port in self.ports.values():
            eviction = self._evictions.of(port.name)
            if eviction is not None and eviction.until == "admit":
                port.evict()
        self.states = {port.name: port.state for port in self._all}
        self._monitor = Monitor(self._all, clock, self.ticked)

    def _port(self, place: Openable, config: DeviceConfig) -> Port:
        judging = Judging(config.status, config.stall_ms, trusted=place.kind == LOG)
        return Port(place, judging, self._clock, self)

    @classmethod
    def open(cls, config: Config, directory: Directory, clock: Clock) -> Devices:
        """Open all devices of a configuration; one that does not answer is tried again later.

        Nobody looks after them until `watch`.

        Raises:
            InvalidSpec: a device cannot be as it is declared.
            MissingPackage: a kind needs a package that is not installed.
        """
        devices = cls(config, directory, clock)
        try:
            devices._try_all()
        except BaseException:
            devices.close()
            raise
        return devices

    def _try_all(self) -> None:
        for port in self._all:
            port.start()
        deadline = monotonic() + _START_TIMEOUT_S
        for port in self._all:
            port.tried.wait(max(0.0, deadline - monotonic()))
        for port in self._all:
            if port.refusal is not None:
                raise port.refusal

    def watch(self, guarded: Guarded) -> None:
        """Have somebody look after them, whose end does not go unnoticed."""
        self._monitor.start(guarded)

    @property
    def is_restricted(self) -> bool:
        """Whether some device may be read by some clients only."""
        return self._is_restricted

    def readable_by(self, client: str) -> frozenset[str]:
        """The devices whose bodies a client may be given."""
        return frozenset(port.name for port in self._all if port.spec.may_read(client))

    def changed(self, name: str, state: DeviceState) -> None:
        """A device is in another state."""
        with self._lock:
            self.states = {**self.states, name: state}

    def ticked(self) -> None:
        """Time has passed, and no device was waited for."""
        self.on_tick()

    def returned(self, name: str) -> None:
        """A device can be used again, or began anew."""
        self.on_return(name)

    def damaged(self, name: str, keys: tuple[Key, ...]) -> None:
        """A device came upon copies that it cannot give as they were put."""
        self.on_damaged(name, keys)

    def erred(self, name: str, detail: str) -> None:
        """A device, if it is one of ours, answered and not with what it was given."""
        for port in self._all:
            if port.name == name:
                port.erred(detail)

    def forget(self, name: str) -> None:
        """Let a new device take the place of one that is lost."""
        self._identities.forget(name)

    # Devices that are given up

    def drain(self, name: str, left: int) -> None:
        """Have a device drained that has so many messages alone."""
        with self._lock:
            self._undrained[name] = left
            self.draining = frozenset(self._undrained)

    def drained_to(self, name: str, left: int) -> bool:
        """So many messages are only there by now; False: it is not drained any more."""
        with self._lock:
            if name in self._undrained:
                self._undrained[name] = left
            return name in self._undrained

    def end_draining(self, name: str) -> None:
        """A device is drained no more, and chosen as others."""
        with self._lock:
            if self._undrained.pop(name, None) is not None:
                self.draining = frozenset(self._undrained)

    def evict(self, name: str, until: Until) -> Until:
        """Use a device no more, which need not be configured any more; what takes it back.

        One that only an operator takes back is not taken back otherwise if it is evicted again.
        """
        before = self._evictions.of(name)
        if before is not None and before.until == "admit":
            until = "admit"
        self._evictions.note(name, Eviction(self._clock.wall_ms(), until))
        if name in self.ports:
            self.evicted.add(name)
            self.ports[name].evict()
        return until

    def take_back(self, name: str) -> bool:
        """A device answers: it is taken back if it was given up as lost; whether it was."""
        eviction = self._evictions.of(name)
        if eviction is None or eviction.until != "return" or not self.states[name].usable:
            return False
        self._evictions.forget(name)
        return True

    def watch_for(self, name: str) -> None:
        """Take an evicted device back once it answers."""
        if name in self.ports:
            self.ports[name].admit()

    def admit(self, name: str) -> bool:
        """Take an evicted device back, once it answers; whether it was evicted."""
        eviction = self._evictions.forget(name)
        if name in self.ports:
            self.ports[name].admit()
        return eviction is not None

    def describe(self) -> list[DeviceStatus]:
        """Every device for people, the node's own log first."""
        return [self._describe(port) for port in self._all]

    def troubles(self) -> list[str]:
        """Which devices cannot be used, and why."""
        return [self._trouble(port) for port in self._all if not port.state.usable]

    def _trouble(self, port: Port) -> str:
        if port.health.is_evicted:
            return (
                f"device {port.name!r} is evicted: `ebbmq devices admit {port.name}` takes it back"
            )
        why = port.health.last_error or "it is not open yet"
        return f"device {port.name!r} cannot be used: {why}"

    def probe(self, name: str) -> DeviceStatus:
        """Try a device now, and tell how it is; one that does not answer is told as it is.

        Raises:
            UnknownDevice: there is none of that name.
        """
        port = next((each for each in self._all if each.name == name), None)
        if port is None:
            raise unknown(name, self.states)
        # The status tells what became of it.
        wait([port.probe()], port.stall_ms / 1_000)
        return self._describe(port)

    def _describe(self, port: Port) -> DeviceStatus:
        name, now_ms = port.name, self._clock.elapsed_ms()
        seen = Seen(port.kind, port.shown, port.since_ms, port.last_error_at_ms, port.pending_bytes)
        eviction, left = self._evictions.of(name), self._undrained.get(name)
        if eviction is not None:
            standing = Standing("evicted", since_ms=eviction.at_ms, until=eviction.until)
        else:
            standing = USED if left is None else Standing("draining", left)
        return told(port.spec, port.health, seen, self.counts(name), now_ms, standing)

    def close(self) -> None:
        """Look no more, and let go of every device."""
        stops = [port.stop for port in self._all]
        end_all([self._monitor.close, *stops, *(port.close for port in self._all)])
