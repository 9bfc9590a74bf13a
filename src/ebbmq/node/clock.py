"""Queue time: milliseconds that never run backwards, told by the machine or by a test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Callable


_monotonic_ns: Final = time.monotonic_ns


def doubt_of(since_ms: int) -> str | None:
    """What is doubtful about a calendar that has gone on by so much since a store was last open."""
    if since_ms < -limits.CLOCK_BEHIND_MS_MAX:
        doubt = (
            f"the clock is {_spoken(-since_ms)} behind where it was when the store was last open"
        )
    elif since_ms > limits.CLOCK_AHEAD_MS_MAX:
        doubt = f"the clock is {_spoken(since_ms)} ahead of the store's last entry"
    else:
        return None
    return (
        f"{doubt}; nothing is removed by age. Correct the clock, or run "
        "`ebbmq doctor --accept-clock`"
    )


def _spoken(ms: int) -> str:
    """A duration as people say it, in the largest unit of which there are two."""
    for unit, size in (("days", limits.DAY_MS), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * size:
            return f"{ms // size:,} {unit}"
    return f"{ms // 1_000:,} seconds"


class Clock(Protocol):
    """Where the engine gets its time from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by the machine's calendar; asked when a broker opens."""

    def elapsed_ms(self) -> int:
        """Milliseconds since some fixed instant; never runs backwards. Ages run on it."""

    def advance(self, ms: int) -> None:
        """Let time pass: sleep, or move a manual clock."""

    def attach(self, run_due: Callable[[], None]) -> bool:
        """Have `run_due` called when time moves; False if time moves by itself (start a timer)."""

    def detach(self, run_due: Callable[[], None]) -> None:
        """Stop calling `run_due`."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by the machine's calendar."""
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return _monotonic_ns() // 1_000_000

    def advance(self, ms: int) -> None:
        """Sleep."""
        time.sleep(ms / 1_000)

    def attach(self, run_due: Callable[[], None]) -> bool:
        """Time moves by itself."""
        return False

    def detach(self, run_due: Callable[[], None]) -> None:
        """Nothing was attached."""
