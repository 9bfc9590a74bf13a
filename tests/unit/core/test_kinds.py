"""A publish of few kinds of message is the same publish as one by one."""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbmq import Message, QueueSpec, limits
from ebbmq.core import arrivals, grants
from ebbmq.core.arrivals import Batch
from ebbmq.core.partition import Partition
from ebbmq.core.row import SHARED

KINDS = [
    Message(b"", importance=3),
    Message(b"", importance=9, ttl_ms=1_000, durable=False),
    Message(b"", decay_rate=0.5),
    Message(b"", importance=9, delay_ms=50),
    Message(b"", importance=9, ttl_ms=1_000, delay_ms=70),
]
NOW_MS = 1_700_000_000_000
SPEC = QueueSpec("q", decay_rate=0.1, decay_unit_ms=1_000)


def _published(batches: list[Batch], rows_before: int, flags: int) -> Partition:
    partition = Partition(1, SPEC, 1)
    partition.index.next_seq += rows_before
    for number, batch in enumerate(batches):
        partition.open_runs(
            arrivals.publish(partition, batch, NOW_MS + number, 7, 100, flags=flags)
        )
    return partition


@hypothesis.settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, 3), st.integers(0, 2**32 - 1)),
            min_size=1,
            max_size=40,
        ),
        min_size=1,
        max_size=3,
    ),
    rows_before=st.sampled_from([0, limits.PAGE_ROWS - 9]),
    flags=st.sampled_from([0, SHARED]),
)
def test_rows_facts_and_order_are_those_of_messages_one_by_one(
    batches: list[list[tuple[int, int, int]]], rows_before: int, flags: int
) -> None:
    one_by_one, by_kind = [], []
    for rows in batches:
        bodies = [b"b" * size for _, size, _ in rows]
        crcs = [crc for _, _, crc in rows]
        columns = (bodies, [size for _, size, _ in rows], crcs, sum(map(len, bodies)))
        one_by_one.append(Batch([KINDS[kind] for kind, _, _ in rows], *columns, has_ids=False))
        which = np.array([kind for kind, _, _ in rows], dtype=np.intp)
        by_kind.append(Batch(KINDS, *columns, has_ids=False, which=which))
    told, found = (_published(each, rows_before, flags) for each in (one_by_one, by_kind))
    assert found.facts == told.facts
    assert found.index.next_seq == told.index.next_seq
    assert {n: bytes(page.buffer) for n, page in found.index.pages.items()} == {
        n: bytes(page.buffer) for n, page in told.index.pages.items()
    }
    for name in ("depth", "by_importance", "body_bytes", "ledger", "totals", "next_place"):
        assert getattr(found, name) == getattr(told, name), name
    for wheel in ("due_wheel", "end_wheel"):
        assert getattr(found, wheel).next_deadline_ms() == getattr(told, wheel).next_deadline_ms()
        assert len(getattr(found, wheel)) == len(getattr(told, wheel))
    leased = [grants.lease(each, 200, 1_000, 1, NOW_MS + 9).seqs for each in (told, found)]
    assert leased[0] == leased[1]


def test_those_who_listen_are_told_the_same() -> None:
    which = np.array([0, 3, 3, 1], dtype=np.intp)
    zeros, bodies = [0] * 4, [b""] * 4
    heard: list[list[object]] = [[], []]
    for told, batch in zip(
        heard,
        (
            Batch([KINDS[kind] for kind in which], bodies, zeros, zeros, 0, has_ids=False),
            Batch(KINDS, bodies, zeros, zeros, 0, has_ids=False, which=which),
        ),
        strict=True,
    ):
        partition = Partition(1, SPEC, 1)
        partition.tell = told.append
        arrivals.publish(partition, batch, NOW_MS, 1, 0)
    assert heard[0] == heard[1]
    assert len(heard[0]) == 2
