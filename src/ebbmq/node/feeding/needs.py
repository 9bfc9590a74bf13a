"""What the bound of the feed is too small for: told once in the log, and until it is no more."""

from __future__ import annotations

from typing import Final

from ebbmq import limits
from ebbmq.node.log import log

#: For what.
SNAPSHOTS: Final = "snapshots"
EVENTS: Final = "events"


class Needs:
    """What `feed.bytes_max` would have to be; written by one thread, read by any."""

    def __init__(self, lake: str, bytes_max: int) -> None:
        self._lake = lake
        self._bytes_max = bytes_max
        self._told: dict[str, str] = {}
        self._bytes: dict[str, int] = {}

    @property
    def lacking_bytes(self) -> int:
        """How much more is needed; 0 while there is enough."""
        return max(0, max([*self._bytes.values()], default=0) - self._bytes_max)

    def troubles(self) -> list[str]:
        """For what it is too small, and what to set, for people."""
        return [*self._told.values()]

    def lack(self, what: str, needed: int, so: str) -> None:
        """It is too small for something, so that something else is the case."""
        # A number that people set, and that lasts for a while.
        needed = -(-needed // limits.MIB) * limits.MIB
        if what not in self._told:
            log.warning(
                "feed_bound_too_small",
                lake=self._lake, what=what, bytes_max=self._bytes_max, needed=needed, detail=so,
            )  # fmt: skip
        self._bytes[what] = needed
        self._told[what] = (
            f"feed.bytes_max, {self._bytes_max} bytes, is too small for the feed in {self._lake}: "
            f"{so}; set it to {needed} or more"
        )

    def suffice(self, what: str) -> None:
        """It is enough for something."""
        self._bytes.pop(what, None)
        if self._told.pop(what, None) is not None:
            log.info("feed_bound_enough", lake=self._lake, what=what)
