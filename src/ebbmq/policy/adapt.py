"""How the decay rates of newly published messages follow the latency of processing.

Slow consumers raise a factor on the rates, fast ones lower it: in steps, between bounds, with the
two thresholds apart and a rest between steps, so that it does not flap. A step judges only what was
observed since the step before it: without new observations the factor stays where it is. A factor
for the whole fleet, which comes from outside and ends by itself, counts while it is the larger one.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from ebbmq.errors import InvalidSpec

if TYPE_CHECKING:
    from ebbmq.model import AdaptSpec


class AdaptState(msgspec.Struct, frozen=True, gc=False):
    """What a checkpoint keeps of a controller; latencies in the window are observed anew."""

    factor: float = 1.0
    #: Instant of the last step, or of the first observation.
    rested_from_ms: int | None = None
    external_factor: float = 1.0
    external_until_ms: int = 0
    external_run: str = ""


class AdaptiveDecay:
    """The factor on the decay rates of one queue's new messages."""

    __slots__ = ("_durations_ms", "_spec", "_state", "_sum_ms")

    def __init__(self, spec: AdaptSpec) -> None:
        self._spec = spec
        self._state = AdaptState()
        self._durations_ms: deque[float] = deque()
        self._sum_ms = 0.0

    def observe(self, duration_ms: float, now_ms: int) -> None:
        """Count the time one settled lease took."""
        durations_ms = self._durations_ms
        durations_ms.append(duration_ms)
        self._sum_ms += duration_ms
        if len(durations_ms) > self._spec.window:
            self._sum_ms -= durations_ms.popleft()
        if self._state.rested_from_ms is None:
            self._state = msgspec.structs.replace(self._state, rested_from_ms=now_ms)

    def mean_ms(self) -> float | None:
        """Return the mean latency since the last step, over the window at most."""
        return self._sum_ms / len(self._durations_ms) if self._durations_ms else None

    def factor(self, now_ms: int) -> float:
        """Return the factor for messages published now, after the step that is due, if any."""
        self._step_if_due(now_ms)
        state = self._state
        if now_ms < state.external_until_ms:
            return min(max(state.factor, state.external_factor), self._spec.factor_max)
        return state.factor

    def apply_external(self, factor: float, until_ms: int, run: str) -> None:
        """Take over the fleet's factor until an instant, in place of any earlier one.

        Raises:
            InvalidSpec: the factor is not a positive number.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise InvalidSpec(
                f"decay factor of run {run!r} is {factor!r}", "use a positive number, 1 for none"
            )
        self._state = msgspec.structs.replace(
            self._state, external_factor=factor, external_until_ms=until_ms, external_run=run
        )

    def state(self) -> AdaptState:
        """Return what `restore` needs to go on from here."""
        return self._state

    def restore(self, state: AdaptState) -> None:
        """Go on from a state; a factor outside today's bounds is moved to the nearest one."""
        factor = min(max(state.factor, self._spec.factor_min), self._spec.factor_max)
        self._state = msgspec.structs.replace(state, factor=factor)
        self._forget()

    def _step_if_due(self, now_ms: int) -> None:
        spec, state = self._spec, self._state
        mean_ms = self.mean_ms()
        if mean_ms is None or state.rested_from_ms is None:
            return
        if now_ms - state.rested_from_ms < spec.dwell_ms:
            return
        if mean_ms > spec.raise_above_ms:
            factor = min(state.factor * spec.step, spec.factor_max)
        elif mean_ms < spec.lower_below_ms:
            factor = max(state.factor / spec.step, spec.factor_min)
        else:
            return
        # Also at a bound: what was observed there must not be weighed against what comes after it.
        self._state = msgspec.structs.replace(state, factor=factor, rested_from_ms=now_ms)
        self._forget()

    def _forget(self) -> None:
        self._durations_ms.clear()
        self._sum_ms = 0.0


def adapted_rate(rate: float, factor: float) -> float:
    """Return the rate a message is published with; 0 stays 0, and 1 is the most there is."""
    return min(rate * factor, 1.0)
