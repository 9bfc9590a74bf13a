"""How fast copies are moved that nobody waits for, and how little others notice of it.

Moving is limited in bytes a second, in steps so small that a burst is no longer than a few
milliseconds. What it takes of the interpreter is shared with whoever delivers: a thread that wants
to run waits for the one that runs, up to the switch interval, each time it comes back from the
disk. So while something is moved that interval is a hundredth of what it is otherwise.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: So much of a second's allowance may be used at once.
_BURST_S: Final = 0.02
_SWITCH_S: Final = 0.00005


class Pace:
    """An allowance in bytes; devices are as fast as they are, whatever a manual clock says."""

    def __init__(self, bytes_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._allowance = bytes_per_s * _BURST_S
        self._refilled_at_s = clock()

    def wait_s(self) -> float:
        """In how long something may be moved; 0: now."""
        now_s = self._clock()
        gained = (now_s - self._refilled_at_s) * self._bytes_per_s
        self._refilled_at_s = now_s
        self._allowance = min(self._allowance + gained, self._bytes_per_s * _BURST_S)
        return 0.0 if self._allowance > 0 else -self._allowance / self._bytes_per_s

    def took(self, nbytes: int) -> None:
        """So much was moved."""
        self._allowance -= nbytes


class HandOver:
    """Whether threads of this process hand over quickly, as long as anybody wants it."""

    _lock = threading.Lock()
    _wanted = 0
    _usual_s = 0.0

    def __init__(self) -> None:
        self._is_quick = False

    def be_quick(self, *, is_quick: bool) -> None:
        """Ask for it, or ask for it no more."""
        if is_quick == self._is_quick:
            return
        self._is_quick = is_quick
        with HandOver._lock:
            HandOver._wanted += 1 if is_quick else -1
            if is_quick and HandOver._wanted == 1:
                HandOver._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_S, HandOver._usual_s))
            elif not HandOver._wanted:
                sys.setswitchinterval(HandOver._usual_s)
