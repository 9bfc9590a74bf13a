"""Messages to measure with, and the loops that several questions time."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq import Broker, Message, QueueSpec, limits

if TYPE_CHECKING:
    from pathlib import Path

    from bench.clock import JumpingClock
    from bench.run import Run
    from ebbmq.model import Level

KIB: Final = 1024
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
BATCH: Final = 100
FILL_BATCH: Final = 1_000
QUEUE: Final = "q"
#: Too small to count where bytes per message are measured.
SMALL_CACHE_BYTES: Final = 1024 * KIB


def fifo_spec(cache_bytes: int = limits.QUEUE_CACHE_BYTES) -> QueueSpec:
    """A durable FIFO whose leases outlast the measurement."""
    return QueueSpec(QUEUE, lease_timeout_ms=HOUR_MS, cache_bytes=cache_bytes)


def banded_spec(cache_bytes: int = limits.QUEUE_CACHE_BYTES) -> QueueSpec:
    """Bands of width 1 over decaying importance."""
    return QueueSpec(QUEUE, lease_timeout_ms=HOUR_MS, decay_rate=0.5, cache_bytes=cache_bytes)


def fifo_messages(count: int, body_bytes: int, first: int = 0) -> list[Message]:
    """Messages of one class, bodies all different."""
    return [Message(_body(number, body_bytes)) for number in range(first, first + count)]


def classed_messages(count: int, body_bytes: int) -> list[Message]:
    """Messages of 100 classes in turn: ten importances, ten TTLs from 10 days."""
    return [
        Message(
            _body(number, body_bytes),
            importance=1 + number % 10,
            ttl_ms=round(10 * DAY_MS * 1.2 ** (number // 10 % 10)),
            decay_rate=0.5,
        )
        for number in range(count)
    ]


def _body(number: int, size: int) -> bytes:
    return number.to_bytes(8, "big")[-size:].ljust(size, b".")


def open_with(directory: Path, spec: QueueSpec, clock: JumpingClock | None = None) -> Broker:
    """A broker on the directory with the queue declared."""
    broker = Broker.open(directory, clock=clock)
    broker.declare(spec)
    return broker


def fill(run: Run, broker: Broker, messages: list[Message], total: int) -> None:
    """Publish the messages over and over until there are `total`, not waiting for the disk.

    The bodies are the same objects each time: nothing to weigh a cache with.
    """
    label = f"filling {total:,}"
    for size in run.steps(label, total, len(messages)):
        broker.publish(QUEUE, messages[:size], confirm="memory")


def fill_with_fresh(run: Run, broker: Broker, body_bytes: int, total: int) -> None:
    """Publish `total` messages, each with a body of its own, not waiting for the disk."""
    done = 0
    for size in run.steps(f"filling {total:,}", total, FILL_BATCH):
        broker.publish(QUEUE, fifo_messages(size, body_bytes, done), confirm="memory")
        done += size


def drain(run: Run, broker: Broker, total: int, batch: int = FILL_BATCH) -> None:
    """Lease and ack everything that is there."""
    label = f"draining {total:,}"
    for size in run.steps(label, total, batch):
        leases = broker.lease(QUEUE, count=size)
        assert len(leases) == size
        broker.ack(QUEUE, [lease.token for lease in leases], confirm="memory")


def publish_us(broker: Broker, batches: list[list[Message]], confirm: Level) -> list[float]:
    """Microseconds per message of each batch."""
    times = []
    for batch in batches:
        started = time.perf_counter_ns()
        broker.publish(QUEUE, batch, confirm=confirm)
        times.append((time.perf_counter_ns() - started) / 1_000 / len(batch))
    return times


def lease_and_ack_us(broker: Broker, batch: int, rounds: int) -> list[float]:
    """Microseconds per message of each round of one lease and one ack call."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        leases = broker.lease(QUEUE, count=batch)
        broker.ack(QUEUE, [lease.token for lease in leases], confirm="written")
        times.append((time.perf_counter_ns() - started) / 1_000 / batch)
        assert len(leases) == batch
    return times


class Times(NamedTuple):
    """Microseconds per message over many calls."""

    median: float
    mean: float
    p99: float

    def as_settings(self) -> dict[str, float]:
        """What is told beside the median."""
        return {"mean_us": round(self.mean, 2), "p99_us": round(self.p99, 2)}


def summary(times: list[float]) -> Times:
    """Median, mean and 99th percentile."""
    p99 = statistics.quantiles(times, n=100)[98]
    return Times(statistics.median(times), statistics.fmean(times), p99)


def lease_times(
    broker: Broker, messages: list[Message], batch: int, rounds: int, repeats: int = 5
) -> Times:
    """Lease and ack again and again, the backlog made up in between.

    What is made up is flushed before the next round, which would be timed beside that flush.
    """
    times: list[float] = []
    for _ in range(repeats):
        times += lease_and_ack_us(broker, batch, rounds)
        taken = batch * rounds
        while taken > 0:
            broker.publish(QUEUE, messages[:taken], confirm="synced")
            taken -= len(messages)
    return summary(times)
