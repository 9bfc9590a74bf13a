"""What does the journal add to writing the bare bytes? Batches of 1,000 x 1 KiB, each flushed."""

from __future__ import annotations

import os
import secrets
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.load import KIB, fifo_messages, fifo_spec, open_with, publish_us
from bench.row import Row, at_most, stated
from ebbmq.core import facts
from ebbmq.journal.disk import FileDisk
from ebbmq.journal.log import Log
from ebbmq.limits import ROW_BYTES

if TYPE_CHECKING:
    from bench.run import Run

BATCH: Final = 1_000
IOV_MAX: Final = 1_024


def measure(run: Run) -> list[Row]:
    """Rounds of the journal and of the bare loop in turn, so that both see the same disk."""
    rounds = run.scale(100, 10)
    messages = fifo_messages(BATCH, KIB)
    fact = facts.publish(
        1, 1, BATCH, bytes(BATCH * ROW_BYTES), [message.body for message in messages]
    )
    whole: list[float] = []
    log = Log.open(FileDisk(run.fresh("log")), secrets.token_bytes(16))
    bare_path = run.fresh("bare") / "log"
    descriptor = os.open(bare_path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # The journal writes into preallocated segments; the bare loop gets the same footing.
        os.posix_fallocate(descriptor, 0, rounds * fact.size())
        journaled, bare = _in_turn(run, log, descriptor, fact, rounds)
    finally:
        os.close(descriptor)
        log.close()
    with open_with(run.fresh("broker"), fifo_spec()) as broker:
        whole = publish_us(broker, [messages] * rounds, "synced")
    settings = {"batch": BATCH, "body": KIB, "flushed": "each batch", "rounds": rounds}
    ours, theirs = statistics.median(journaled), statistics.median(bare)
    return [
        stated("bare writev + fdatasync, per message", theirs, "us", **settings),
        stated("journal append + sync, per message", ours, "us", **settings),
        at_most("journal against bare writes", ours / theirs, "x", 1.5, **settings),
        stated("whole publish synced, per message", statistics.median(whole), "us", **settings),
    ]


def _in_turn(
    run: Run, log: Log, descriptor: int, fact: facts.Fact, rounds: int
) -> tuple[list[float], list[float]]:
    journaled, bare = [], []
    for number in range(rounds):
        started = time.perf_counter_ns()
        log.admit(fact.size(), 0)
        log.wait("synced", log.append(*fact))
        middle = time.perf_counter_ns()
        for at in range(0, len(fact.parts), IOV_MAX):
            os.writev(descriptor, fact.parts[at : at + IOV_MAX])
        os.fdatasync(descriptor)
        ended = time.perf_counter_ns()
        journaled.append((middle - started) / 1_000 / BATCH)
        bare.append((ended - middle) / 1_000 / BATCH)
        run.progress("batches", number + 1, rounds)
    return journaled, bare
