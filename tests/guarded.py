"""An engine whose state can be read only by the thread that holds its lock.

From its start on, what the lock guards is watched: every attribute that is looked up of a catalog,
a partition, its rows, order and histories, or of holdings by a thread without the lock is refused,
and put down for the end of the test, as threads of the broker may die of it in silence. Recovery,
which is alone, is not watched. Objects that come later are watched from when the lock is let go.
"""

from __future__ import annotations

import sys
import threading
import traceback
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbmq import core
from ebbmq.core.accesses import Accesses
from ebbmq.core.classes import Classes
from ebbmq.core.dedup import Dedup
from ebbmq.core.exact import ExactOrder
from ebbmq.core.histories import Histories
from ebbmq.core.holdings import Holdings
from ebbmq.core.index import Index, Page
from ebbmq.core.order import BandedOrder
from ebbmq.core.partition import Partition
from ebbmq.core.pins import Pins
from ebbmq.core.sharing import Sharing
from ebbmq.core.wheel import Wheel
from ebbmq.node import catalog
from ebbmq.node.catalog import Catalog, Queue, Shard
from ebbmq.node.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is watched, and of each what never changes: anybody may read that.
FIXED: Final[dict[type, frozenset[str]]] = {
    Catalog: frozenset(),
    Queue: frozenset({"arrived"}),
    Shard: frozenset({"queue", "partition", "resident"}),
    Partition: frozenset({"pid", "spelling", "node", "epoch"}),
    Index: frozenset(),
    Page: frozenset({"number"}),
    Histories: frozenset(),
    BandedOrder: frozenset(),
    ExactOrder: frozenset(),
    Classes: frozenset({"band_width"}),
    Accesses: frozenset(),
    Dedup: frozenset(),
    Wheel: frozenset(),
    Holdings: frozenset(),
    Pins: frozenset(),
    Sharing: frozenset(),
}
_PARTS: Final = (
    "index", "histories", "order", "classes", "accesses", "dedup", "due_wheel", "end_wheel",
)  # fmt: skip
_TESTS: Final = str(Path(__file__).parent)
#: Where what is watched is written.
_STATE: Final = (str(Path(core.__file__).parent), catalog.__file__)


class OwnedLock:
    """A lock that knows which thread has it."""

    def __init__(self, engine: GuardedEngine) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._engine = engine

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner = threading.get_ident()
        return taken

    def release(self) -> None:
        self._engine.watch()
        self._owner = 0
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        """Also what conditions over this lock ask."""
        return self._owner == threading.get_ident()

    is_mine = _is_owned


class GuardedEngine(Engine):
    """An engine with such a lock."""

    #: Where something was read without the lock, in whatever thread.
    trespasses: list[str] = []  # noqa: RUF012  # of all engines of a test

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_watched = False
        self.kinds = {kind: _watched(kind, fixed, self) for kind, fixed in FIXED.items()}
        self.lock = OwnedLock(self)  # type: ignore[assignment]  # it does what a lock does

    def start(self) -> None:
        self.is_watched = True
        super().start()

    def watch(self) -> None:
        """Watch what came since the lock was taken."""
        if not self.is_watched:
            return
        for one in self._guarded():
            kind = self.kinds.get(type(one))
            if kind is not None:
                one.__class__ = kind

    def _guarded(self) -> Iterator[Any]:
        yield from (self.catalog, self.holdings, self.pins, self.sharing)
        for queue in self.catalog.queues.values():
            yield queue
            for shard in queue.shards:
                yield shard
                yield shard.partition
                yield from (getattr(shard.partition, name) for name in _PARTS)
                # Pages come in order: those before the last that is watched are watched.
                pages = reversed(shard.partition.index.pages.values())
                yield from takewhile(lambda page: type(page) is Page, pages)

    def check(self, kind: type, name: str) -> None:
        """Refuse to show what is looked up without the lock."""
        lock = self.lock
        if self.closed is not None or lock.is_mine() or _is_asked_by_test():  # type: ignore[attr-defined]
            return
        where = "".join(traceback.format_stack(limit=12)[:-2])
        self.trespasses.append(f"{kind.__name__}.{name} without the lock:\n{where}")
        raise AssertionError(f"{kind.__name__}.{name} was read without the engine's lock")


def _watched(kind: type, fixed: frozenset[str], engine: GuardedEngine) -> type:
    """A class of objects that show themselves only under an engine's lock."""

    def look_up(self: object, name: str) -> object:
        if name not in fixed and not name.startswith("__"):
            engine.check(kind, name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": look_up})


def _is_asked_by_test() -> bool:
    """Whether the test itself looks into the state, which it does when nothing goes on."""
    frame = sys._getframe(3)  # noqa: SLF001  # there is no other way to ask who calls
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_STATE):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TESTS)
