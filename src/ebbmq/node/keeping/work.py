"""What waits for one device: copies to be made, urgent ones and others, and copies to be deleted.

Everything here is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.node.keeping.line import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.core.copies import Name
    from ebbmq.node.devices.port import Port

#: What takes about a millisecond of each thread that has to do with it. With fewer, most of the
#: time goes into what is done once a call.
COUNT_MAX: Final = 1_024
#: A put to an object store, or a delete, is one object, and small ones are written again to make
#: large ones. So what is not urgent waits a little for company.
OBJECT_COUNT_MAX: Final = 18_432
_OBJECT_PAUSE_S: Final = 0.5
_PAUSE_S: Final = 0.05


class Delete(NamedTuple):
    """Copies to be deleted once the journal is on the device up to a position, and nobody reads."""

    position: int
    names: Sequence[Name]
    forget: bool
    #: The first read that cannot know of them: those before it must be over.
    read: int = 0


class Until(NamedTuple):
    """Up to where deletes may be made."""

    #: The journal is on the device up to here.
    synced: int
    #: The oldest read of the device that is under way.
    read: int

    def allows(self, delete: Delete) -> bool:
        """Whether a delete may be made; if not, none that came after it may."""
        return delete.position <= self.synced and delete.read <= self.read


class Work:
    """What waits for one device, and how much was done."""

    def __init__(self) -> None:
        self.urgent = Line()
        self.calm = Line()
        self.deletes: deque[Delete] = deque()
        #: How many copies are to be deleted.
        self.to_delete = 0
        #: When something that is not urgent came while nothing waited.
        self._calm_since_s = 0.0
        #: When the first delete came that waits, or some were last made.
        self._deletes_since_s = 0.0
        self.under_way = 0
        #: Which of the two was not made last.
        self.deletes_first = True
        self.copied = self.deleted = self.failed = 0

    def add_puts(self, names: Sequence[Name], *, calm: bool) -> None:
        """Have copies made."""
        if calm and not self.calm:
            self._calm_since_s = time.monotonic()
        (self.calm if calm else self.urgent).extend(names)

    def add_deletes(
        self, names: Sequence[Name], position: int, *, forget: bool, read: int = 0
    ) -> None:
        """Have copies deleted once the journal is on the device up to a position.

        Reads before that number are waited for.
        """
        if not self.deletes:
            self._deletes_since_s = time.monotonic()
        self.to_delete += len(names)
        self.deletes.extend(
            Delete(position, names[at : at + COUNT_MAX], forget, read)
            for at in range(0, len(names), COUNT_MAX)
        )

    def clear(self) -> None:
        """Forget what waits."""
        self.urgent.clear()
        self.calm.clear()
        self.deletes.clear()
        self.to_delete = 0

    def has_company(self, *, is_archive: bool) -> bool:
        """Whether what nobody waits for makes a full call, or has waited long (lock is free)."""
        waited_s = time.monotonic() - self._calm_since_s
        if is_archive:
            return len(self.calm) >= OBJECT_COUNT_MAX or waited_s > _OBJECT_PAUSE_S
        return len(self.calm) >= COUNT_MAX or waited_s > _PAUSE_S

    def may_delete(self, until: Until, *, is_archive: bool) -> bool:
        """Whether there is something to delete, and enough for one call (the lock is free)."""
        if not self.deletes or not until.allows(self.deletes[0]):
            return False
        waited_s = time.monotonic() - self._deletes_since_s
        return not is_archive or self.to_delete >= OBJECT_COUNT_MAX or waited_s > _OBJECT_PAUSE_S

    def take_deletes(
        self, until: Until, still: Callable[[Sequence[Name]], Sequence[Name]]
    ) -> list[Delete]:
        """Some deletes that may be made, of those that are still to go."""
        some: list[Delete] = []
        count = 0
        while self.deletes and until.allows(self.deletes[0]) and count < COUNT_MAX:
            delete = self.deletes.popleft()
            count += len(delete.names)
            some.append(delete._replace(names=still(delete.names)))
        self.to_delete -= count
        self._deletes_since_s = time.monotonic()
        return some

    def give_back(self, deletes: Sequence[Delete]) -> None:
        """Deletes were not made: they come first again."""
        self.deletes.extendleft(reversed(deletes))
        self.to_delete += sum(len(each.names) for each in deletes)


class Call(NamedTuple):
    """A put or a delete under way."""

    port: Port
    work: Work
    #: Nobody waits for it, so nothing else in the background computes meanwhile.
    alone: bool = False
    #: It was not begun by the mover, which has nothing to do when it ends.
    apart: bool = False
