"""The thread that turns appends into durable ones, many batches with one sync."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, Protocol

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

_FLUSH_SECONDS: Final = limits.UNSYNCED_FLUSH_MS / 1_000
#: About two syncs of a fast disk: the most that waiting for company may cost.
_GATHER_SECONDS: Final = 0.0005


class Committing(Protocol):
    """Who calls `commit`, and when."""

    #: False: the next append has to call `arm`.
    armed: bool

    def arm(self) -> None:
        """Something was appended: commit it within the flush timeout."""

    def hurry(self) -> None:
        """Somebody waits, or much was appended: commit as soon as possible."""

    def stop(self) -> None:
        """Return once no commit is under way or will be."""


class Signal(Protocol):
    """A lock, as the thread waits for it; it is released by those who wake the thread."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until it is released; False if that took too long."""

    def release(self) -> None:
        """Wake who waits, or who comes next."""

    def locked(self) -> bool:
        """Whether who comes next would wait."""


class CommitThread:
    """Calls `commit` at once when hurried, else `UNSYNCED_FLUSH_MS` after the first append.

    Publishers that were confirmed together tend to come back together, while the next sync already
    runs for the others: two halves would take turns for ever. So before it commits, the thread
    waits a moment for as many as there were last time; if they do not come, it does not wait again.

    It sleeps on a bare lock used as a signal, and a signal too many costs an empty commit and
    nothing else. It ends when `commit`, which returns how many it confirmed, returns None.
    """

    def __init__(
        self, commit: Callable[[], int | None], waiters: Sized, signal: Signal | None = None
    ) -> None:
        self.armed = False
        self._commit = commit
        self._waiters = waiters
        self._company = 1
        self._hurried = self._gathering = self._stopping = False
        self._signal: Signal = signal or threading.Lock()
        self._signal.acquire()
        self._thread = threading.Thread(target=self._run, name="ebbmq-commit", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Start the flush timeout."""
        self.armed = True
        self._wake()

    def hurry(self) -> None:
        """Cut the flush timeout short."""
        self._hurried = True
        if not self._gathering or len(self._waiters) >= self._company:
            self._wake()

    def stop(self) -> None:
        """Wait for the commit under way and end the thread."""
        self._stopping = True
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        if self._signal.locked():
            # Two threads may both have seen it locked: the second release has no effect.
            with contextlib.suppress(RuntimeError):
                self._signal.release()

    def _run(self) -> None:
        # Where somebody has waited for a commit more is likely to come: no need to be told of it.
        is_expecting = False
        while True:
            if not is_expecting:
                self._signal.acquire()
            if not self._hurried and not self._stopping:
                self._signal.acquire(timeout=_FLUSH_SECONDS)
            if self._stopping:
                return
            came = self._gather()
            # Cleared before the commit looks, so that whatever comes later sets them again.
            self.armed = is_expecting = self._hurried
            self._hurried = False
            confirmed = self._commit()
            # The signal to stop may have been taken for that of company.
            if confirmed is None or self._stopping:
                return
            self._company = confirmed + len(self._waiters) if came else 1

    def _gather(self) -> bool:
        """Wait for the company of last time; whether it came."""
        if len(self._waiters) >= self._company:
            return True
        self._gathering = True
        self._signal.acquire(blocking=False)
        came = len(self._waiters) >= self._company or self._signal.acquire(timeout=_GATHER_SECONDS)
        self._gathering = False
        return came


class CommitByHand:
    """No thread: whoever runs the simulation calls the log's `commit`."""

    armed = True

    def arm(self) -> None:
        """Nothing to start."""

    def hurry(self) -> None:
        """Nobody to wake."""

    def stop(self) -> None:
        """Nobody to wait for."""
