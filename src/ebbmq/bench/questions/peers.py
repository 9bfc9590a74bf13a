"""What would the same cost with another embedded queue? Whatever of them is installed."""

from __future__ import annotations

import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from ebbmq import Broker, Message
from ebbmq.bench.load import BATCH, KIB, QUEUE, fifo_spec, open_with
from ebbmq.bench.row import Row, stated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ebbmq.bench.run import Run
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


#: Name, the module that must be installed, what a confirm survives, messages per call, constructor.
PEERS: Final[list[tuple[str, str, str, int, Callable[[Path], Peer]]]] = [
    (
        "EbbMQ written, batches of 100",
        "ebbmq",
        "process",
        BATCH,
        lambda d: Ebb(d, "written", BATCH),
    ),
    ("EbbMQ written, one by one", "ebbmq", "process", 1, lambda d: Ebb(d, "written", 1)),
    ("EbbMQ synced, batches of 100", "ebbmq", "machine", BATCH, lambda d: Ebb(d, "synced", BATCH)),
    ("EbbMQ synced, one by one", "ebbmq", "machine", 1, lambda d: Ebb(d, "synced", 1)),
    ("litequeue, synchronous=NORMAL", "litequeue", "process", 1, lambda d: LiteQueue(d, "NORMAL")),
    ("litequeue, synchronous=FULL", "litequeue", "machine", 1, lambda d: LiteQueue(d, "FULL")),
    ("persist-queue SQLiteAckQueue", "persistqueue", "machine", 1, PersistQueue),
    ("huey SqliteStorage", "huey", "machine", 1, Huey),
]


def measure(run: Run) -> list[Row]:
    """Per message: publish, then take and settle, with a backlog of the same size."""
    count = run.scale(2_000, 300)
    rows = []
    for number, (name, module, survives, batch, make) in enumerate(PEERS):
        if importlib.util.find_spec(module) is not None:
            size = count * (10 if batch > 1 else 1)
            publish_us, settle_us = _measure(run, make, size, repeats=run.scale(3, 1))
            settings = {"messages": size, "body": KIB, "confirm_survives_loss_of": survives}
            rows += [
                stated(f"{name}: publish, per message", publish_us, "us", **settings),
                stated(f"{name}: take + settle, per message", settle_us, "us", **settings),
            ]
        run.progress(name, number + 1, len(PEERS))
    return rows


def _measure(
    run: Run, make: Callable[[Path], Peer], count: int, repeats: int
) -> tuple[float, float]:
    publishes, settles = [], []
    for _ in range(repeats):
        peer = make(run.fresh("peer"))
        started = time.perf_counter_ns()
        peer.publish(count)
        published = time.perf_counter_ns()
        peer.settle(count)
        settled = time.perf_counter_ns()
        peer.close()
        publishes.append((published - started) / 1_000 / count)
        settles.append((settled - published) / 1_000 / count)
    return statistics.median(publishes), statistics.median(settles)
