"""How long does it take to let go of 1 M stale messages, and who waits meanwhile?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bench.clock import JumpingClock
from bench.load import DAY_MS, FILL_BATCH, HOUR_MS, QUEUE, fifo_spec, fill, open_with
from bench.row import Row, at_most
from ebbmq import Message

if TYPE_CHECKING:
    from bench.run import Run

#: Longer than filling takes.
TTL_MS: Final = 10 * HOUR_MS
ALL_S: Final = 3
LONGEST_MS: Final = 20


def measure(run: Run) -> list[Row]:
    """All of them become stale in one instant while this thread leases what is not."""
    count = run.scale(1_000_000, 100_000)
    clock = JumpingClock()
    with open_with(run.fresh("stale"), fifo_spec(), clock) as broker:
        fading = [Message(b"........", importance=5, ttl_ms=TTL_MS, decay_rate=1.0)] * FILL_BATCH
        lasting = [
            Message(b"........", importance=5, ttl_ms=100 * DAY_MS, decay_rate=0.1)
        ] * FILL_BATCH
        fill(run, broker, fading, count)
        fill(run, broker, lasting, count // 5)
        # At rate 1 importance 5 is below 1 after four fifths of the TTL.
        clock.jump(TTL_MS * 9 // 10)
        started = time.perf_counter()
        longest = 0.0
        leases = gone = 0
        while gone < count:
            before = time.perf_counter()
            taken = broker.lease(QUEUE, count=1, lease_timeout_ms=HOUR_MS)
            longest = max(longest, time.perf_counter() - before)
            leases += len(taken)
            gone = broker.stats(QUEUE)["totals"]["stale"]
            run.progress("going stale", gone, count)
        took = time.perf_counter() - started
    settings = {"stale": count, "leases_meanwhile": leases}
    return [
        at_most("letting go of all stale messages", took, "s", ALL_S, **settings),
        at_most("longest lease call meanwhile", longest * 1_000, "ms", LONGEST_MS, **settings),
    ]
