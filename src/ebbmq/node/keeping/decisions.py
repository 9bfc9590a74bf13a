"""What was decided about where messages are, with the reason: for people, and for the feed.

Everything that matters for recovery is a fact in the journal; this is what a person asks about
afterwards (`ebbmq why ID`), and what a feed of events is made of.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.node.keeping.decision_log import Batch, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.core.copies import Name
    from ebbmq.node.keeping.decision_log import DecisionLog, Said

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
    #: placed, asked, archived, copied, moved, dropped, refused, lost, faded, pinned, unpinned
    event: str
    device: str
    reason: str
    names: Sequence[Name]
    #: How faded they were, where that was the reason.
    score: float | None = None


class Decisions:
    """Puts decisions on record, and tells of them; noted with the engine's lock held."""

    def __init__(self) -> None:
        #: None while there is nothing but the log, and nothing to decide.
        self.log: DecisionLog | None = None
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
        self.counts[event] += len(names)
        if self.log is not None:
            self.log.note(Told(at_ms, event, device, reason, names))
        if self.tell is not None:
            self.tell(Decision(at_ms, event, device, reason, names, score))

    def placed(self, at_ms: int, first: Name, saids: Sequence[Said | None]) -> None:
        """Messages in a row came, and this is said of each; None: nothing is.

        There may be as many reasons as messages, so they are put on record as one.
        """
        self.counts["placed"] += len(saids) - saids.count(None)
        if self.log is not None:
            self.log.note(Batch(at_ms, first, saids))
        if self.tell is not None:
            by_said: dict[Said, list[Name]] = {}
            for name, said in enumerate(saids, first):
                if said is not None:
                    by_said.setdefault(said, []).append(name)
            for (device, reason), names in by_said.items():
                self.tell(Decision(at_ms, "placed", device, reason, names))

    def moved(self, at_ms: int, names: Sequence[Name], device: str, left: str) -> None:
        """A device has taken the place of another."""
        self.note(at_ms, names, "moved", device, f"from {left}")

    def of(self, name: Name) -> list[Told]:
        """What was decided about a message, as far as it is on record, oldest first."""
        return [] if self.log is None else self.log.of(name)

    def since_ms(self) -> int | None:
        """Since when decisions are on record, where older ones may have been given up."""
        return None if self.log is None else self.log.since_ms()

    def flush(self) -> None:
        """Write what was noted, when there is time (the lock is free)."""
        if self.log is not None:
            self.log.flush()

    def close(self) -> None:
        """Write what was noted; nothing more is."""
        if self.log is not None:
            self.log.close()
            self.log = None
