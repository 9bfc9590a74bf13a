"""Reads of copies that are under way, so that no copy is deleted under somebody who reads it.

Who reads has looked up where a body is, and asks those devices one after the other. A copy that is
let go of meanwhile is not found by later reads any more, so it is enough that its deletion waits
for those that began before: reads are numbered, and a deletion carries the number of the first read
that cannot know of the copy.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class Readers:
    """The reads under way, one entry for each call whatever it reads."""

    def __init__(self) -> None:
        #: Guards what is below: a read ends without the engine's lock.
        self._lock = threading.Lock()
        #: By number, the oldest first: the devices that may be asked.
        self._under_way: dict[int, Collection[str]] = {}
        #: The number of the next read.
        self.next = 0

    def begin(self, devices: Collection[str]) -> int:
        """Somebody is about to read from these; called with the engine's lock held."""
        with self._lock:
            number, self.next = self.next, self.next + 1
            self._under_way[number] = devices
        return number

    def end(self, number: int) -> None:
        """A read is over."""
        with self._lock:
            del self._under_way[number]

    def oldest(self, device: str) -> int:
        """The oldest read that may still ask a device, or the next one if there is none."""
        with self._lock:
            for number, devices in self._under_way.items():
                if device in devices:
                    return number
            return self.next
