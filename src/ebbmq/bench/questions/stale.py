"""How long does it take to let go of 1 M stale messages, and who waits meanwhile?"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from ebbmq import Broker, Message
from ebbmq.bench.load import DAY_MS, FILL_BATCH, HOUR_MS, QUEUE, fifo_spec, fill
from ebbmq.bench.row import Row, at_most
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from ebbmq.bench.run import Run

TTL_MS: Final = 60_000
ALL_S: Final = 3
LONGEST_MS: Final = 20


def measure(run: Run) -> list[Row]:
    """All of them become stale in one instant while another thread leases what is not."""
    count = run.scale(1_000_000, 100_000)
    clock = ManualClock()
    with Broker.open(run.fresh("stale"), clock=clock) as broker:
        broker.declare(fifo_spec())
        fading = [Message(b"........", importance=5, ttl_ms=TTL_MS, decay_rate=1.0)] * FILL_BATCH
        lasting = [Message(b"........", importance=5, ttl_ms=DAY_MS, decay_rate=0.1)] * FILL_BATCH
        fill(run, broker, fading, count)
        fill(run, broker, lasting, count // 5)
        expiry = threading.Thread(target=clock.advance, args=(TTL_MS - 1,))
        started = time.perf_counter()
        expiry.start()
        longest = 0.0
        leases = 0
        while broker.stats(QUEUE)["totals"]["stale"] < count:
            before = time.perf_counter()
            taken = broker.lease(QUEUE, count=1, lease_timeout_ms=HOUR_MS)
            longest = max(longest, time.perf_counter() - before)
            leases += len(taken)
            run.progress("going stale", broker.stats(QUEUE)["totals"]["stale"], count)
        took = time.perf_counter() - started
        expiry.join()
    settings = {"stale": count, "leases_meanwhile": leases}
    return [
        at_most("letting go of all stale messages", took, "s", ALL_S, **settings),
        at_most("longest lease call meanwhile", longest * 1_000, "ms", LONGEST_MS, **settings),
    ]
