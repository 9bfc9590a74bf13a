"""How many bytes for a lease, a retry, a producer's id, a further copy?

Of a further copy all is counted, what its device needs to find it too: a file device 16 bytes, an
archive 12 to 28.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from bench.clock import JumpingClock
from bench.holding import file_device, is_quiet, open_holding, until_copied
from bench.load import (
    DAY_MS,
    FILL_BATCH,
    QUEUE,
    SMALL_CACHE_BYTES,
    fifo_messages,
    fifo_spec,
    fill,
    open_with,
)
from bench.reopened import CONFIG, SPEC
from bench.row import Row, at_most
from bench.run import apart, forget_peak, peak_bytes, rss_bytes, wait_until
from ebbmq import Broker, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.run import Run

BODY_BYTES: Final = 8
LEASED_BYTES: Final = 64
DISPLACED_BYTES: Final = 32
DEDUP_BYTES: Final = 40
COPY_BYTES: Final = 24
PATIENCE_S: Final = 600.0


def measure(run: Run) -> list[Row]:
    """RSS growth per message leased, retried, published with an id, copied, or archived."""
    # Dedup ids are bounded at a million per queue, so a million shows them all.
    count = run.scale(1_000_000, 100_000)
    settings = {"messages": count}
    leased = apart(partial(_leased, run, count))
    displaced = apart(partial(_displaced, run, count))
    return [
        at_most("leased, per message", leased, "B", LEASED_BYTES, **settings),
        at_most("displaced by a retry, per message", displaced, "B", DISPLACED_BYTES, **settings),
        *apart(partial(_dedup, run, count)),
        apart(partial(_copied, run, count)),
        apart(partial(_copied, run, run.scale(10_000_000, 2 * count))),
        _archived(run, count),
    ]


def _growth(count: int, work: Callable[[], None]) -> float:
    before = rss_bytes()
    work()
    return (rss_bytes() - before) / count


def _filled(run: Run, name: str, count: int) -> Broker:
    broker = open_with(run.fresh(name), fifo_spec(SMALL_CACHE_BYTES))
    fill(run, broker, fifo_messages(FILL_BATCH, BODY_BYTES), count)
    return broker


def _leased(run: Run, count: int) -> float:
    # A tenth more than is leased first, so that what is allocated once is not counted.
    with _filled(run, "leased", count + count // 10) as broker:

        def lease(number: int) -> None:
            for size in run.steps("leasing", number, FILL_BATCH):
                assert len(broker.lease(QUEUE, count=size)) == size

        lease(count // 10)
        return _growth(count, lambda: lease(count))


def _displaced(run: Run, count: int) -> float:
    with _filled(run, "displaced", count + count // 10) as broker:

        def retry(number: int) -> None:
            for size in run.steps("retrying", number, FILL_BATCH):
                leases = broker.lease(QUEUE, count=size)
                broker.retry(QUEUE, [lease.token for lease in leases], delay_ms=0)

        retry(count // 10)
        return _growth(count, lambda: retry(count))


def _growths(count: int, work: Callable[[], None]) -> tuple[float, float]:
    """What stays, and what there is at the worst moment: a checkpoint may be written meanwhile."""
    before = rss_bytes()
    forget_peak()
    work()
    peak = peak_bytes()
    return (rss_bytes() - before) / count, (peak - before) / count


def _dedup(run: Run, count: int) -> list[Row]:
    """Growth with ids less the growth without, both per message."""
    with _filled(run, "dedup", count // 10) as broker:
        plain = fifo_messages(FILL_BATCH, BODY_BYTES)

        def without_ids() -> None:
            fill(run, broker, plain, count)

        def with_ids() -> None:
            done = 0
            for size in run.steps("publishing with ids", count, FILL_BATCH):
                batch = [Message(b"........", id=f"id-{done + n}") for n in range(size)]
                broker.publish(QUEUE, batch, confirm="memory")
                done += size

        rows_only = _growths(count, without_ids)
        both = _growths(count, with_ids)
    names = "producer's id, per message", "producer's id, per message, at the worst moment"
    return [
        at_most(name, growth - rows, "B", DEDUP_BYTES, messages=count)
        for name, growth, rows in zip(names, both, rows_only, strict=True)
    ]


def _copied(run: Run, count: int) -> Row:
    """Growth with a second copy on a file device less the growth with one in the log."""
    devices = {"second": file_device()}
    with open_holding(run.fresh("copied"), {"devices": devices}) as broker:
        broker.declare(fifo_spec(SMALL_CACHE_BYTES))

        def publish(number: int, replicas: int) -> None:
            batch = [Message(bytes(BODY_BYTES), replicas=replicas)] * FILL_BATCH
            fill(run, broker, batch, number)
            assert wait_until(lambda: is_quiet(broker), PATIENCE_S)

        for replicas in (1, 2):
            publish(count // 10, replicas)
        one = _growth(count, lambda: publish(count, 1))
        two = _growth(count, lambda: publish(count, 2))
    return at_most(
        f"second copy, log + file, per message of {count:,}",
        two - one,
        "B",
        COPY_BYTES,
        messages=count,
        with_one=round(one, 1),
        with_two=round(two, 1),
    )


def _archived(run: Run, count: int) -> Row:
    """What a process takes that opens a store whose messages are in an archive, or in the log."""
    path, clock = run.fresh("archived"), JumpingClock()
    warm, jumped_ms = count // 10, 6 * DAY_MS
    with open_holding(path, CONFIG, clock) as broker:
        broker.declare(SPEC)
        fill(run, broker, fifo_messages(FILL_BATCH, BODY_BYTES), warm)
        _fade(run, broker, clock, warm)
        fill(run, broker, fifo_messages(FILL_BATCH, BODY_BYTES), count)
    before = _reopened(path, jumped_ms)
    with open_holding(path, CONFIG, clock) as broker:
        _fade(run, broker, clock, warm + count)
    after = _reopened(path, 2 * jumped_ms)
    return at_most(
        "moved from the log to an archive, per message",
        (after - before) / count,
        "B",
        COPY_BYTES,
        messages=count,
        rss="of a process that opens the store",
    )


def _fade(run: Run, broker: Broker, clock: JumpingClock, total: int) -> None:
    """Let all messages go to the archive."""
    clock.jump(6 * DAY_MS)
    until_copied(run, broker, "objects", total, f"archiving {total:,}")
    assert wait_until(lambda: is_quiet(broker), PATIENCE_S)


def _reopened(path: Path, jumped_ms: int) -> int:
    command = [sys.executable, "-m", "bench.reopened", str(path), str(jumped_ms)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
