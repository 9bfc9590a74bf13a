"""Rows of bodies that leave the log: many together are as one after the other."""

from __future__ import annotations

import pytest

from ebbmq import Message, QueueSpec
from ebbmq.core import arrivals, grants, leases
from ebbmq.core.partition import Partition
from ebbmq.limits import PAGE_ROWS
from ebbmq.node import intake


def filled() -> tuple[Partition, list[int]]:
    """More than a page, in three segments, bodies of three sizes."""
    partition, seqs = Partition(1, QueueSpec("q"), 0), []
    for segment, size in ((1, 10), (2, 200), (3, 3)):
        first = partition.index.next_seq
        batch = intake.pack([Message(bytes(size))] * (PAGE_ROWS // 2))
        partition.open_runs(arrivals.publish(partition, batch, 0, segment, 0))
        seqs += range(first, partition.index.next_seq)
    return partition, seqs


def ack(partition: Partition, count: int) -> None:
    granted = grants.lease(partition, count, 1_000, 7, 0)
    for seq, row in zip(granted.seqs, granted.rows, strict=True):
        assert leases.ack_one(partition, (1, seq, row[13] + 1, partition.epoch & 0xFFFF, 7), 1)


def told(partition: Partition) -> tuple[object, ...]:
    rows = {number: bytes(page.buffer) for number, page in partition.index.pages.items()}
    return rows, dict(partition.ledger), list(partition.let_go)


@pytest.mark.parametrize("verb", ["mark_held", "leave_log"])
@pytest.mark.parametrize("gone", [0, 3])
def test_many_rows_together_are_as_one_after_the_other(verb: str, gone: int) -> None:
    (together, seqs), (single, _) = filled(), filled()
    for partition in (together, single):
        if gone:
            ack(partition, gone)
    getattr(together, verb)(seqs)
    for seq in seqs:
        getattr(single, verb)([seq])
    assert told(together) == told(single)
    before = told(together)
    getattr(together, verb)(seqs)
    assert told(together) == before
