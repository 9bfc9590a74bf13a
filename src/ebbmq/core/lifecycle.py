"""What time does to a partition: leases expire, scheduled messages come due, lives end.

No sweeps: each instant was known when the message arrived or last changed, and a tick costs what is
due. Rows that end without a second look (stale, retention, a TTL without dead queue) are handled
page by page with numpy; the others one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.core.classes import NEVER
from ebbmq.core.partition import Move
from ebbmq.core.row import (
    DYING,
    ELSEWHERE,
    HELD,
    HIGH,
    LEASED,
    LOW48,
    READY,
    SCHEDULED,
    SHARED,
)
from ebbmq.core.values import distinct_values
from ebbmq.model import REASON_TEXT, Reason
from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.index import Page
    from ebbmq.core.partition import Partition

    Seqs = npt.NDArray[np.uint64]

_LOW48: Final = np.uint64(LOW48)
_HIGH: Final = np.uint64(HIGH)
_SLOTS: Final = np.uint64(limits.PAGE_ROWS - 1)
#: Odd, so that multiplying by it loses nothing.
_MIX: Final = 0x1E3779B97F4A7C15
#: How long a message that the dead queue refused waits for the next try.
MOVE_AGAIN_MS: Final = 5_000


def tick(partition: Partition, now_ms: int, budget: int = limits.TICK_ROWS) -> None:
    """Do what is due, looking at no more than about `budget` rows.

    There is more to do while `next_deadline_ms` is not after `now_ms`.
    """
    _fire_due(partition, now_ms, min(budget, limits.RECORD_ROWS_MAX))
    if partition.removes_by_age:
        _end(partition, now_ms, budget)
    partition.order.cross(now_ms, budget)


def next_deadline_ms(partition: Partition) -> int | None:
    """The earliest instant at which `tick` may have work; early is possible, late is not."""
    instants = [partition.due_wheel.next_deadline_ms()]
    if partition.removes_by_age:
        instants.append(partition.end_wheel.next_deadline_ms())
    crossing = partition.order.next_crossing_ms()
    if crossing != NEVER:
        instants.append(crossing)
    known = [instant for instant in instants if instant is not None]
    return min(known) if known else None


def _fire_due(partition: Partition, now_ms: int, budget: int) -> None:
    seqs = partition.due_wheel.due(now_ms, budget, lambda asked: due_instants(partition, asked))
    changed: list[int] = []
    for seq in seqs.tolist():
        row = partition.index.read(seq)
        if row is None or row[0] not in (LEASED, SCHEDULED, DYING):
            continue
        if row[7] & LOW48 > now_ms:
            partition.due_wheel.add(row[7] & LOW48, seq)
        elif row[0] == LEASED:
            partition.totals["lease_expired"] += 1
            if partition.fail(seq, row, "lease_expired", None, now_ms):
                changed.append(seq)
        elif row[0] == SCHEDULED:
            partition.make_ready(seq, row, now_ms, keep_place=row[8] >> HIGH > 0)
        else:
            partition.moves.append(Move(seq, Reason(row[3] & rows.REASON)))
    partition.note_states(changed)


def due_instants(partition: Partition, seqs: Seqs) -> Seqs:
    """The `due_ms` of many rows; 0 where a row waits for nothing any more."""
    return partition.index.column(seqs, "due") & _LOW48


def end_instants(partition: Partition, seqs: Seqs) -> Seqs:
    """When each row ends by age; 0 where it is gone, so that it surfaces and is dropped."""
    enqueued = (partition.index.column(seqs, "enqueued") & _LOW48).astype(np.int64)
    dead = (partition.index.column(seqs, "dead") & _LOW48).astype(np.int64)
    rate = partition.index.column(seqs, "rate").astype(np.int64)
    importance = partition.index.column(seqs, "importance").astype(np.int64)
    return ends_of(partition, enqueued, dead, rate, importance).astype(np.uint64)


def ends_of(
    partition: Partition,
    enqueued: npt.NDArray[np.int64],
    dead: npt.NDArray[np.int64],
    rate: npt.NDArray[np.int64],
    importance: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """When rows end by age, NEVER if they do not; one exact computation per kind of message."""
    if not partition.spec.retention_ms and not rate.any() and not dead.any():
        # Nothing of the kind ends; rows that are gone (importance 0) surface at once all the same.
        return np.where(importance > 0, NEVER, 0)
    ttl = np.where(dead > 0, dead - enqueued, 0)
    kinds, which = distinct(importance, rate, ttl)
    ages = np.array(
        [partition.end_age(*kind) if kind[0] else 0 for kind in kinds.tolist()], dtype=np.int64
    )
    own = ages[which]
    return np.where(own == NEVER, NEVER, enqueued + own)


def distinct(
    importance: npt.NDArray[np.int64], rate: npt.NDArray[np.int64], span: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """The kinds of message among these rows, and which of them each row is.

    Rows are told apart by a 64-bit mix of the three, which is checked, so that one sort is enough.
    """
    if not len(span):
        return np.empty((0, 3), dtype=np.int64), np.empty(0, dtype=np.intp)
    if (span == span[0]).all() and (rate == rate[0]).all() and (importance == importance[0]).all():
        only = np.array([[importance[0], rate[0], span[0]]], dtype=np.int64)
        return only, np.zeros(len(span), dtype=np.intp)
    mixed = (rate << 4 | importance) * _MIX ^ span
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    kinds = np.stack([importance[first], rate[first], span[first]], axis=1)
    which = which.reshape(-1)
    same = kinds[which]
    if not (
        (same[:, 0] == importance).all()
        and (same[:, 1] == rate).all()
        and (same[:, 2] == span).all()
    ):
        kinds, which = np.unique(
            np.stack([importance, rate, span], axis=1), axis=0, return_inverse=True
        )
    return kinds, which.reshape(-1)


def postpone_move(
    partition: Partition, seq: int, now_ms: int, after_ms: int = MOVE_AGAIN_MS
) -> None:
    """A message could not go to the dead queue: it stays DYING and is tried again."""
    row = partition.index.read(seq)
    if row is None or row[0] != DYING:
        return
    due_ms = now_ms + after_ms
    partition.write_row(seq, (*row[:7], due_ms | row[7] >> HIGH << HIGH, *row[8:]))
    partition.due_wheel.add(due_ms, seq)


def _end(partition: Partition, now_ms: int, budget: int) -> None:
    seqs = partition.end_wheel.due(now_ms, budget, lambda asked: end_instants(partition, asked))
    for number, where in partition.index.by_page(seqs):
        page = partition.index.pages.get(number)
        if page is None:
            continue
        if page.thin is not None or len(seqs) == 1:
            _end_one_by_one(partition, seqs[where], now_ms)
        else:
            slots = (seqs[where] & _SLOTS).astype(np.int64)
            _end_rows(partition, page, slots, now_ms)


def _end_one_by_one(partition: Partition, seqs: Seqs, now_ms: int) -> None:
    for seq in seqs.tolist():
        row = partition.index.read(seq)
        if row is None or row[0] not in (READY, SCHEDULED):
            continue
        reason = partition.end_reason(row, now_ms)
        if reason is not None:
            partition.end_row(seq, row, reason, now_ms)


def _end_rows(partition: Partition, page: Page, slots: npt.NDArray[np.int64], now_ms: int) -> None:
    """End the rows of one page whose time has come, by reason."""
    view = page.rows_at(slots)
    waiting = (view["state"] == READY) | (view["state"] == SCHEDULED)
    enqueued = (view["enqueued"] & _LOW48).astype(np.int64)
    dead = (view["dead"] & _LOW48).astype(np.int64)
    ages = now_ms - enqueued
    span = np.where(dead > 0, dead - enqueued, partition.spec.decay_unit_ms)
    current = policy.decayed(
        view["importance"].astype(np.float64), view["rate"] / rows.RATE_UNIT, ages, span
    )
    threshold = np.minimum(partition.spec.stale_threshold, view["importance"] / 2)
    expired = waiting & (dead > 0) & (dead <= now_ms)
    stale = waiting & ~expired & (view["rate"] > 0) & (np.maximum(current, 0) < threshold)
    retention_ms = partition.spec.retention_ms or NEVER
    old = waiting & ~expired & ~stale & (ages >= retention_ms)
    for reason, mask in (
        (Reason.EXPIRED, expired),
        (Reason.STALE, stale),
        (Reason.RETENTION, old),
    ):
        chosen = np.flatnonzero(mask)
        if not len(chosen):
            continue
        if partition.goes_to_dead_queue(reason):
            for slot in slots[chosen].tolist():
                seq = page.number * limits.PAGE_ROWS + slot
                row = partition.index.read(seq)
                assert row is not None
                partition.end_row(seq, row, reason, now_ms)
        else:
            remove_rows(partition, page, slots[chosen], reason, now_ms, current[chosen])


def remove_rows(
    partition: Partition,
    page: Page,
    slots: npt.NDArray[np.int64],
    reason: Reason,
    now_ms: int,
    current: npt.NDArray[np.float64],
) -> None:
    """Take many rows of one page out at once, one removal record each."""
    gone = page.rows_at(slots)
    seqs = slots.astype(np.uint64) + np.uint64(page.number * limits.PAGE_ROWS)
    records = np.zeros(len(slots), dtype=fact.REMOVAL_DTYPE)
    records["pid"] = partition.pid
    records["seq"] = seqs
    records["at_ms"] = now_ms
    records["enqueued_at_ms"] = gone["enqueued"] & _LOW48
    records["attempts"] = gone["generation"]
    records["bytes"] = gone["length"]
    records["current"] = np.maximum(current, 0)
    records["failures"] = gone["enqueued"] >> _HIGH
    records["importance"] = gone["importance"]
    records["reason"] = int(reason)
    _count_out(partition, gone, seqs)
    partition.left.extend(zip(seqs.tolist(), gone["importance"].tolist(), strict=True))
    page.view["state"][slots] = rows.FREE
    page.live -= len(slots)
    page.dirty = True
    partition.index.tidy(page)
    partition.totals[REASON_TEXT[reason]] += len(slots)
    for start in range(0, len(slots), limits.RECORD_ROWS_MAX):
        part = records[start : start + limits.RECORD_ROWS_MAX]
        partition.note_removed(part.tobytes(), len(part), int(part["seq"][0]), now_ms)


def _count_out(partition: Partition, gone: npt.NDArray[np.void], seqs: Seqs) -> None:
    for state, count in enumerate(np.bincount(gone["state"], minlength=6).tolist()):
        partition.depth[state] -= count
    for importance, count in enumerate(np.bincount(gone["importance"]).tolist()):
        partition.by_importance[importance] -= count
    partition.body_bytes -= int(gone["length"].sum(dtype=np.int64))
    flags, segments = gone["flags"], gone["segment"]
    sizes = np.where(flags & ELSEWHERE, 0, gone["length"]).astype(np.int64) + rows.ROW.size
    sizes[(flags & SHARED) != 0] = 0
    for segment in distinct_values(segments).tolist():
        size = int(sizes[segments == segment].sum())
        if size:
            partition.ledger[segment] -= size
    if partition.accesses.rates:
        for seq in seqs.tolist():
            partition.accesses.forget(seq)
    for at in np.flatnonzero(gone["flags"] & (SHARED | HELD | rows.FAILED_BEFORE)).tolist():
        row = gone[at]
        if row["flags"] & HELD:
            partition.gone.append(int(seqs[at]))
        if row["flags"] & SHARED:
            partition.let_go.append((int(row["segment"]), int(row["offset"]), int(row["length"])))
        partition.histories.forget(int(seqs[at]))
