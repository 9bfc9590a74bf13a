"""Who waits for which level, and the commits that let them go on."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from ebbmq.errors import StorageFailed
from ebbmq.journal.commit import CommitByHand, CommitThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.journal.commit import Committing
    from ebbmq.journal.contract import Confirmed
    from ebbmq.journal.writer import Writer
    from ebbmq.model import Level


#: How many sleeping threads are woken at once: the others would only wait for the interpreter.
_WOKEN_AT_ONCE: Final = 2


class Sleeper:
    """A thread that waits for a commit. Woken, it first wakes the one behind it.

    Threads that are all woken together pile up at the interpreter's lock and sleep a second time;
    passing the wake-up on spares most of them that.
    The main thread, where an interrupt may be raised at any step, is never relied on.
    """

    __slots__ = ("_lock", "behind", "is_reliable")

    def __init__(self) -> None:
        self.behind: Sleeper | None = None
        self.is_reliable = threading.get_ident() != threading.main_thread().ident
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self) -> None:
        """Return once woken."""
        try:
            self._lock.acquire()
        finally:
            if self.behind is not None:
                self.behind.wake()

    def wake(self) -> None:
        """Let it go on."""
        self._lock.release()


class Confirmations:
    """Calls back, or lets go on, whoever waits for bytes of a writer; safe from any thread.

    Every waiter is called exactly once: with None, or with what ended the log.
    """

    def __init__(self, writer: Writer, tidy: Callable[[], None], *, threaded: bool) -> None:
        self.on_commit: Callable[[int, int], None] | None = None
        self.before_commit: Callable[[], None] | None = None
        self._writer = writer
        self._tidy = tidy
        self._waiters: deque[Confirmed | Sleeper] = deque()
        self.thread: Committing = (
            CommitThread(self._in_thread, self._waiters) if threaded else CommitByHand()
        )

    def write(self) -> None:
        """Hand everything appended before this call to the kernel."""
        try:
            self._writer.write()
        except StorageFailed:
            self.release()
            raise

    def commit(self) -> int:
        """Write and sync everything appended before this call, then call who waited for it."""
        writer = self._writer
        waiters = self._take()
        try:
            # After the waiters were taken: what they wait for was handed over before.
            if self.before_commit is not None:
                self.before_commit()
            writer.sync()
        except StorageFailed as error:
            _confirm(waiters, error)
            self.release()
            raise
        except BaseException:
            self._waiters.extend(waiters)
            raise
        try:
            if self.on_commit is not None:
                self.on_commit(writer.written_position, writer.synced_position)
        finally:
            _confirm(waiters, None)
        try:
            self._tidy()
        except StorageFailed:
            self.release()
            raise
        return len(waiters)

    def when(self, level: Level, position: int, callback: Confirmed) -> None:
        """Call back once everything before `position` holds at `level`, or never will."""
        if level == "synced" and position > self._writer.synced_position:
            self._enter(callback)
            return
        try:
            if level == "written" and position > self._writer.written_position:
                self.write()
        except StorageFailed as error:
            callback(error)
        else:
            callback(None)

    def wait_synced(self, position: int) -> None:
        """Return once everything before `position` is on the device."""
        self.wait_for_commit()
        if position > self._writer.synced_position:
            self._writer.check()

    def wait_for_commit(self) -> None:
        """Return once a commit that began after this call has ended, one way or the other."""
        if isinstance(self.thread, CommitByHand):
            self.commit()
            return
        sleeper = Sleeper()
        self._enter(sleeper)
        sleeper.sleep()

    def when_committed(self, callback: Confirmed) -> None:
        """Call back once a commit that began after this call has ended, one way or the other."""
        self._enter(callback)
        if isinstance(self.thread, CommitByHand):
            self.commit()

    def _enter(self, waiter: Confirmed | Sleeper) -> None:
        self._waiters.append(waiter)
        self.thread.hurry()
        # The thread may have ended before it could see this one.
        if self._writer.failed is not None:
            self.release()

    def _in_thread(self) -> int | None:
        try:
            return self.commit()
        except StorageFailed:
            return None
        except BaseException as error:
            # A callback that raises is a defect; nobody may wait for ever because of it.
            failed = StorageFailed(
                f"the commit thread died of {error!r}", "report this, then reopen the broker"
            )
            self._writer.stop(failed)
            self.release()
            raise

    def _take(self) -> list[Confirmed | Sleeper]:
        taken: list[Confirmed | Sleeper] = []
        while self._waiters:
            try:
                taken.append(self._waiters.popleft())
            except IndexError:
                break
        return taken

    def release(self) -> None:
        """Tell everybody who waits what ended the log."""
        failed = self._writer.failed
        assert failed is not None
        _confirm(self._take(), failed)


def _confirm(waiters: list[Confirmed | Sleeper], error: StorageFailed | None) -> None:
    row: list[Sleeper] = []
    left = iter(waiters)
    try:
        for waiter in left:
            if not isinstance(waiter, Sleeper):
                waiter(error)
            elif waiter.is_reliable:
                row.append(waiter)
            else:
                waiter.wake()
    finally:
        for sleeper, behind in zip(row, row[_WOKEN_AT_ONCE:], strict=False):
            sleeper.behind = behind
        for sleeper in row[:_WOKEN_AT_ONCE]:
            sleeper.wake()
        # Some are left only if a callback raised, which must not be at the cost of the others.
        others = list(left)
        if others:
            _confirm(others, error)
