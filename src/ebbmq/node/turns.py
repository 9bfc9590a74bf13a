"""The engine's lock for work in the background, one thread at a time.

Movers, devices and upkeep take the lock in short slices. If all of them stood in line for it,
whoever serves a client would wait for all of their slices; so they take turns first, and a client
waits for one slice at most.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine


class Turns:
    """Held: it is this thread's turn, and it has the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = threading.Lock()

    def __enter__(self) -> None:
        self._turn.acquire()
        self._engine.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._engine.lock.release()
        self._turn.release()
