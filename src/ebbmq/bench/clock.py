"""A clock that runs by itself, can be made to jump, and lets a tick be timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from ebbmq.node.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable


class JumpingClock(SystemClock):
    """The machine's clock plus what was jumped; the broker's own timer thread runs on it."""

    def __init__(self) -> None:
        self._jumped_ms = 0
        self._run_due: Callable[[], None] | None = None

    @override
    def elapsed_ms(self) -> int:
        return super().elapsed_ms() + self._jumped_ms

    @override
    def attach(self, run_due: Callable[[], None]) -> bool:
        self._run_due = run_due
        return super().attach(run_due)

    def jump(self, ms: int) -> None:
        """Let time be later at once."""
        self._jumped_ms += ms

    def tick(self) -> None:
        """Do what is due, here and now."""
        assert self._run_due is not None, "the clock is not in use"
        self._run_due()
