"""Reads of copies that are under way, so that no copy is deleted under somebody who reads it.

Who reads has looked up where a body is, and asks those devices one after the other. A copy that is
let go of meanwhile is not found by later reads any more, so it is enough that its deletion waits
for those that began before: reads are numbered, and a deletion carries the number of the first read
that cannot know of the copy.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from ebbmq.core.copies import LOG
from ebbmq.policy.reads import before_log

if TYPE_CHECKING:
    from collections.abc import Collection

    from ebbmq.policy.rules.properties import States


class Readers:
    """The reads under way, one entry for each call whatever it reads."""

    def __init__(self) -> None:
        #: Guards what is below: a read ends without the engine's lock.
        self._lock = threading.Lock()
        #: By number, the oldest first: the devices that may be asked.
        self._under_way: dict[int, Collection[str]] = {}
        #: The number of the next read.
        self.next = 0
        #: By device: messages whose bodies were read from it.
        self.read: Counter[str] = Counter()
        #: Whether a device is faster than the log while the devices are in these states.
        self._beaten: tuple[States | None, bool] = None, False

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

    def count(self, device: str, messages: int) -> None:
        """Bodies came from a device."""
        with self._lock:
            self.read[device] += messages

    def is_log_beaten(self, states: States) -> bool:
        """Whether some device is to be read from rather than the log, if both have a copy."""
        known, beaten = self._beaten
        if known is not states:
            beaten = bool(before_log(states, states, LOG))
            self._beaten = states, beaten
        return beaten
