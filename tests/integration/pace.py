"""How a server's confirms compare with bare flushes of the same disk in the same moments."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Self

from ebbmq import Client, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.serving import Running

ROUNDS = 40
#: Few enough that a flush is a good part of what publishing them takes; many, that it is not.
FEW, MANY = 20, 100
#: Messages that one look leaves in the server.
STORED = ROUNDS * (2 * FEW + 2 * MANY + 5)
BODY = b"p" * 1_024
#: What the journal writes for a batch of a few: bodies and rows.
_FEW_BYTES = FEW * (len(BODY) + 64)


class Pace(NamedTuple):
    """How long calls took that were made in turns: lower quartiles, which noise hardly moves."""

    synced_s: float
    written_s: float
    bare_flush_s: float
    many_s: float
    many_without_backlog_s: float

    @property
    def over_disk(self) -> float:
        """A synced publish, as a multiple of one that need not wait for the disk, and a flush."""
        return self.synced_s / (self.written_s + self.bare_flush_s)

    @property
    def over_backlog(self) -> float:
        """A publish to a queue with a backlog, as a multiple of one to a queue without."""
        return self.many_s / self.many_without_backlog_s


class Bare:
    """A preallocated file that is written and flushed as the journal is: by a thread of its own."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path = path
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.posix_fallocate(self._fd, 0, nbytes)
        os.fsync(self._fd)
        self._at = 0
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        os.close(self._fd)
        self._path.unlink()

    def flush(self, data: bytes) -> None:
        self._thread.submit(self._flush, data).result()

    def _flush(self, data: bytes) -> None:
        self._at += os.pwritev(self._fd, [data], self._at)
        os.fdatasync(self._fd)


def look(server: Running, *, backlogged: str, quiet: str) -> Pace:
    """Publish to both queues and flush beside the journal, in turns, so that all meet one noise."""
    data = bytes(_FEW_BYTES)
    few, many = [Message(BODY)] * FEW, [Message(BODY)] * MANY
    bare_path = server.data.parent / "bare"
    with Client(server.url) as client, Bare(bare_path, ROUNDS * len(data)) as bare:
        calls: tuple[Callable[[], object], ...] = (
            lambda: client.publish(backlogged, few, confirm="synced"),
            lambda: client.publish(backlogged, few, confirm="written"),
            lambda: bare.flush(data),
            lambda: client.publish(backlogged, many, confirm="written"),
            lambda: client.publish(quiet, many, confirm="written"),
        )

        def timed(call: Callable[[], object]) -> float:
            # Flushes what was written before, so that no call meets the flush of another's bytes.
            client.publish(quiet, few[:1], confirm="synced")
            started = time.perf_counter()
            call()
            return time.perf_counter() - started

        took = [[timed(call) for call in calls] for _ in range(ROUNDS)]
    return Pace(*(statistics.quantiles(times)[0] for times in zip(*took, strict=True)))


def flushes(server: Running) -> int:
    """How often the journal was flushed so far."""
    with server.caller() as caller:
        lines = caller.call("GET", "/metrics").text.decode().splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return int(float(figures["ebbmq_io_sync_ops_total"]))
