"""How many messages need each body of the log that queues share.

It is no fact of its own: the rows that point at a body say so, and recovery counts them. A body
that one message needs, the normal case, takes no space.
"""

from __future__ import annotations

from ebbmq.core.located import Located


class Sharing:
    """Counts by location, `segment << 32 | offset`."""

    def __init__(self) -> None:
        self._needs = Located()

    def __len__(self) -> int:
        return len(self._needs)

    def share(self, location: int, count: int) -> None:
        """Say that `count` messages need this body, whatever was said before."""
        assert count >= 1
        self._needs.set(location, count if count > 1 else 0)

    def let_go(self, location: int) -> bool:
        """One message less needs this body; True if it was the last."""
        count = self._needs.get(location)
        if not count:
            return True
        self._needs.set(location, count - 1 if count > 2 else 0)  # noqa: PLR2004
        return False
