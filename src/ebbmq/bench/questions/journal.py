"""What does the journal add to writing the bare bytes? Batches of 1,000 x 1 KiB, each flushed."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Final

from ebbmq.bench.load import KIB, fifo_messages, fifo_spec, open_with, publish_us
from ebbmq.bench.row import Row, at_most, stated

if TYPE_CHECKING:
    from ebbmq.bench.run import Run

BATCH: Final = 1_000
IOV_MAX: Final = 1_024


def measure(run: Run) -> list[Row]:
    """Rounds of ours and of the bare loop in turn, so that both see the same disk."""
    rounds = run.scale(60, 6)
    messages = fifo_messages(BATCH, KIB)
    bodies = [message.body for message in messages]
    ours: list[float] = []
    bare: list[float] = []
    with open_with(run.fresh("journal"), fifo_spec()) as broker:
        bare_path = run.fresh("bare") / "log"
        descriptor = os.open(bare_path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            # The journal writes into preallocated segments; the bare loop gets the same footing.
            os.posix_fallocate(descriptor, 0, rounds * BATCH * KIB)
            for number in range(rounds):
                ours += publish_us(broker, [messages], "synced")
                bare.append(_bare_us(descriptor, bodies))
                run.progress("batches", number + 1, rounds)
        finally:
            os.close(descriptor)
    settings = {"confirm": "synced", "batch": BATCH, "body": KIB, "rounds": rounds}
    mine, theirs = statistics.median(ours), statistics.median(bare)
    return [
        stated("bare writev + fdatasync, per message", theirs, "us", **settings),
        stated("publish synced, batches of 1,000, per message", mine, "us", **settings),
        at_most("journal against bare writes", mine / theirs, "x", 1.5, **settings),
    ]


def _bare_us(descriptor: int, bodies: list[bytes]) -> float:
    started = time.perf_counter_ns()
    for at in range(0, len(bodies), IOV_MAX):
        os.writev(descriptor, bodies[at : at + IOV_MAX])
    os.fdatasync(descriptor)
    return (time.perf_counter_ns() - started) / 1_000 / len(bodies)
