"""A device and the one thread that talks to it.

Theory of operation. Whoever wants something of the device leaves a call and gets a future; the
thread makes the calls, as `calls` orders them, measures them, and answers. While the circuit is
open calls are refused at once and nothing but probes is sent; one that was under way too long is
given up, with all that wait behind it, so that nobody is frozen with a frozen device. What a call
that was given up has done is unknown, as that of any call that fails.

Futures are answered, and `returned` is called, by the thread of the port, or by whoever found that
the device stalled: what they do must be short, and must not wait for this device.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, cast

from ebbmq.errors import EbbError, StorageFailed
from ebbmq.holding.columns import Batch
from ebbmq.holding.contract import DeviceFull, Lack
from ebbmq.node.devices.calls import PENDING_BYTES_MAX, Call, Verb, Waiting
from ebbmq.node.devices.health import Health
from ebbmq.node.devices.talking import Talking, UnderWay
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.errors import InvalidSpec
    from ebbmq.holding.contract import Copy, Key, MissingPackage, Probe, Stored
    from ebbmq.node.clock import Clock
    from ebbmq.node.devices.talking import Openable
    from ebbmq.policy.rules.properties import DeviceState
    from ebbmq.policy.status import StatusSpec

_logger: Final = logging.getLogger("ebbmq")
#: What a key takes in a request, about.
_KEY_BYTES: Final = 64
#: What an object store may have to copy to take a pack; it sets how long that may last.
_CLOSE_TIMEOUT_S: Final = 5.0
#: What takes as long as it takes.
_UNHURRIED: Final = ("scan", "release")


class Judging(NamedTuple):
    """How a device is judged."""

    status: StatusSpec
    stall_ms: int
    #: The node's own log is used whatever is thought of it.
    trusted: bool = False


class Listener(Protocol):
    """Who is told about the device."""

    def changed(self, name: str, state: DeviceState) -> None:
        """Its state is another one; called with the port's lock held."""
        ...

    def returned(self, name: str) -> None:
        """It can be used again, or began anew and may have lost what it had."""
        ...

    def damaged(self, name: str, keys: tuple[Key, ...]) -> None:
        """It came upon copies that it cannot give as they were put."""
        ...


class _Standing(NamedTuple):
    is_usable: bool
    circuit: Literal["closed", "open"]


class _News(NamedTuple):
    """What others are to know of an answer."""

    is_back: bool = False
    damaged: tuple[Key, ...] = ()


class Port:
    """One device, called by one thread; `state` is replaced and never changed."""

    def __init__(self, place: Openable, judging: Judging, clock: Clock, listener: Listener) -> None:
        self.name: Final = place.spec.name
        self.spec: Final = place.spec
        self.kind: Final = place.kind
        self.shown: Final = place.shown
        #: Set once the device was tried for the first time.
        self.tried: Final = threading.Event()
        self._talking = Talking(place)
        self.stall_ms: Final = judging.stall_ms
        self._clock = clock
        self._listener = listener
        #: Guards everything below; the thread waits on it for calls.
        self._lock = threading.Condition()
        self.health: Final = Health(place.spec, judging.status, trusted=judging.trusted)
        self.state = self.health.state()
        self.since_ms = clock.wall_ms()
        self.last_error_at_ms: int | None = None
        self._waiting = Waiting()
        self._under_way: UnderWay | None = None
        self._probe_at_ms = clock.elapsed_ms()
        self._is_probing = False
        self._started = ""
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"ebbmq-device-{self.name}", daemon=True
        )

    # For those who keep copies

    def put(self, copies: Sequence[Copy]) -> Future[None]:
        """Keep the copies; the future may have DeviceFull or StorageFailed."""
        bodies = (
            copies.nbytes
            if isinstance(copies, Batch)
            else sum([len(copy.payload) for copy in copies])
        )
        return self._submit("put", copies, bodies + len(copies) * _KEY_BYTES)

    def get(self, keys: Sequence[Key]) -> Future[list[bytes | Lack]]:
        """The bodies, in the order of the keys; before all puts and deletes that wait."""
        return self._submit("get", keys, 0)

    def delete(self, keys: Sequence[Key]) -> Future[None]:
        """Forget the copies."""
        return self._submit("delete", keys, len(keys) * _KEY_BYTES)

    def scan(self, store: bytes) -> Future[Sequence[Stored]]:
        """Every copy of that store."""
        return self._submit("scan", (store,), 0)

    @property
    def pending_bytes(self) -> int:
        """What puts and deletes that wait have in them."""
        return self._waiting.pending_bytes

    def busy_ms(self) -> float:
        """For how long the call that is under way has not come back; a scan takes its time."""
        under = self._under_way
        return 0.0 if under is None or under.verb in _UNHURRIED else under.took_ms()

    def _submit(self, verb: Verb, given: Sequence[Any], nbytes: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            refusal = self._refusal(nbytes)
            if refusal is None:
                self._waiting.add(Call(verb, given, nbytes, future))
                self._lock.notify()
                return future
        future.set_running_or_notify_cancel()
        future.set_exception(refusal)
        return future

    def _refusal(self, nbytes: int) -> EbbError | None:
        if self._is_closed:
            return StorageFailed(f"device {self.name!r} is closed", "open the broker again")
        if not self.health.is_usable:
            return self._unreachable(self.health.last_error or "it was not opened yet")
        if not self._waiting.has_room(nbytes):
            return DeviceFull(
                f"{self.pending_bytes} of {PENDING_BYTES_MAX} bytes wait for device {self.name!r}",
                "choose another device, or wait until it has taken them",
                code="device_busy",
            )
        return None

    def _unreachable(self, why: str) -> StorageFailed:
        action = "use another copy; the device is tried again by itself"
        if self.health.is_evicted:
            why, action = "it is evicted", f"`ebbmq devices admit {self.name}` takes it back"
        return StorageFailed(
            f"device {self.name!r} cannot be used: {why}", action, code="device_unreachable"
        )

    # For the monitor and the operator

    @property
    def refusal(self) -> InvalidSpec | MissingPackage | None:
        """Why the device can never be opened as it is declared."""
        return self._talking.refusal

    def start(self) -> None:
        """Try the device for the first time."""
        self._thread.start()
        self.tick()

    def probe(self) -> Future[Probe]:
        """Try the device now; a success counts, also while its circuit is open."""
        with self._lock:
            if not self._is_closed and not self.health.is_evicted:
                self.health.try_now(self._clock.elapsed_ms())
                return self._add_probe()
        future: Future[Probe] = Future()
        future.set_running_or_notify_cancel()
        future.set_exception(self._unreachable(self.health.last_error))
        return future

    def tick(self) -> Future[Probe] | None:
        """Do what is due: give up what stalled, probe, take a reading; the probe, if one began."""
        given_up = self._give_up_if_stalled()
        with self._lock:
            now_ms = self._clock.elapsed_ms()
            begun = None
            if self.health.is_evicted:
                self._probe_at_ms = self.health.probe_at_ms(now_ms)
            elif now_ms >= self._probe_at_ms and not self._is_closed:
                self._probe_at_ms = self.health.probe_at_ms(now_ms)
                if not self._is_probing:
                    begun = self._add_probe()
                elif self.tried.is_set():
                    self._read(now_ms)
        self._refuse(given_up)
        return begun

    def due_ms(self) -> int:
        """When to tick next, at the latest."""
        return min(self._probe_at_ms, self._clock.elapsed_ms() + self.stall_ms // 4)

    def erred(self, detail: str) -> None:
        """It answered, and not with what it was given: that shows in its status."""
        with self._lock:
            self.health.erred(detail)
            self.last_error_at_ms = self._clock.wall_ms()

    def evict(self) -> None:
        """Use the device no more, whatever it answers, and let go of it."""
        with self._lock:
            before = self._standing()
            self.health.give_up()
            self.tried.set()
            given_up = self._waiting.take_all(probes=True)
            self._is_probing = False
            if not self._is_closed:
                self._waiting.add(Call("release", (), 0, Future()))
                self._lock.notify()
            self._changed(before, self._clock.elapsed_ms())
            # Of one that nobody has asked yet, nothing else has changed.
            self._show(self.health.state())
        self._refuse(given_up)

    def admit(self) -> None:
        """Try an evicted device again, and use it once it has answered."""
        with self._lock:
            if not self.health.is_evicted:
                return
            self.health.begin_anew()
            self._probe_at_ms = self._clock.elapsed_ms()
        self.tick()

    def _add_probe(self) -> Future[Probe]:
        future: Future[Probe] = Future()
        self._is_probing = True
        self._waiting.add(Call("probe", (), 0, future))
        self._lock.notify()
        return future

    def _give_up_if_stalled(self) -> list[Call]:
        with self._lock:
            under = self._under_way
            if under is None or under.is_answered or under.verb in _UNHURRIED:
                return []
            waited_ms = under.waited_ms()
            if waited_ms < self.stall_ms:
                return []
            under.is_answered = True
            if under.verb == "probe":
                self._is_probing = False
                self.tried.set()
            now_ms = self._clock.elapsed_ms()
            detail = f"a {under.verb} did not come back within {under.took_ms():.0f} ms"
            self.last_error_at_ms = self._clock.wall_ms()
            before = self._standing()
            self.health.stalled(detail, now_ms)
            return under.calls + self._changed(before, now_ms)

    # The thread

    def _run(self) -> None:
        while under := self._next():
            error: EbbError | None = None
            answers: list[Any] = []
            try:
                answers = self._talking.ask(under)
            except EbbError as failure:
                error = failure
            except Exception as failure:  # a client library may raise anything
                _logger.exception("device_failed device=%r", self.name)
                error = StorageFailed(
                    f"device {self.name!r} failed: {type(failure).__name__}", "see the log"
                )
            self._tell(self._settle(under, answers, error))
        self._talking.let_go()

    def _tell(self, news: _News) -> None:
        try:
            if news.is_back:
                self._listener.returned(self.name)
            if news.damaged:
                self._listener.damaged(self.name, news.damaged)
        except Exception:  # whoever listens: the device must go on being served
            _logger.exception("device_return_failed device=%r", self.name)

    def _next(self) -> UnderWay | None:
        with self._lock:
            while not self._is_closed:
                calls = self._waiting.take()
                if calls:
                    self._under_way = UnderWay(calls)
                    return self._under_way
                self._lock.wait()
            return None

    # What follows from an answer

    def _settle(self, under: UnderWay, answers: list[Any], error: EbbError | None) -> _News:
        """Judge and pass on what came of the calls; what others are to know of it."""
        with self._lock:
            self._under_way = None
            if under.is_answered:
                return _News()
            under.is_answered = True
            before = self._standing()
            now_ms = self._clock.elapsed_ms()
            self._judge(under, answers, error, now_ms)
            news = _News() if error is not None else self._news(under, answers)
            if under.verb == "probe":
                self._is_probing = False
                self._probe_at_ms = self.health.probe_at_ms(now_ms)
                self._read(now_ms)
            refused = self._changed(before, now_ms)
            if self.health.is_usable and not before.is_usable and self.tried.is_set():
                news = news._replace(is_back=True)
        if error is not None:
            answers = [error] * len(under.calls)
        for call, answer in zip(under.calls, answers, strict=True):
            if isinstance(answer, EbbError):
                call.future.set_exception(answer)
            else:
                call.future.set_result(answer)
        self._refuse(refused)
        if not self.tried.is_set():
            self.tried.set()
        return news

    def _news(self, under: UnderWay, answers: list[Any]) -> _News:
        """What a probe says beside how the device is."""
        if under.verb != "probe" or not answers[0].ok:
            return _News()
        probe: Probe = answers[0]
        before, self._started = self._started, probe.started
        # While it cannot be used nobody is told: that it can be again says as much.
        began_anew = bool(before) and before != probe.started and self.health.is_usable
        if began_anew:
            log.warning("device_began_anew", device=self.name)
        return _News(began_anew, probe.damaged)

    def _judge(
        self, under: UnderWay, answers: list[Any], error: EbbError | None, now_ms: int
    ) -> None:
        if under.verb == "release":
            return
        health = self.health
        took_ms, nbytes = under.took_ms(), under.nbytes
        found = [error, *(answer for answer in answers if isinstance(answer, EbbError))]
        failures = [each for each in found if each is not None]
        if under.verb == "probe" and not failures:
            probe: Probe = answers[0]
            took_ms = probe.latency_ms
            if not probe.ok:
                failures.append(StorageFailed(probe.detail))
            else:
                health.measured(probe)
        for failure in failures:
            self.last_error_at_ms = self._clock.wall_ms()
            if isinstance(failure, DeviceFull) and under.verb != "probe":
                health.refused(_in_words(failure))
            else:
                health.failed(_in_words(failure), now_ms)
        if failures:
            return
        if under.verb == "get":
            nbytes = sum(map(_nbytes, answers))
        if under.verb != "scan":
            health.worked(took_ms, nbytes, probe=under.verb == "probe")
        health.succeeded(now_ms)

    def _read(self, now_ms: int) -> None:
        under = self._under_way
        waited_ms = under.waited_ms() if under is not None and under.verb != "scan" else 0.0
        self._show(self.health.read(now_ms, len(self._waiting), waited_ms))

    def _show(self, state: DeviceState) -> None:
        if state != self.state:
            self.state = state
            self._listener.changed(self.name, state)

    def _standing(self) -> _Standing:
        return _Standing(self.health.is_usable, self.health.circuit.state)

    def _changed(self, before: _Standing, now_ms: int) -> list[Call]:
        """Tell that the device can or cannot be used any more; the calls nobody will make now."""
        health, after = self.health, self._standing()
        if after == before:
            return []
        self.since_ms = self._clock.wall_ms()
        self._read(now_ms)
        if after.circuit == before.circuit:
            return []
        if after.circuit == "closed":
            log.info("device_circuit_closed", device=self.name)
            return []
        log.warning("device_circuit_open", device=self.name, detail=health.last_error)
        self._probe_at_ms = health.probe_at_ms(now_ms)
        return [] if health.is_usable else self._waiting.take_all()

    def _refuse(self, calls: list[Call]) -> None:
        for call in calls:
            call.future.set_exception(self._unreachable(self.health.last_error))

    def stop(self) -> None:
        """Take no more calls, and answer all that wait with an error."""
        with self._lock:
            self._is_closed = True
            calls = self._waiting.take_all(probes=True)
            self._lock.notify_all()
        for call in calls:
            call.future.set_exception(
                StorageFailed(f"device {self.name!r} is closed", "open the broker again")
            )

    def close(self) -> None:
        """Stop, and wait until the device is let go.

        A thread that does not come back is left behind; it lets go when it does.
        """
        self.stop()
        under = self._under_way
        is_stuck = under is not None and under.is_answered
        if self._thread.is_alive() and not is_stuck:
            self._thread.join(_CLOSE_TIMEOUT_S)


def _nbytes(bodies: list[bytes | Lack]) -> int:
    """What was read; a lack is nothing."""
    if Lack in map(type, bodies):
        return sum([len(body) for body in bodies if isinstance(body, bytes)])
    return sum(map(len, cast("list[bytes]", bodies)))


def _in_words(error: EbbError) -> str:
    """What happened and what to do, as people are told later."""
    return f"{error.detail} ({error.action})" if error.action else error.detail
