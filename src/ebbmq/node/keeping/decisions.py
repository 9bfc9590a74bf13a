"""What was decided about where messages are, with the reason: the last of them, for people.

Everything that matters for recovery is a fact in the journal; this is what a person asks about
afterwards (`ebbmq why ID`), and what a feed of events is made of.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.core.copies import Name

_KEPT_MAX: Final = 65_536


class Decision(NamedTuple):
    """One decision about one message."""

    at_ms: int
    name: Name
    #: placed, asked, archived, copied, dropped, refused, lost, faded
    event: str
    device: str
    reason: str


class Decisions:
    """The last decisions, and how many there were of each kind."""

    def __init__(self) -> None:
        self._last: deque[Decision] = deque(maxlen=_KEPT_MAX)
        self.counts: Counter[str] = Counter()

    def note(self, at_ms: int, names: Iterable[Name], event: str, device: str, reason: str) -> None:
        """Something was decided about these messages."""
        fresh = [Decision(at_ms, name, event, device, reason) for name in names]
        self._last.extend(fresh)
        self.counts[event] += len(fresh)

    def of(self, name: Name) -> list[Decision]:
        """What was decided about a message, as far as it is remembered, oldest first."""
        return [each for each in self._last if each.name == name]
