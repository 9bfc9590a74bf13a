"""How a device is doing, from what its calls and probes measured; time comes in as an argument.

Not shared: the port that owns it holds its lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.policy.rules.properties import DeviceState
from ebbmq.policy.status import STATUS_WORST, Circuit, Reading, Shown, composite, strains

if TYPE_CHECKING:
    from ebbmq.holding.contract import DeviceSpec, Probe
    from ebbmq.policy.status import StatusSpec

_PERCENT: Final = 100.0


class Health:
    """What is known of one device: measures since the last reading, status, circuit."""

    def __init__(self, spec: DeviceSpec, judged: StatusSpec, *, trusted: bool = False) -> None:
        self._spec = spec
        self._judged = judged
        #: The node's own log is used whatever is thought of it: there is nothing to turn to.
        self._trusted = trusted
        self.circuit = Circuit()
        self.shown = Shown()
        self.reading = Reading(0, spec.capacity_bytes, 0.0)
        #: False until it answered for the first time.
        self.is_known = False
        #: Whether the operator has given it up.
        self.is_evicted = False
        self.last_error = ""
        self.calls = 0
        self.errors = 0
        self._used_bytes = 0
        self._capacity_bytes = spec.capacity_bytes
        self._answered = self._recent_errors = 0
        self._latency_ms_sum = self._busy_ms = 0.0
        self._read_at_ms: int | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it may be chosen and called."""
        is_well = self.is_known and self.circuit.state == "closed"
        return self._trusted or (is_well and not self.is_evicted)

    def worked(self, took_ms: float, nbytes: int, *, probe: bool = False) -> None:
        """A call was answered; a large one is judged by each MiB of it."""
        self.calls += 1
        self._answered += 1
        self._latency_ms_sum += took_ms / max(1.0, nbytes / limits.MIB)
        if not probe:
            self._busy_ms += took_ms

    def refused(self, detail: str) -> None:
        """It had no room: no failure, but a reason to send the next one elsewhere."""
        self.calls += 1
        self.erred(detail)

    def erred(self, detail: str) -> None:
        """A call was answered, and not with what the device was given."""
        self.last_error = detail
        self.errors += 1
        self._recent_errors += 1

    def failed(self, detail: str, now_ms: int) -> None:
        """A call or a probe failed."""
        self.refused(detail)
        if self.is_known:
            self.circuit = self.circuit.failed(now_ms, self._judged)
        elif self.circuit.at(now_ms) != "open":
            longer_ms = self.circuit.open_ms * 2 or self._judged.open_ms
            self._open(now_ms, min(longer_ms, self._judged.open_ms_max))

    def stalled(self, detail: str, now_ms: int) -> None:
        """A call does not come back: one is enough, whoever waits behind it would wait too."""
        self.refused(detail)
        if self.circuit.state == "closed":
            self._open(now_ms, self._judged.open_ms)

    def succeeded(self, now_ms: int) -> None:
        """A call or a probe did what it should."""
        if self.is_known:
            self.circuit = self.circuit.succeeded(now_ms, self._judged)
        else:
            self.is_known = True
            self.circuit = Circuit()

    def measured(self, probe: Probe) -> None:
        """The space of a device that answered."""
        self._used_bytes = probe.used_bytes
        self._capacity_bytes = max(1, probe.capacity_bytes)

    def try_now(self, now_ms: int) -> None:
        """Let the next probe count, however long the circuit was to stay open."""
        if self.circuit.state == "open":
            self.circuit = self.circuit._replace(opened_at_ms=now_ms - self.circuit.open_ms)

    def give_up(self) -> None:
        """The operator does not want it used any more."""
        self.is_evicted = True
        self.shown = Shown(STATUS_WORST)

    def begin_anew(self) -> None:
        """Think nothing of it until it has answered."""
        self.is_known = self.is_evicted = False
        self.circuit = Circuit()
        self.last_error = ""

    def probe_at_ms(self, now_ms: int) -> int:
        """When to probe next: soon after a failure, at its interval else."""
        at_ms = self.circuit.probe_at_ms()
        if at_ms is not None and at_ms > now_ms:
            return at_ms
        in_doubt = at_ms is not None or self.circuit.failures or not self.is_known
        every_ms = self._judged.every_ms
        return now_ms + (min(every_ms, self._judged.open_ms) if in_doubt else every_ms)

    def read(self, now_ms: int, depth: int, waited_ms: float) -> DeviceState:
        """Take a reading, judge it, and begin anew to measure.

        Args:
            now_ms: the instant.
            depth: calls that wait.
            waited_ms: since when the call that is under way has not come back, for each MiB.
        """
        since_ms = now_ms - self._read_at_ms if self._read_at_ms is not None else 0
        self._read_at_ms = now_ms
        answered, errors = self._answered, self._recent_errors
        latency_ms = self._latency_ms_sum / answered if answered else self.reading.latency_ms
        self.reading = Reading(
            self._used_bytes,
            self._capacity_bytes,
            max(latency_ms, waited_ms),
            errors / max(1, answered + errors),
            depth,
            min(1.0, self._busy_ms / since_ms) if since_ms else 0.0,
        )
        self._answered = self._recent_errors = 0
        self._latency_ms_sum = self._busy_ms = 0.0
        asked = composite(self.reading, self._judged)
        if not self.is_known or self.circuit.state == "open" or self.is_evicted:
            asked = STATUS_WORST
        self.shown = self.shown.after(asked, now_ms, self._judged)
        return self.state()

    def state(self) -> DeviceState:
        """The device as rules and placement see it; digits that change nothing are left out."""
        free = 1 - min(1.0, self._used_bytes / self._capacity_bytes)
        return DeviceState(
            status=self.shown.status,
            latency_ms=float(f"{self.reading.latency_ms:.2g}"),
            free_percent=round(free * _PERCENT, 1),
            durable=self._spec.durable,
            usable=self.is_usable,
            tier=self._spec.tier,
            failure_domain=self._spec.failure_domain,
            slowness=self._spec.slowness,
            cost_per_gib_month=self._spec.cost_per_gib_month,
        )

    def parts(self) -> dict[str, float]:
        """What each measure takes of the status, as points below 0."""
        return {
            name: STATUS_WORST * strain if strain else 0.0
            for name, strain in strains(self.reading, self._judged).items()
        }

    def _open(self, now_ms: int, open_ms: int) -> None:
        self.circuit = Circuit("open", opened_at_ms=now_ms, open_ms=open_ms)
