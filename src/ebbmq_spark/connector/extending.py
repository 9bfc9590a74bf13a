"""Leases of batches that are being worked on are extended until they are settled."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

from ebbmq.errors import EbbError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.client.client import Client

#: Tokens of one request: the broker does nothing else meanwhile.
PART: Final = 5_000
_logger = logging.getLogger("ebbmq.spark")


class Extending:
    """A thread that extends what it is told of; it ends with its process."""

    def __init__(self, client: Client, queue: str, lease_timeout_ms: int) -> None:
        self._client = client
        self._queue = queue
        self._timeout_ms = lease_timeout_ms
        self._held: dict[int, Sequence[str]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, number: int, tokens: Sequence[str]) -> None:
        """Extend the leases of a batch from now on."""
        with self._lock:
            self._held[number] = tokens
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def let_go(self, number: int) -> None:
        """Extend the leases of a batch, and of those before it, no more."""
        with self._lock:
            self._held = {each: held for each, held in self._held.items() if each > number}

    def stop(self) -> None:
        """End the thread; leases last as long as they were extended to."""
        self._stop.set()

    def _run(self) -> None:
        # Twice within a timeout may fail before a lease is lost.
        while not self._stop.wait(self._timeout_ms / 3_000):
            self.extend_now()

    def extend_now(self) -> None:
        """Extend everything that is held."""
        with self._lock:
            held = list(self._held.items())
        for number, tokens in held:
            self._extend(number, tokens)

    def _extend(self, number: int, tokens: Sequence[str]) -> None:
        for at in range(0, len(tokens), PART):
            with self._lock:
                if number not in self._held:
                    return
            # What has ended comes back by itself; what could not be asked for is asked for again.
            with contextlib.suppress(LeaseLost):
                try:
                    self._client.extend(self._queue, tokens[at : at + PART], self._timeout_ms)
                except LeaseLost:
                    raise
                except EbbError as error:
                    _logger.warning("leases of %s were not extended: %s", self._queue, error)
                    return
