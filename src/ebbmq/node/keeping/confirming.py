"""Who waits for copies: batches that may not be leased yet, and calls that are not confirmed.

A record whose messages lack copies is one `Waiting`; a publish call is confirmed when all its
records are. A record that has waited for the queue's `copy_timeout_ms` is overdue: other devices
are asked, and where there is none its calls are told so (`hurrying`).

Everything is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from ebbmq.core.copies import parts_of
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

    __slots__ = ("calls", "due_ms", "error", "left", "names", "position", "told")

    def __init__(self, position: int, left: int, names: range = _NO_NAMES) -> None:
        self.position = position
        self.left = left
        #: From when on a record has waited too long.
        self.due_ms = 0
        #: Why a call is not confirmed, though it may get its copies yet.
        self.error: Exception | None = None
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
        #: Messages without a record that a repeated call waits for, by their queue's patience.
        self._repeated: dict[Waiting, Shard] = {}

    def __bool__(self) -> bool:
        return bool(self._lacking or self._whole)

    def hold(
        self, shard: Shard, position: int, names: Sequence[Name], *, called: bool = True
    ) -> None:
        """A record that ends at a position waits for copies of these, and so does a call for it."""
        waiting = Waiting(position, len(names))
        waiting.due_ms = self._due_ms(shard)
        if isinstance(names, range):
            waiting.names = names
            self._whole[names[0]] = waiting
        else:
            self._lacking.update(dict.fromkeys(names, waiting))
        self._records.setdefault(shard, deque()).append(waiting)
        if called:
            self._stored.append(waiting)

    def _due_ms(self, shard: Shard) -> int:
        return self._engine.clock.elapsed_ms() + shard.queue.spec.copy_timeout_ms

    def note_call(self, position: int) -> None:
        """A publish call ends, to be confirmed at a position once its records have copies."""
        # What a bounded queue let go of at once waits for nothing.
        stored, self._stored = [record for record in self._stored if record.left], []
        if stored:
            # A call that repeats another may have appended nothing, and end where that one did.
            call = self._calls.get(position)
            if call is None or call.error is not None:
                call = self._calls[position] = Waiting(position, 0)
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
                shard = self._repeated[record] = self._engine.catalog.shards[parts_of(name)[0]]
                record.due_ms = self._due_ms(shard)
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
                if self._calls.get(call.position) is call:
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
            if self._engine.closed is None and call.error is None:
                call.told.append(tell)
                return True
        tell(call.error or _closed())
        return True

    def wait(self, position: int, timeout_ms: int | None = None) -> None:
        """Return once the call at a position has its copies; the lock must be free.

        Raises:
            Overloaded: code `confirm_timeout`; or `copy_timeout`: no device took them.
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

    def overdue(self) -> list[tuple[Shard, Waiting, list[Name]]]:
        """Records that have waited too long, with the messages of them that lack copies.

        Each is overdue again after as long as its queue allows.
        """
        now_ms = self._engine.clock.elapsed_ms()
        self._repeated = {each: shard for each, shard in self._repeated.items() if each.left}
        found = [(each, shard) for each, shard in self._repeated.items() if each.due_ms <= now_ms]
        for shard, records in self._records.items():
            found += [(each, shard) for each in records if each.left and each.due_ms <= now_ms]
        for record, shard in found:
            record.due_ms = self._due_ms(shard)
            if record.names:
                self._spell_out(record.names)
        late = {record for record, _ in found}
        names: dict[Waiting, list[Name]] = {}
        for name, record in self._lacking.items() if late else ():
            if record in late:
                names.setdefault(record, []).append(name)
        return [(shard, record, names.get(record, [])) for record, shard in found]

    def refuse(self, record: Waiting, error: Exception) -> None:
        """Tell the calls that wait for a record that it has no copies yet, and why."""
        for call in record.calls:
            call.error = error
            told, call.told = call.told, []
            for tell in told:
                tell(error)

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
