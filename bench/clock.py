"""A clock that runs by itself and can be made to jump."""

from __future__ import annotations

from typing_extensions import override

from ebbmq.node.clock import SystemClock


class JumpingClock(SystemClock):
    """The machine's clock plus what was jumped; the broker's own timer thread runs on it."""

    def __init__(self) -> None:
        self._jumped_ms = 0

    @override
    def elapsed_ms(self) -> int:
        return super().elapsed_ms() + self._jumped_ms

    def jump(self, ms: int) -> None:
        """Let time be later at once."""
        self._jumped_ms += ms
