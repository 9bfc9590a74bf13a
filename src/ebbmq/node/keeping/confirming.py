"""Who waits for copies: batches that may not be leased yet, and calls that are not confirmed.

A record whose messages lack copies is one `Waiting`; a publish call is confirmed when all its
records are. Everything is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from ebbmq.errors import ClosedBroker, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ebbmq.core.copies import Name
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

    Tell = Callable[[Exception | None], None]

_NO_NAMES: Final = range(0)


class Waiting:
    """So many messages of a record, or records of a call, lack copies."""

    __slots__ = ("calls", "left", "names", "position", "told")

    def __init__(self, position: int, left: int, names: range = _NO_NAMES) -> None:
        self.position = position
        self.left = left
        #: The messages of a record, while it is kept as a whole.
        self.names = names
        #: The calls that wait for a record: the one that published it, and those that repeat it.
        self.calls: list[Waiting] = []
        self.told: list[Tell] = []


class Confirming:
    """Everything that waits for copies."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By message: the record that waits for its copies.
        self._lacking: dict[Name, Waiting] = {}
        #: By the first of consecutive messages, of which none has its copies: their record.
        self._whole: dict[Name, Waiting] = {}
        #: By partition, in the order they came.
        self._records: dict[Shard, deque[Waiting]] = {}
        #: By the position at which a call is confirmed.
        self._calls: dict[int, Waiting] = {}
        #: Records of the call that is being stored.
        self._stored: list[Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._lacking or self._whole)

    def hold(
        self, shard: Shard, position: int, names: Sequence[Name], *, called: bool = True
    ) -> None:
        """A record that ends at a position waits for copies of these, and so does a call for it."""
        waiting = Waiting(position, len(names))
        if isinstance(names, range):
            waiting.names = names
            self._whole[names[0]] = waiting
        else:
            self._lacking.update(dict.fromkeys(names, waiting))
        self._records.setdefault(shard, deque()).append(waiting)
        if called:
            self._stored.append(waiting)

    def note_call(self, position: int) -> None:
        """A publish call ends, to be confirmed at a position once its records have copies."""
        # What a bounded queue let go of at once waits for nothing.
        stored, self._stored = [record for record in self._stored if record.left], []
        if stored:
            # A call that repeats another may have appended nothing, and end where that one did.
            call = self._calls.setdefault(position, Waiting(position, 0))
            for record in stored:
                if call not in record.calls:
                    record.calls.append(call)
                    call.left += 1

    def repeat(self, names: Iterable[Name]) -> None:
        """A publish call repeats messages: it is confirmed when those it repeats are."""
        eligible = self._engine.holdings.is_eligible
        for name in names:
            self._spell_out([name])
            record = self._lacking.get(name)
            if record is None and not eligible(name):
                # It lacked copies when the broker ended, or has lost some since.
                record = self._lacking[name] = Waiting(0, 1)
            if record is not None and record not in self._stored:
                self._stored.append(record)

    def reached(self, shard: Shard, otherwise: int) -> int:
        """The position up to which records of a partition have copies; `otherwise` if all have."""
        records = self._records.get(shard)
        while records and not records[0].left:
            records.popleft()
        if records:
            return records[0].position - 1
        self._records.pop(shard, None)
        return otherwise

    def copied(self, names: Sequence[Name]) -> None:
        """Messages have the copies they need, or need them no more."""
        whole = self._whole.get(names[0]) if names else None
        if whole is not None and whole.names == names:
            del self._whole[names[0]]
            self._less(whole, len(names))
            return
        self._spell_out(names)
        take = self._lacking.pop
        found = Counter([take(name, None) for name in names])
        del found[None]
        for record, count in found.items():
            assert record is not None
            self._less(record, count)

    def _spell_out(self, names: Sequence[Name]) -> None:
        """Keep records that some of these may be of by message, as not all get copies at once."""
        if not self._whole or not names:
            return
        low, high = min(names), max(names)
        for record in list(self._whole.values()):
            if record.names[0] <= high and record.names[-1] >= low:
                del self._whole[record.names[0]]
                self._lacking.update(dict.fromkeys(record.names, record))

    def _less(self, record: Waiting, count: int) -> None:
        """So many messages of a record lack copies no more."""
        record.left -= count
        for call in record.calls if not record.left else ():
            call.left -= 1
            if not call.left:
                del self._calls[call.position]
                for tell in call.told:
                    tell(None)

    def when_copied(self, position: int, tell: Tell) -> bool:
        """Have a call told when it has its copies, or an error when the broker is closed before.

        False: it has them, nothing is told. The lock must be free.
        """
        with self._engine.lock:
            call = self._calls.get(position)
            if call is None:
                return False
            if self._engine.closed is None:
                call.told.append(tell)
                return True
        tell(_closed())
        return True

    def wait(self, position: int, timeout_ms: int | None = None) -> None:
        """Return once the call at a position has its copies; the lock must be free.

        Raises:
            Overloaded: code `confirm_timeout`.
            ClosedBroker: the broker was closed before.
        """
        if not self._calls:
            return
        done = threading.Event()
        errors: list[Exception] = []

        def tell(error: Exception | None) -> None:
            if error is not None:
                errors.append(error)
            done.set()

        timeout_s = None if timeout_ms is None else timeout_ms / 1_000
        if self.when_copied(position, tell) and not done.wait(timeout_s):
            raise Overloaded(
                "the publish has not all its copies yet",
                "it is stored in the log, and may still get them: see `ebbmq devices`",
                code="confirm_timeout",
            )
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Tell everybody who waits that nothing more will come; the lock must be free."""
        with self._engine.lock:
            told = [tell for call in self._calls.values() for tell in call.told]
        for tell in told:
            tell(_closed())


def _closed() -> ClosedBroker:
    return ClosedBroker(
        "the broker was closed before the publish had all its copies",
        "it is stored in the log and gets them when the data directory is opened again",
    )
