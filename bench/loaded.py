"""A process that leases one message, says when, and then publishes and acks until it is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.load import BATCH, HOUR_MS, KIB, QUEUE, fifo_messages
from ebbmq import Broker


def main(directory: Path) -> None:
    """Keep the backlog as deep as it was found."""
    with Broker.open(directory) as broker:
        leases = broker.lease(QUEUE, count=1, lease_timeout_ms=HOUR_MS)
        # The monotonic clock is the machine's, so the asking process can subtract from it.
        sys.stdout.write(f"{time.monotonic()}\n")
        sys.stdout.flush()
        assert leases
        messages = fifo_messages(BATCH, KIB)
        while True:
            broker.publish(QUEUE, messages, confirm="written")
            leases = broker.lease(QUEUE, count=BATCH)
            broker.ack(QUEUE, [lease.token for lease in leases], confirm="written")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
