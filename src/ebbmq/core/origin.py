"""How a message was published, in the bits above the reason of its row: no RAM of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.core.row import LEVEL_BIT, LEVEL_MASK, TOPIC

if TYPE_CHECKING:
    from ebbmq.model import Level

QUEUED: Final = "QUEUE"
TO_TOPIC: Final = "TOPIC"
#: By number; 0 is a message of a store that did not keep it.
_LEVELS: Final[tuple[Level | None, ...]] = (None, "memory", "written", "synced")
#: By confirm level.
OF_LEVEL: Final[dict[Level | None, int]] = {
    level: number << LEVEL_BIT for number, level in enumerate(_LEVELS)
}


def origin(level: Level | None, *, topic: bool = False) -> int:
    """The bits of messages published at a level, to a topic or to a queue."""
    return OF_LEVEL[level] | TOPIC if topic else OF_LEVEL[level]


def level_of(bits: int) -> Level | None:
    """The confirm level their publisher asked for; None where that was not kept."""
    return _LEVELS[(bits & LEVEL_MASK) >> LEVEL_BIT]


def destination_of(bits: int) -> str:
    """Where it was published, as rules call it."""
    return TO_TOPIC if bits & TOPIC else QUEUED
