"""The process that opens a store with an archive, and tells what it takes in RAM.

`python -m bench.reopened DIRECTORY JUMPED_MS`. What was needed only to write packs is not
there, and what the allocator has free once devices were compared is given back first, so that what
is told is what is known of the messages.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Final

from bench.clock import JumpingClock
from bench.holding import object_device, open_holding
from bench.load import KIB, QUEUE, SMALL_CACHE_BYTES
from bench.run import rss_bytes
from ebbmq import QueueSpec

LOG: Final = {"tier": "fast"}
CONFIG: Final = {"devices": {"log": LOG, "objects": object_device(tier="archive")}}
#: A queue whose messages go to the archive when they are five days old.
SPEC: Final = QueueSpec(
    QUEUE,
    cache_bytes=SMALL_CACHE_BYTES,
    score_per_day=10.0,
    score_medium=50.0,
    score_high=50.0,
    tiers=("fast", "fast", "archive"),
)

#: So long nothing less is seen: devices were compared, and what that took is free again.
_REST_S: Final = 3.0


def _at_rest_bytes() -> int:
    """The least this process comes to."""
    least, until = sys.maxsize, time.monotonic() + _REST_S
    while time.monotonic() < until:
        ctypes.CDLL(None).malloc_trim(0)
        found = rss_bytes()
        if found < least - KIB**2:
            least, until = found, time.monotonic() + _REST_S
        time.sleep(0.1)
    return least


if __name__ == "__main__":
    clock = JumpingClock()
    clock.jump(int(sys.argv[2]))
    with open_holding(Path(sys.argv[1]), CONFIG, clock) as broker:
        # Once a message is there, everything is read that opening reads.
        (lease,) = broker.lease(QUEUE, count=1, wait_ms=60_000)
        broker.release(QUEUE, [lease.token])
        sys.stdout.write(f"{_at_rest_bytes()}\n")
