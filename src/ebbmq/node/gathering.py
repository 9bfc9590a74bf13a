"""Publishes of several threads that wait for the same flush, taken in together.

A thread that publishes at level synced has to wait for the commit thread anyway. So it leaves its
batch here and sleeps; the commit thread takes in all that wait as one batch, writes, flushes and
wakes them. Taking the lock, appending and writing are paid once for all of them, and so is packing
messages that come alone and plain: every step of a thread that has just been woken is a slow one.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core.envelope import is_plain
from ebbmq.errors import EbbError, StorageFailed
from ebbmq.model import Message
from ebbmq.node import intake, publishing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.arrivals import Batch
    from ebbmq.model import Receipt
    from ebbmq.node.engine import Engine

#: The checksum of a larger one is worth a thread of its own.
_BODY_BYTES_MAX: Final = 16 * 1024


class _Asked:
    """A publish that waits to be taken in, and what became of it."""

    __slots__ = ("batch", "error", "messages", "position", "queue", "receipts")

    def __init__(self, queue: str, messages: Sequence[Message], batch: Batch | None) -> None:
        self.queue = queue
        self.messages = messages
        #: None: they are plain, and yet to be packed.
        self.batch = batch
        self.receipts: list[Receipt] = []
        self.position = 0
        self.error: Exception | None = None


class Gathering:
    """Where threads leave their batches; the commit thread calls `take_in` before each flush."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: deque[_Asked] = deque()

    def publish(self, queue: str, batch: Batch) -> list[Receipt]:
        """Have a batch taken in, and return its receipts once it is on the device."""
        engine = self._engine
        engine.check_open()
        # What is wrong with a call is told to who makes it: the commit thread serves all others.
        needs_copies = self._needs_copies(queue)
        asked = _Asked(queue, batch.messages, batch)
        return self._wait(asked, needs_copies=needs_copies)

    def _needs_copies(self, queue: str) -> bool:
        with self._engine.lock:
            return self._engine.catalog.queue(queue).spec.min_copies > 1

    def publish_one(self, queue: str, messages: object) -> list[Receipt] | None:
        """`publish` for one durable message without headers; None: pack it, and ask `publish`."""
        if type(messages) is list and len(messages) == 1:
            messages = messages[0]
        if (
            type(messages) is not Message
            or not messages.durable
            or not is_plain(messages)
            or len(messages.body) > _BODY_BYTES_MAX
            or type(queue) is not str
        ):
            return None
        engine = self._engine
        if engine.closed is not None or (engine.devices is not None and self._needs_copies(queue)):
            return None
        return self._wait(_Asked(queue, (messages,), None), needs_copies=False)

    def _wait(self, asked: _Asked, *, needs_copies: bool) -> list[Receipt]:
        engine = self._engine
        self._asked.append(asked)
        if engine.closed is not None:
            self.take_in()  # the last commit may be over: nobody else would refuse it
        elif needs_copies:
            self._wait_for_copies(asked)
        else:
            engine.journal.wait_for_commit()
        if asked.error is not None:
            raise asked.error
        if not asked.position or asked.position > engine.journal.synced_position:
            failed = engine.journal.failed
            assert failed is not None, "a commit ended without what it was asked for"
            raise StorageFailed(failed.detail, failed.action)
        engine.keeping.confirming.wait(asked.position)
        return asked.receipts

    def _wait_for_copies(self, asked: _Asked) -> None:
        """Sleep through the commit and until there are copies: being woken twice costs more."""
        confirming = self._engine.keeping.confirming
        woken = threading.Lock()
        woken.acquire()

        def copied(error: Exception | None) -> None:
            asked.error = asked.error or error
            woken.release()

        def committed(error: StorageFailed | None) -> None:
            is_stored = error is None and asked.error is None and asked.position
            if not is_stored or not confirming.when_copied(asked.position, copied):
                woken.release()

        self._engine.journal.when_committed(committed)
        woken.acquire()

    def take_in(self) -> None:
        """Take in everything that waits; each gets its receipts or its own error."""
        by_queue: dict[str, list[_Asked]] = {}
        while self._asked:
            try:
                asked = self._asked.popleft()
            except IndexError:
                break
            by_queue.setdefault(asked.queue, []).append(asked)
        for queue, several in by_queue.items():
            if sum(len(asked.messages) for asked in several) > limits.BATCH_MESSAGES_MAX:
                for asked in several:
                    self._store(queue, [asked])
            else:
                self._store(queue, several)

    def _store(self, queue: str, several: list[_Asked]) -> None:
        try:
            receipts, position = publishing.store(self._engine, queue, _packed(several), "synced")
        except EbbError as error:
            if len(several) == 1:
                several[0].error = error
                return
            # One of them may be at fault, or all together too many: let each have its own say.
            for asked in several:
                self._store(queue, [asked])
            return
        at = 0
        for asked in several:
            count = len(asked.messages)
            asked.receipts = receipts[at : at + count]
            asked.position = position
            at += count


def _packed(several: list[_Asked]) -> Batch:
    """What several publish together, as one batch."""
    if not any(asked.batch for asked in several):
        return intake.pack_plain([message for asked in several for message in asked.messages])
    batches = [asked.batch or intake.pack_plain(asked.messages) for asked in several]
    return batches[0] if len(batches) == 1 else intake.merged(batches)
