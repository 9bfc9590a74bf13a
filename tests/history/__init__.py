"""What the clients of one broker saw, and the rules that every such history must obey.

A history is a list of events. `started` and `ended` are stamps of one monotonic order (nanoseconds,
or steps of a simulation); `ended` is None for a call that never returned. `*_ms` are queue time. A
body is unique per message of a queue, so that a message is recognised even when its publish was
never confirmed. What is not known is never held against the broker:

1. A call whose outcome is unknown may or may not have happened, until something shows which.
2. A restart undoes what was promised at a weaker level than it leaves: after a kill `written` and
   `synced` hold, after a power cut `synced` alone, after a clean close everything.
3. A message that was delivered has reached its level, confirmed or not.
4. Two calls are ordered only if one ended before the other started; the messages of one call are
   ordered by their place in it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.history import order, rules
from tests.history.events import (
    Drained,
    Event,
    Grant,
    LeaseCall,
    Publish,
    Removed,
    Restart,
    Sent,
    Settle,
)
from tests.history.index import Index, Options, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Drained",
    "Event",
    "Grant",
    "LeaseCall",
    "Options",
    "Publish",
    "Removed",
    "Restart",
    "Sent",
    "Settle",
    "Violation",
    "check",
]


def check(history: Sequence[Event], options: Options | None = None) -> list[Violation]:
    """Every rule that the history breaks; an empty list means that all promises were kept."""
    index = Index(history, options or Options())
    return list(itertools.chain.from_iterable(rule(index) for rule in (*rules.RULES, order.order)))
