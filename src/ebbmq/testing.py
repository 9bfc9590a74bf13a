"""For tests of code that uses EbbMQ: a clock that moves when it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_START_MS: Final = 1_700_000_000_000


class ManualClock:
    """Time that stands still until `advance`; then what became due is done before it returns.

    A call that waits on a broker with this clock (`lease(wait_ms=..)`) moves it forward itself,
    from one due instant to the next, instead of sleeping: a test of a time-out takes no time.
    """

    def __init__(self, now_ms: int = _START_MS) -> None:
        self._now_ms = now_ms
        self._run_due: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        """The manual time."""
        return self._now_ms

    def elapsed_ms(self) -> int:
        """The manual time."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move time forward and do everything that became due."""
        if ms < 0:
            raise ValueError("time does not run backwards; advance() takes 0 or more milliseconds")
        self._now_ms += ms
        for run_due in list(self._run_due):
            run_due()

    def attach(self, run_due: Callable[[], None]) -> bool:
        """Have `run_due` called by `advance`."""
        self._run_due.append(run_due)
        return True

    def detach(self, run_due: Callable[[], None]) -> None:
        """Stop calling `run_due`."""
        if run_due in self._run_due:
            self._run_due.remove(run_due)
