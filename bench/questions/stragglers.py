"""How much disk do a few old messages hold? One message left in each segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.load import FILL_BATCH, KIB, QUEUE, fifo_messages, fifo_spec, fill, open_with
from bench.row import Row, at_most
from bench.run import MIB, disk_bytes, wait_until
from ebbmq.limits import ROW_BYTES, SEGMENT_BYTES

if TYPE_CHECKING:
    from bench.run import Run


def measure(run: Run) -> list[Row]:
    """Ack everything but one message per segment, let the broker tidy, count what is left."""
    segments = run.scale(20, 4)
    per_segment = SEGMENT_BYTES // (KIB + ROW_BYTES)
    count = segments * per_segment
    directory = run.fresh("stragglers")
    left = 0
    with open_with(directory, fifo_spec()) as broker:
        fill(run, broker, fifo_messages(FILL_BATCH, KIB), count)
        full = disk_bytes(directory)
        done = 0
        for size in run.steps("acking all but a few", count, FILL_BATCH):
            leases = broker.lease(QUEUE, count=size)
            kept = -done % per_segment
            tokens = [lease.token for number, lease in enumerate(leases) if number != kept]
            broker.ack(QUEUE, tokens, confirm="memory")
            left += size - len(tokens)
            done += size
        live = left * (KIB + ROW_BYTES)
        limit = 2 * live + 2 * SEGMENT_BYTES
        wait_until(lambda: disk_bytes(directory) <= limit, timeout_s=30)
        used = disk_bytes(directory)
    return [
        at_most(
            "disk with one straggler per segment",
            used / MIB,
            "MiB",
            round(limit / MIB, 1),
            segments=segments,
            stragglers=left,
            before_acks_mib=round(full / MIB),
        )
    ]
