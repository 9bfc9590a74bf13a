"""The engine's lock for work in the background, one thread at a time, and rests between.

Movers, devices and upkeep take the lock in short slices. If all of them stood in line for it,
whoever serves a client would wait for all of their slices; so they take turns first, and a client
waits for one slice at most.

Who has much to compute shares the interpreter with those who serve, whose work takes longer by as
many as compute beside it. So only one thread in the background does at a time (`alone`), from one
step to the next, whatever threads a step goes through. Between steps of about a millisecond it
gives way until nobody is served, and who is at it by itself rests as long as it has worked. Nobody
relies on any of this: who does not get its turn for long goes on without.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.node.engine import Engine


#: A stretch of work that nobody notices.
_STRETCH_S: Final = 0.001
_REST_S_MAX: Final = 0.01
_ALONE_TIMEOUT_S: Final = 0.1
#: Who does not get its turn has something else to look after.
_BEGIN_TIMEOUT_S: Final = 0.01
#: Where nothing was appended for so long nobody is served: a call appends that often.
_QUIET_S: Final = 0.0005
#: Where somebody always is, work in the background goes on after so long.
_GIVE_WAY_S: Final = 0.004


class _Line:
    """A lock that goes to whoever stood in line first; any thread may let go of it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout_s: float) -> bool:
        with self._guard:
            if not self._is_held:
                self._is_held = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):
            return True
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
            return True  # it came at the last moment

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False


class Turns:
    """Held: it is this thread's turn, and it has the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = threading.Lock()
        self._alone = _Line()
        #: Of each thread: when it last rested, and whether it is alone.
        self._own = threading.local()

    def __enter__(self) -> None:
        self._turn.acquire()
        self._engine.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._engine.lock.release()
        self._turn.release()

    def begin_alone(self) -> bool:
        """Be the only one to compute, until `end_alone` by whatever thread; False: another is."""
        return self._alone.acquire(_BEGIN_TIMEOUT_S)

    def end_alone(self) -> None:
        """Let another one compute."""
        self._alone.release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one to compute, except while this thread rests."""
        self._own.alone = self._alone.acquire(_ALONE_TIMEOUT_S)
        try:
            yield
        finally:
            self._let_others()

    def give_way(self) -> None:
        """Wait while somebody is served, but not for long; the lock must be free."""
        engine = self._engine
        until_s = time.monotonic() + _GIVE_WAY_S
        before, after = -1, engine.journal.position
        while before != after and time.monotonic() < until_s:
            engine.pause(_QUIET_S)
            before, after = after, engine.journal.position

    def rest(self) -> None:
        """Rest as long as this thread has computed since its last rest, if that was for a while.

        The lock must be free.
        """
        worked_s = time.thread_time() - getattr(self._own, "rested_at_s", 0.0)
        if worked_s < _STRETCH_S:
            return
        was_alone = self._let_others()
        self._engine.pause(min(worked_s, _REST_S_MAX))
        if was_alone:
            self._own.alone = self._alone.acquire(_ALONE_TIMEOUT_S)
        self.give_way()
        self._own.rested_at_s = time.thread_time()

    def _let_others(self) -> bool:
        was_alone: bool = getattr(self._own, "alone", False)
        if was_alone:
            self._own.alone = False
            self._alone.release()
        return was_alone
