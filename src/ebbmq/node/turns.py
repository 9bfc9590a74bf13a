"""The engine's lock for work in the background, one thread at a time, and rests between.

Movers, devices and upkeep take the lock in short slices. If all of them stood in line for it,
whoever serves a client would wait for all of their slices; so they take turns first, and a client
waits for one slice at most. Who has much to compute rests as long as it has worked: it shares the
interpreter with those who serve.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine


#: A stretch of work that nobody notices.
_STRETCH_S: Final = 0.001
_REST_S_MAX: Final = 0.01


class Turns:
    """Held: it is this thread's turn, and it has the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = threading.Lock()
        self._rested = threading.local()

    def __enter__(self) -> None:
        self._turn.acquire()
        self._engine.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._engine.lock.release()
        self._turn.release()

    def rest(self) -> None:
        """Rest as long as this thread has computed since its last rest, if that was for a while.

        The lock must be free.
        """
        worked_s = time.thread_time() - getattr(self._rested, "at_s", 0.0)
        if worked_s < _STRETCH_S:
            return
        self._engine.pause(min(worked_s, _REST_S_MAX))
        self._rested.at_s = time.thread_time()
