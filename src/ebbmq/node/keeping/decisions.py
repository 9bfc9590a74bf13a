"""What was decided about where messages are, with the reason: the last of it, for people.

Everything that matters for recovery is a fact in the journal; this is what a person asks about
afterwards (`ebbmq why ID`), and what a feed of events is made of.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.core.copies import Name

_NAMES_MAX: Final = 65_536

#: Why a copy was made: beside others, in the place of another, or because one was lacking.
REPLICA: Final = "replica"
MOVE: Final = "move"
REPAIR: Final = "repair"
#: Why a device did not take a copy; where its call failed, the reason is the code of that error.
UNUSABLE: Final = "unusable"
NOT_VERIFIED: Final = "not verified"
COPY_TIMEOUT: Final = "copy timeout"
UNREADABLE: Final = "unreadable"
#: Why a copy is lost.
MISSING: Final = "missing"
DAMAGED: Final = "damaged"
#: A device was given up: its copies are lost, and it takes none.
EVICTED: Final = "evicted"
#: A copy is dropped that was made while another device was away.
SPARE: Final = "spare"


class Decision(NamedTuple):
    """One decision about some messages."""

    at_ms: int
    #: placed, asked, archived, copied, dropped, refused, lost, faded
    event: str
    device: str
    reason: str
    names: Sequence[Name]
    #: How faded they were, where that was the reason.
    score: float | None = None


class Decisions:
    """The last decisions, and how many there were of each kind."""

    def __init__(self) -> None:
        self._last: deque[Decision] = deque()
        self._names = 0
        self.counts: Counter[str] = Counter()
        #: Whoever listens; None: nobody does.
        self.tell: Callable[[Decision], None] | None = None

    def note(
        self,
        at_ms: int,
        names: Sequence[Name],
        event: str,
        device: str,
        reason: str,
        *,
        score: float | None = None,
    ) -> None:
        """Something was decided about these messages."""
        if not names:
            return
        decision = Decision(at_ms, event, device, reason, names, score)
        self.counts[event] += len(names)
        self._names += len(names)
        self._last.append(decision)
        while self._names > _NAMES_MAX:
            self._names -= len(self._last.popleft().names)
        if self.tell is not None:
            self.tell(decision)

    def moved(self, at_ms: int, names: Sequence[Name], device: str, left: str) -> None:
        """A device has taken the place of another; that it was to was decided before."""
        if names and self.tell is not None:
            self.tell(Decision(at_ms, "moved", device, f"from {left}", names))

    def of(self, name: Name) -> list[Decision]:
        """What was decided about a message, as far as it is remembered, oldest first."""
        return [each for each in self._last if name in each.names]
