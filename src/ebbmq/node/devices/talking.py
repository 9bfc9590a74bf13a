"""What a port's thread does with its device: opens it, makes the calls, opens it anew."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ebbmq import limits
from ebbmq.errors import EbbError, InvalidSpec, StorageFailed
from ebbmq.holding.columns import keys_together, together
from ebbmq.holding.contract import DeviceFull, MissingPackage
from ebbmq.holding.listing import Listing

if TYPE_CHECKING:
    from ebbmq.holding.contract import Device, DeviceSpec, Probe
    from ebbmq.node.devices.calls import Call, Verb

    _OfDevices = Literal["put", "get", "delete", "scan"]


class Openable(Protocol):
    """Where the device is; only the thread of the port opens it."""

    spec: DeviceSpec
    kind: str
    shown: str
    #: Whether a failure stops the device until it is opened again.
    reopens: bool

    def open(self) -> Device:
        """The device, as of now."""
        ...

    def release(self) -> None:
        """Let others have the place."""
        ...


class UnderWay:
    """The calls the thread is making; whoever sets `is_answered` first answers them."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.nbytes = sum(call.nbytes for call in calls)
        self.is_answered = False
        #: None while the device is being opened, which may take as long as it has to read.
        self.started: float | None = None if self.verb == "probe" else perf_counter()

    @property
    def verb(self) -> Verb:
        """What is done; all of them do the same."""
        return self.calls[0].verb

    def took_ms(self) -> float:
        """Since when it has not come back."""
        return 0.0 if self.started is None else (perf_counter() - self.started) * 1_000

    def waited_ms(self) -> float:
        """The same for each MiB of it."""
        return self.took_ms() / max(1.0, self.nbytes / limits.MIB)


class Talking:
    """A device, from its place; only one thread talks to it."""

    def __init__(self, place: Openable) -> None:
        #: Why the device can never be opened as it is declared.
        self.refusal: InvalidSpec | MissingPackage | None = None
        self._place = place
        self._device: Device | None = None

    def ask(self, under: UnderWay) -> list[Any]:
        """An answer for each call; one that has no room is answered by an error."""
        if under.verb == "probe":
            return [self._probe(under)]
        if under.verb == "release":
            self.let_go()
            return [None]
        if self._device is None:
            raise StorageFailed(
                f"device {self._place.spec.name!r} could not be opened again",
                "use another copy; it is tried again by itself",
                code="device_unreachable",
            )
        return self._ask(self._device, under.verb, under.calls)

    def _ask(self, device: Device, verb: _OfDevices, calls: list[Call]) -> list[Any]:
        match verb:
            case "put":
                return self._put(device, calls)
            case "delete":
                device.delete_many(keys_together([call.given for call in calls]))
                return [None] * len(calls)
            case "scan":
                found = device.scan(calls[0].given[0])
                return [found if isinstance(found, Listing) else list(found)]
            case "get":
                bodies = device.get_many(keys_together([call.given for call in calls]))
                return _shared_out(bodies, calls)

    def _put(self, device: Device, calls: list[Call]) -> list[Any]:
        try:
            device.put_many(together([call.given for call in calls]))
        except DeviceFull as full:
            if len(calls) == 1:
                return [full]
            return [answer for call in calls for answer in self._put(device, [call])]
        return [None] * len(calls)

    def _probe(self, under: UnderWay) -> Probe:
        device = self._device or self._open()
        under.started = perf_counter()
        probe = device.probe()
        if not probe.ok and self._place.reopens:
            under.started = None
            self.let_go()
            device = self._open()
            under.started = perf_counter()
            probe = device.probe()
        return probe

    def _open(self) -> Device:
        try:
            self._device = self._place.open()
        except (InvalidSpec, MissingPackage) as refusal:
            self.refusal = refusal
            raise
        return self._device

    def let_go(self) -> None:
        """Close the device and let others have its place."""
        device, self._device = self._device, None
        if device is not None:
            with contextlib.suppress(EbbError):
                device.close()
        self._place.release()


def _shared_out(bodies: list[Any], calls: list[Call]) -> list[Any]:
    """To each call as many as it asked for."""
    if len(calls) == 1:
        return [bodies]
    out, at = [], 0
    for call in calls:
        out.append(bodies[at : at + len(call.given)])
        at += len(call.given)
    return out
