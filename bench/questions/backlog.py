"""How much RAM does 1 GiB of backlog take, and are its bodies there when they are leased?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.load import (
    BATCH,
    FILL_BATCH,
    KIB,
    QUEUE,
    drain,
    fifo_spec,
    fill_with_fresh,
    open_with,
)
from bench.row import Row, at_least, at_most
from bench.run import MIB, rss_bytes

if TYPE_CHECKING:
    from bench.run import Run

GROWTH_MIB: Final = 200
HIT_SHARE: Final = 0.95


def measure(run: Run) -> list[Row]:
    """RSS growth of 1 M x 1 KiB at the default cache, then the share of hits while draining."""
    count = run.scale(1_000_000, 300_000)
    with open_with(run.fresh("backlog"), fifo_spec()) as broker:
        fill_with_fresh(run, broker, KIB, FILL_BATCH)
        drain(run, broker, FILL_BATCH)
        before = rss_bytes()
        fill_with_fresh(run, broker, KIB, count)
        growth = rss_bytes() - before
        cache = broker.stats(QUEUE)["cache"]
        drain(run, broker, count, BATCH)
        after = broker.stats(QUEUE)["cache"]
    hits = after["hits"] - cache["hits"]
    misses = after["misses"] - cache["misses"]
    settings = {"messages": count, "body": KIB, "cache": "default"}
    return [
        at_most("RSS growth of the backlog", growth / MIB, "MiB", GROWTH_MIB, **settings),
        at_least(
            "bodies in RAM when leased, FIFO drain",
            hits / max(1, hits + misses),
            "share",
            HIT_SHARE,
            **settings,
            hits=hits,
            misses=misses,
        ),
    ]
