"""Who may write to a lake in an object store: one at a time, by an object that is kept fresh.

Who has the turn writes its object anew every few seconds, each time in place of the one it wrote
before. An object that nobody touched for a whole turn is of somebody who is gone, and is taken over
in place of exactly that one; clocks are not compared. Who finds its object replaced, or could not
write it for that long, has lost the turn and makes nothing visible any more.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from ebbmq.errors import StorageFailed
from ebbmq_spark.lake import PipelineBusy, busy
from ebbmq_spark.places import Outrun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq_spark.places import Store

#: How long an object may stay untouched before its owner is taken to be gone.
TURN_S: Final = 30.0
#: Of that, how often it is looked at and written anew.
_STEPS: Final = 6


class Turn:
    """The right to write, kept by a thread until it is given back."""

    def __init__(self, store: Store, path: str, turn_s: float = TURN_S) -> None:
        self._store = store
        self._path = path
        self._turn_s = turn_s
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._tag: str | None = None
        self._fresh_s = 0.0
        self._lost = False
        self._written = 0
        self._stop = threading.Event()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the turn.

        Raises:
            PipelineBusy: somebody else has it.
            StorageFailed: the store does not answer.
        """
        self._take()
        thread = threading.Thread(target=self._keep, name="ebbmq-turn", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            # An object that is left is taken over later; an error here would hide another.
            with contextlib.suppress(StorageFailed):
                if not self._lost:
                    self._store.delete([self._path])

    def check(self) -> None:
        """See that nobody else can have the turn.

        Raises:
            PipelineBusy: it is lost.
        """
        if self._lost or time.monotonic() - self._fresh_s > self._turn_s:
            raise PipelineBusy(
                f"the turn on {self._store.where} was lost: this process stood still, or could "
                "not reach the store",
                "nothing counts as done, so run it again",
            )

    def _take(self) -> None:
        try:
            self._write("create")
        except Outrun:
            self._take_over()

    def _take_over(self) -> None:
        """Replace an object that nobody keeps fresh."""
        found = self._store.head(self._path)
        until_s = time.monotonic() + self._turn_s
        while found is not None and time.monotonic() < until_s:
            time.sleep(self._turn_s / _STEPS / 2)
            now = self._store.head(self._path)
            if now is not None and now.tag != found.tag:
                raise busy(self._named(), self._store.where)
            found = now
        try:
            self._write("create" if found is None else found.tag)
        except Outrun:
            raise busy(self._named(), self._store.where) from None

    def _named(self) -> str:
        """Who has the turn."""
        return (self._store.read_if_there(self._path) or b"").decode().partition("\n")[0]

    def _write(self, mode: str | None) -> None:
        # Each writing differs, so that its tag does: some stores make it of the content.
        self._written += 1
        now_s = time.monotonic()
        told = f"{self._owner}\n{self._written}\n{time.time_ns()}\n".encode()
        self._tag = self._store.write(self._path, told, mode)
        self._fresh_s = now_s

    def _keep(self) -> None:
        while not self._stop.wait(self._turn_s / _STEPS):
            try:
                self._write(self._tag)
            except Outrun:
                self._lost = True
                return
            except StorageFailed:
                # It is tried again; `check` knows for how long it went well.
                continue
