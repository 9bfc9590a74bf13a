"""How well a device is doing: a status from 0 (good) to -100, and whether it may be used at all.

The status is a composite of what is measured. Each measure is a strain from 0 to 1; together they
are what is left after each has taken its share, so that one full strain is enough for -100 and two
halves are worse than one. Worse is believed at once, better only when it lasts, and small changes
not at all, so that a choice does not flap.

The circuit is closed while a device works. Failures open it: nothing is sent there. After a while
it is half open: probes are sent, and successes close it again, a failure opens it for longer.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from ebbmq.errors import InvalidSpec

STATUS_BEST: Final = 0.0
STATUS_WORST: Final = -100.0
#: Below this, copies beyond the publisher's own count wait, so that overload is not made worse.
EXTRA_COPIES_ABOVE: Final = -20.0
EVERY_MS_MIN: Final = 10


class Reading(NamedTuple):
    """What was measured of a device since the last reading."""

    used_bytes: int
    capacity_bytes: int
    latency_ms: float
    error_share: float = 0.0  # failed calls of all calls, 0 to 1
    depth: int = 0  # calls that wait
    busy_share: float = 0.0  # of the time, how much it worked on calls, 0 to 1


class StatusSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From where a measure strains a device, and where the strain is full.

    Raises:
        InvalidSpec: a pair is not in order, or the interval is too short.
    """

    every_ms: int = 1_000
    space: tuple[float, float] = (0.70, 0.95)  # share of the capacity used
    latency_ms: tuple[float, float] = (20.0, 1_000.0)
    errors: tuple[float, float] = (0.0, 0.5)
    depth: tuple[float, float] = (64.0, 4_096.0)
    busy: tuple[float, float] = (0.80, 2.0)  # a busy device alone is never at its worst
    step: float = 5.0  # smaller changes are not shown
    better_after_ms: int = 3_000
    failures_to_open: int = 3
    open_ms: int = 1_000
    open_ms_max: int = 60_000
    successes_to_close: int = 2

    def __post_init__(self) -> None:
        for name in ("space", "latency_ms", "errors", "depth", "busy"):
            low, high = getattr(self, name)
            if not 0 <= low < high:
                raise InvalidSpec(
                    f"status {name} is {low!r} to {high!r}", "use two numbers, the smaller first"
                )
        if self.every_ms < EVERY_MS_MIN or self.open_ms < 1 or self.open_ms_max < self.open_ms:
            raise InvalidSpec(
                "status every_ms, open_ms or open_ms_max is too small",
                f"use {EVERY_MS_MIN} or more for every_ms and open_ms_max not below open_ms",
            )
        if self.failures_to_open < 1 or self.successes_to_close < 1 or self.step < 0:
            raise InvalidSpec(
                "status failures_to_open, successes_to_close or step is out of range",
                "use 1 or more for the counts and 0 or more for the step",
            )


def composite(reading: Reading, spec: StatusSpec) -> float:
    """Return the status a reading asks for; never better where a measure is worse."""
    left = 1.0
    for strain in strains(reading, spec).values():
        left *= 1 - strain
    return STATUS_WORST * (1 - left) + STATUS_BEST


def strains(reading: Reading, spec: StatusSpec) -> dict[str, float]:
    """How much each measure takes of a good status, from 0 to 1."""
    return {
        "space": _strain(reading.used_bytes / reading.capacity_bytes, spec.space),
        "latency": _strain(reading.latency_ms, spec.latency_ms),
        "errors": _strain(reading.error_share, spec.errors),
        "depth": _strain(reading.depth, spec.depth),
        "busy": _strain(reading.busy_share, spec.busy),
    }


def _strain(measure: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(1.0, max(0.0, (measure - low) / (high - low)))


class Shown(NamedTuple):
    """The status rules see, and since when readings have been better than it."""

    status: float = STATUS_BEST
    better_since_ms: int | None = None

    def after(self, asked: float, now_ms: int, spec: StatusSpec) -> Shown:
        """What is shown once a reading asked for another status."""
        if asked < self.status:
            worse = self.status - asked >= spec.step or asked == STATUS_WORST
            return Shown(asked) if worse else Shown(self.status)
        if asked - self.status < spec.step and asked != STATUS_BEST:
            return Shown(self.status)
        if asked == self.status:
            return Shown(self.status)
        since_ms = now_ms if self.better_since_ms is None else self.better_since_ms
        if now_ms - since_ms < spec.better_after_ms:
            return Shown(self.status, since_ms)
        return Shown(asked)


class Circuit(NamedTuple):
    """Whether a device is trusted; made anew by each success and failure."""

    state: Literal["closed", "open"] = "closed"
    failures: int = 0  # in a row, while closed
    successes: int = 0  # of probes in a row, while open
    opened_at_ms: int = 0
    open_ms: int = 0

    def at(self, now_ms: int) -> Literal["closed", "open", "half_open"]:
        """The state at an instant."""
        if self.state == "open" and now_ms - self.opened_at_ms >= self.open_ms:
            return "half_open"
        return self.state

    def probe_at_ms(self) -> int | None:
        """When an open circuit is to be probed; None while it is closed."""
        return self.opened_at_ms + self.open_ms if self.state == "open" else None

    def failed(self, now_ms: int, spec: StatusSpec) -> Circuit:
        """After a failure; of an open circuit only the failure of a probe counts."""
        match self.at(now_ms):
            case "closed":
                failures = self.failures + 1
                if failures < spec.failures_to_open:
                    return self._replace(failures=failures)
                return Circuit("open", opened_at_ms=now_ms, open_ms=spec.open_ms)
            case "half_open":
                longer_ms = min(self.open_ms * 2, spec.open_ms_max)
                return Circuit("open", opened_at_ms=now_ms, open_ms=longer_ms)
            case "open":
                return self

    def succeeded(self, now_ms: int, spec: StatusSpec) -> Circuit:
        """After a success; a late answer of a call from before it opened changes nothing."""
        match self.at(now_ms):
            case "closed":
                return self if self.failures == 0 else Circuit()
            case "half_open":
                successes = self.successes + 1
                if successes >= spec.successes_to_close:
                    return Circuit()
                return self._replace(successes=successes)
            case "open":
                return self
