"""Room on devices while a plan is applied: what was asked for is not written yet, and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine

#: After so long most of what was asked for is written, and measured.
_KEPT_MS: Final = 30_000


class Room:
    """Bytes that each device can still be asked to take; used by one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: dict[str, int] = {}
        self._measured_at_ms: int | None = None

    def look(self) -> None:
        """Measure anew, unless that was done a moment ago (the lock is free)."""
        devices, now_ms = self._engine.devices, self._engine.clock.elapsed_ms()
        if devices is None or (
            self._measured_at_ms is not None and now_ms - self._measured_at_ms < _KEPT_MS
        ):
            return
        self._measured_at_ms = now_ms
        self._left = {
            each.name: each.capacity_bytes - each.used_bytes - each.pending_bytes
            for each in devices.describe()
        }

    def left(self, device: str) -> int:
        """What a device can still be asked to take."""
        return max(0, self._left.get(device, 0))

    def take(self, device: str, nbytes: int) -> None:
        """A device was asked to take so much."""
        self._left[device] = self._left.get(device, 0) - nbytes
