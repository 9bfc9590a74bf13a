"""What changes with 10 M messages in a FIFO queue, and what is left after draining them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import deep
from bench.load import (
    FILL_BATCH,
    SMALL_CACHE_BYTES,
    drain,
    fifo_messages,
    fifo_spec,
    open_with,
)
from bench.row import Row, at_most
from bench.run import MIB, disk_bytes, rss_bytes, wait_until
from ebbmq.limits import SEGMENT_BYTES

if TYPE_CHECKING:
    from bench.run import Run

DRAINED_RSS_MIB = 64


def measure(run: Run) -> list[Row]:
    """Bytes per message, lease + ack, a tick; then drain and look at RSS and disk."""
    order = deep.Order(
        "FIFO", fifo_spec(SMALL_CACHE_BYTES), fifo_messages(FILL_BATCH, deep.BODY_BYTES)
    )
    shallow = deep.shallow_us(run, order)
    directory = run.fresh("deep")
    with open_with(directory, order.spec) as broker:
        deep.warm_up(broker, order)
        rss_before, disk_before = rss_bytes(), disk_bytes(directory)
        rows = deep.fill_and_measure(run, broker, order, shallow)
        drain(run, broker, deep.ready(broker))
        limit = disk_before + 2 * SEGMENT_BYTES
        wait_until(lambda: disk_bytes(directory) <= limit, timeout_s=30)
        rss_after, disk_after = rss_bytes(), disk_bytes(directory)
    settings = {"drained": deep.total(run)}
    return [
        *rows,
        at_most(
            "RSS growth after draining",
            (rss_after - rss_before) / MIB,
            "MiB",
            DRAINED_RSS_MIB,
            **settings,
        ),
        at_most(
            "disk growth after draining",
            (disk_after - disk_before) / MIB,
            "MiB",
            2 * SEGMENT_BYTES / MIB,
            **settings,
        ),
    ]
