"""What would the same cost with another embedded queue? Whatever of them is installed."""

from __future__ import annotations

import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bench.load import KIB, QUEUE, fifo_spec, open_with
from bench.row import Row, stated
from ebbmq import Broker, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.run import Run
    from ebbmq.model import Level

BODY: Final = b"x" * KIB


class Peer(Protocol):
    """A queue with durable messages, as its users would drive it."""

    def publish(self, count: int) -> None:
        """Publish so many 1 KiB messages, each or all together as the peer allows."""

    def settle(self, count: int) -> None:
        """Take so many messages and say that the work is done."""

    def close(self) -> None:
        """Let go of the files."""


class Ebb:
    """EbbMQ at one confirm level, in batches of a size."""

    def __init__(self, directory: Path, confirm: Level, batch: int) -> None:
        self._broker: Broker = open_with(directory, fifo_spec())
        self._confirm = confirm
        self._batch = batch
        self._messages = [Message(BODY)] * batch

    def publish(self, count: int) -> None:
        """Publish batch by batch."""
        for _ in range(count // self._batch):
            self._broker.publish(QUEUE, self._messages, confirm=self._confirm)

    def settle(self, count: int) -> None:
        """Lease and ack batch by batch."""
        for _ in range(count // self._batch):
            leases = self._broker.lease(QUEUE, count=self._batch)
            tokens = [lease.token for lease in leases]
            self._broker.ack(QUEUE, tokens, confirm=self._confirm)

    def close(self) -> None:
        """Close the broker."""
        self._broker.close()


class LiteQueue:
    """litequeue: put, pop, done."""

    def __init__(self, directory: Path, synchronous: str) -> None:
        import litequeue

        self._queue: Any = litequeue.LiteQueue(directory / "queue.db")
        self._queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
        self._body = BODY.decode()

    def publish(self, count: int) -> None:
        """One put, one transaction."""
        for _ in range(count):
            self._queue.put(self._body)

    def settle(self, count: int) -> None:
        """One pop, one done."""
        for _ in range(count):
            self._queue.done(self._queue.pop().message_id)

    def close(self) -> None:
        """Close the database."""
        self._queue.close()


class PersistQueue:
    """persist-queue: SQLiteAckQueue's put, get, ack."""

    def __init__(self, directory: Path) -> None:
        import persistqueue

        self._queue: Any = persistqueue.SQLiteAckQueue(str(directory))

    def publish(self, count: int) -> None:
        """One put, one transaction."""
        for _ in range(count):
            self._queue.put(BODY)

    def settle(self, count: int) -> None:
        """One get, one ack."""
        for _ in range(count):
            self._queue.ack(self._queue.get())

    def close(self) -> None:
        """Close the database."""
        self._queue.close()


class Huey:
    """huey's SQLite storage: taking a task deletes it, so a crash loses what was taken."""

    def __init__(self, directory: Path) -> None:
        from huey.storage import SqliteStorage

        self._storage: Any = SqliteStorage("bench", str(directory / "huey.db"))

    def publish(self, count: int) -> None:
        """One insert, one transaction."""
        for _ in range(count):
            self._storage.enqueue(BODY)

    def settle(self, count: int) -> None:
        """One select and delete."""
        for _ in range(count):
            self._storage.dequeue()

    def close(self) -> None:
        """Close the database."""
        self._storage.close()


class Entry(NamedTuple):
    """One line of the comparison."""

    name: str
    module: str
    #: What may be lost without losing a confirmed message.
    survives: str
    batch: int
    make: Callable[[Path], Peer]

    def size(self, count: int) -> int:
        """How many messages to measure with: more where a call takes many."""
        return count * (10 if self.batch > 1 else 1)


PEERS: Final = (
    Entry(
        "EbbMQ written, batches of 100", "ebbmq", "process", 100, lambda d: Ebb(d, "written", 100)
    ),
    Entry("EbbMQ written, one by one", "ebbmq", "process", 1, lambda d: Ebb(d, "written", 1)),
    Entry("EbbMQ synced, batches of 100", "ebbmq", "machine", 100, lambda d: Ebb(d, "synced", 100)),
    Entry("EbbMQ synced, one by one", "ebbmq", "machine", 1, lambda d: Ebb(d, "synced", 1)),
    Entry("litequeue, NORMAL", "litequeue", "process", 1, lambda d: LiteQueue(d, "NORMAL")),
    Entry("litequeue, FULL", "litequeue", "machine", 1, lambda d: LiteQueue(d, "FULL")),
    Entry("persist-queue SQLiteAckQueue", "persistqueue", "machine", 1, PersistQueue),
    Entry("huey SqliteStorage", "huey", "machine", 1, Huey),
)


def measure(run: Run) -> list[Row]:
    """Per message: publish, then take and settle; all of them in turn, so that noise hits all."""
    count = run.scale(2_000, 300)
    repeats = run.scale(5, 1)
    peers = [peer for peer in PEERS if importlib.util.find_spec(peer.module) is not None]
    times: dict[str, list[tuple[float, float]]] = {peer.name: [] for peer in peers}
    for repeat in range(repeats):
        for number, peer in enumerate(peers):
            run.progress(peer.name, repeat * len(peers) + number, repeats * len(peers))
            times[peer.name].append(_measure(peer.make(run.fresh("peer")), peer.size(count)))
    return [row for peer in peers for row in _rows(peer, peer.size(count), times[peer.name])]


def _rows(peer: Entry, count: int, times: list[tuple[float, float]]) -> list[Row]:
    settings = {"messages": count, "body": KIB, "confirm_survives_loss_of": peer.survives}
    publishes, settles = zip(*times, strict=True)
    return [
        stated(
            f"{peer.name}: publish, per message", statistics.median(publishes), "us", **settings
        ),
        stated(
            f"{peer.name}: take + settle, per message", statistics.median(settles), "us", **settings
        ),
    ]


def _measure(peer: Peer, count: int) -> tuple[float, float]:
    started = time.perf_counter_ns()
    peer.publish(count)
    published = time.perf_counter_ns()
    peer.settle(count)
    settled = time.perf_counter_ns()
    peer.close()
    return (published - started) / 1_000 / count, (settled - published) / 1_000 / count
