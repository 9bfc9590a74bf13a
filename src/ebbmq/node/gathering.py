"""Publishes of several threads that wait for the same flush, taken in together.

A thread that publishes at level synced has to wait for the commit thread anyway. So it leaves its
batch here and sleeps; the commit thread takes in all that wait as one batch, writes, flushes and
wakes them. Taking the lock, appending and writing are paid once for all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.errors import EbbError, StorageFailed
from ebbmq.node import intake, publishing

if TYPE_CHECKING:
    from ebbmq.core.arrivals import Batch
    from ebbmq.model import Receipt
    from ebbmq.node.engine import Engine


class _Asked:
    """A publish that waits to be taken in, and what became of it."""

    __slots__ = ("batch", "error", "position", "queue", "receipts")

    def __init__(self, queue: str, batch: Batch) -> None:
        self.queue = queue
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
        engine.catalog.queue(queue)
        asked = _Asked(queue, batch)
        self._asked.append(asked)
        if engine.closed is not None:
            self.take_in()  # the last commit may be over: nobody else would refuse it
        elif self._needs_copies(queue):
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

    def _needs_copies(self, name: str) -> bool:
        queue = self._engine.catalog.queues.get(name)
        return queue is not None and queue.spec.min_copies > 1

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
            if sum(len(asked.batch.messages) for asked in several) > limits.BATCH_MESSAGES_MAX:
                for asked in several:
                    self._store(queue, [asked])
            else:
                self._store(queue, several)

    def _store(self, queue: str, several: list[_Asked]) -> None:
        first = several[0]
        batch = first.batch if len(several) == 1 else intake.merged([a.batch for a in several])
        try:
            receipts, position = publishing.store(self._engine, queue, batch, "synced")
        except EbbError as error:
            if len(several) == 1:
                first.error = error
                return
            # One of them may be at fault, or all together too many: let each have its own say.
            for asked in several:
                self._store(queue, [asked])
            return
        at = 0
        for asked in several:
            count = len(asked.batch.messages)
            asked.receipts = receipts[at : at + count]
            asked.position = position
            at += count
