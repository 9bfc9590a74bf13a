"""What does it cost to lease and ack? FIFO and banded decay of 100 classes, 10 k ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.load import (
    BATCH,
    FILL_BATCH,
    KIB,
    banded_spec,
    classed_messages,
    fifo_messages,
    fifo_spec,
    fill,
    lease_times,
    open_with,
)
from bench.row import Row, at_most
from ebbmq import speedups

if TYPE_CHECKING:
    from bench.run import Run

BACKLOG: Final = 10_000
SINGLE_US: Final = 15
BATCHED_US: Final = 4


def measure(run: Run) -> list[Row]:
    """Median per message, one at a time and in batches of 100."""
    rows = []
    rounds = run.scale(2_000, 300)
    orders = (
        ("FIFO", fifo_spec(), fifo_messages(FILL_BATCH, KIB)),
        ("banded, 100 classes", banded_spec(), classed_messages(FILL_BATCH, KIB)),
    )
    for name, spec, messages in orders:
        with open_with(run.fresh(name), spec) as broker:
            fill(run, broker, messages, BACKLOG)
            single = lease_times(broker, messages, 1, rounds)
            batched = lease_times(broker, messages, BATCH, rounds // 40)
        settings = {
            "backlog": BACKLOG,
            "body": KIB,
            "ack": "written",
            "compiled": speedups.is_compiled,
        }
        rows += [
            at_most(
                f"lease + ack one, {name}",
                single.median,
                "us",
                SINGLE_US,
                **settings,
                **single.as_settings(),
            ),
            at_most(
                f"lease + ack batches of 100, {name}, per message",
                batched.median,
                "us",
                BATCHED_US,
                **settings,
                **batched.as_settings(),
            ),
        ]
    return rows
