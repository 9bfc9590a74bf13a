"""Looks after all devices: probes each at its interval, gives up what stalls.

One thread for all of them, which never talks to a device itself, so that none can hold it. Whoever
must not be held by a device either is called by it (`also`).
With a clock that is moved by hand there is no thread: what is due is done when time moves.
"""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.node.clock import Clock
    from ebbmq.node.devices.port import Port

    Work = Callable[[], None]
    #: Makes of work one whose end, if nobody foresaw it, is told.
    Guarded = Callable[[Work], Work]

_PAUSE_MS_MIN: Final = 1
_PAUSE_MS_MAX: Final = 250
#: How long a clock that is moved by hand waits for the probes it began.
_BY_HAND_TIMEOUT_S: Final = 10.0


class Monitor:
    """Ticks the ports."""

    def __init__(self, ports: Sequence[Port], clock: Clock, also: Work) -> None:
        self._ports = ports
        self._also = also
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, guarded: Guarded) -> None:
        """Let time pass: by a thread, or by the manual clock."""
        if self._clock.attach(self._run_by_hand):
            return
        thread = threading.Thread(target=guarded(self._run), name="ebbmq-devices", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        while not self._stop.is_set():
            for port in self._ports:
                port.tick()
            self._also()
            due_ms = min(port.due_ms() for port in self._ports)
            pause_ms = min(due_ms - self._clock.elapsed_ms(), _PAUSE_MS_MAX)
            self._stop.wait(max(_PAUSE_MS_MIN, pause_ms) / 1_000)

    def _run_by_hand(self) -> None:
        begun = [future for port in self._ports if (future := port.tick()) is not None]
        wait(begun, _BY_HAND_TIMEOUT_S)
        self._also()

    def close(self) -> None:
        """Look no more."""
        self._clock.detach(self._run_by_hand)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
