"""Putting a partition back from facts: in journal order, then one rebuild of what is derived.

`apply` changes rows only. A fact older than the checkpoint of the page it concerns, or than the
relocation of the row it concerns, is skipped. `rebuild` then derives order, wheels, counts and the
ledger from the rows. Numbers that were confirmed gone are never brought back: a PUBLISH fact only
fills rows of numbers that no page knows yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.core.classes import NEVER, class_key
from ebbmq.core.index import PAGE_BITS, PAGE_BYTES, SLOT_MASK
from ebbmq.core.lifecycle import distinct, ends_of
from ebbmq.core.partition import Move
from ebbmq.core.row import (
    DISPLACED,
    DURABLE,
    DYING,
    FREE,
    HIGH,
    LEASED,
    LOW48,
    READY,
    SCHEDULED,
    SHARED,
)
from ebbmq.core.wheel import Wheel
from ebbmq.model import Reason

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.index import Page
    from ebbmq.core.partition import Partition

_LOW48: Final = np.uint64(LOW48)
_HIGH: Final = np.uint64(HIGH)


class Restorer:
    """Applies facts to one partition while it is being put back."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._index = partition.index
        #: Rows that were relocated, with the position up to which facts are in them.
        self._as_of: dict[int, int] = {}

    def page(self, number: int, image: bytes | memoryview, position: int) -> None:
        """Put back a checkpointed page."""
        self._index.load_page(number, image, position)
        self._index.next_seq = max(self._index.next_seq, (number << PAGE_BITS) + 1)

    def relocated(
        self, seqs: list[int], row_block: memoryview, as_of: int, checkpoint: int
    ) -> None:
        """Put back rows from an old-generation segment, unless newer knowledge has them.

        A page that a checkpoint taken after `as_of` does not have held no live row then.
        """
        for number, seq in enumerate(seqs):
            page = self._index.pages.get(seq >> PAGE_BITS)
            if as_of <= (checkpoint if page is None or not page.position else page.position):
                continue
            if self._as_of.get(seq, -1) < as_of:
                self._index.write(seq, bytes(row_block[number * 64 : number * 64 + 64]))
                self._as_of[seq] = as_of

    def published(self, first: int, row_block: memoryview, position: int) -> None:
        """Put back published rows, page by page."""
        count = len(row_block) // 64
        done = 0
        while done < count:
            seq = first + done
            page = self._index.page_for(seq)
            at = (seq & SLOT_MASK) << 6
            take = min(count - done, (PAGE_BYTES - at) >> 6)
            if page.position <= position:
                self._fill(page, at, row_block[done * 64 : (done + take) * 64], seq)
            done += take
        self._index.next_seq = max(self._index.next_seq, first + count)

    def _fill(self, page: Page, at: int, block: memoryview, first: int) -> None:
        if self._as_of:
            for offset in range(0, len(block), 64):
                seq = first + (offset >> 6)
                if seq not in self._as_of:
                    self._index.write(seq, bytes(block[offset : offset + 64]))
            return
        before = np.frombuffer(page.buffer, dtype=rows.DTYPE)[at >> 6 : (at + len(block)) >> 6]
        page.live -= int(np.count_nonzero(before["state"]))
        page.buffer[at : at + len(block)] = bytes(block)
        page.live += len(block) >> 6
        page.dirty = True

    def _known(self, seq: int, position: int) -> tuple[Page, int] | None:
        """Where a row is that a fact at `position` may still change."""
        found = self._index.locate(seq)
        if found is None or found[0].position > position:
            return None
        if self._as_of and self._as_of.get(seq, -1) > position:
            return None
        return found

    def acked(self, runs: list[tuple[int, int]], position: int) -> None:
        """Rows that are gone for good."""
        for first, count in runs:
            done = 0
            while done < count:
                seq = first + done
                page = self._index.pages.get(seq >> PAGE_BITS)
                take = min(count - done, limits.PAGE_ROWS - (seq & SLOT_MASK))
                if page is not None and page.position <= position:
                    self._free_run(page, seq, take, position)
                done += take

    def _free_run(self, page: Page, first: int, count: int, position: int) -> None:
        if self._as_of or count == 1:
            for seq in range(first, first + count):
                found = self._known(seq, position)
                if found is not None:
                    found[0].buffer[found[1]] = FREE
                    found[0].live -= 1
            page.dirty = True
            return
        slot = first & SLOT_MASK
        states = page.view["state"][slot : slot + count]
        page.live -= int(np.count_nonzero(states))
        states[:] = FREE
        page.dirty = True

    def granted(self, grant: fact.Grant, position: int) -> None:
        """Rows that were leased."""
        partition = self._partition
        epoch_bits = (grant.epoch & 0xFFFF) << HIGH
        named: list[tuple[int, int]] = []
        for first, count, generation in grant.runs:
            for seq in range(first, first + count):
                found = self._known(seq, position)
                if found is None:
                    continue
                page, at = found
                row = rows.ROW.unpack_from(page.buffer, at)
                due = grant.deadline_ms | row[7] >> HIGH << HIGH
                place = row[8] & LOW48 | epoch_bits
                rows.ROW.pack_into(
                    page.buffer, at, LEASED, *row[1:7], due, place, *row[9:13],
                    generation, grant.nonce,
                )  # fmt: skip
                page.dirty = True
                named.append((seq, generation))
        if grant.name and named:
            partition.names[grant.name] = named

    def changed(self, seq: int, row: bytes, history: bytes, position: int) -> None:
        """A row that is as given."""
        if self._known(seq, position) is not None:
            self._index.write(seq, row)
            self._partition.restore_history(seq, history)

    def removed(self, records: npt.NDArray[np.void], position: int) -> None:
        """Rows that left other than by ack."""
        self.acked(fact.runs_of(records["seq"].tolist()), position)


def rebuild(partition: Partition, now_ms: int, *, reopened: bool) -> None:
    """Derive order, wheels, counts and ledger from the rows.

    With `reopened`, rows that were not durable are dropped: their process is gone.
    """
    partition.depth = [0] * 6
    partition.by_importance = [0] * (limits.IMPORTANCE_MAX + 1)
    partition.body_bytes = 0
    partition.ledger.clear()
    partition.held.clear()
    partition.due_wheel = Wheel(now_ms)
    partition.end_wheel = Wheel(now_ms)
    for number in list(partition.index.pages):
        partition.index.tidy(partition.index.pages[number])
    ready: list[npt.NDArray[np.void]] = []
    ready_seqs: list[npt.NDArray[np.uint64]] = []
    displaced: list[tuple[int, int]] = []
    for page, slots in partition.index.live_seqs():
        view, seqs = _rows_of(page, slots)
        if reopened:
            view, seqs = _drop_not_durable(partition, page, view, seqs)
        _count_in(partition, view)
        _time_rows(partition, view, seqs)
        plain = (view["state"] == READY) & ((view["flags"] & DISPLACED) == 0)
        ready.append(view[plain])
        ready_seqs.append(seqs[plain])
        for at in np.flatnonzero((view["state"] == READY) & ~plain).tolist():
            displaced.append((int(seqs[at]), int(view["place"][at] & _LOW48)))
        if len(view):
            top = int((view["place"] & _LOW48).max())
            partition.next_place = max(partition.next_place, top + 1)
    if ready:
        rows_ready, seqs_ready = np.concatenate(ready), np.concatenate(ready_seqs)
        _classify(partition, seqs_ready, rows_ready)
        partition.order.load(
            (rows_ready["dead"] >> _HIGH).astype(np.int64),
            seqs_ready,
            rows_ready["enqueued"] & _LOW48,
            now_ms,
        )
    _classify_others(partition, [seq for seq, _ in displaced])
    for seq, place in displaced:
        partition.order.enter(seq, place, now_ms)


def _rows_of(
    page: Page, slots: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint64]]:
    seqs = slots.astype(np.uint64) + np.uint64(page.number * limits.PAGE_ROWS)
    if page.thin is None:
        return page.view[slots], seqs
    at = np.array([page.thin[slot << 6] >> 6 for slot in slots.tolist()], dtype=np.int64)
    return page.view[at], seqs


def _drop_not_durable(
    partition: Partition,
    page: Page,
    view: npt.NDArray[np.void],
    seqs: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint64]]:
    durable = (view["flags"] & DURABLE) != 0
    if durable.all():
        return view, seqs
    for seq in seqs[~durable].tolist():
        found = partition.index.locate(seq)
        assert found is not None
        found[0].buffer[found[1]] = FREE
        found[0].live -= 1
    page.dirty = True
    return view[durable], seqs[durable]


def _count_in(partition: Partition, view: npt.NDArray[np.void]) -> None:
    for state, count in enumerate(np.bincount(view["state"], minlength=6).tolist()):
        partition.depth[state] += count
    for importance, count in enumerate(np.bincount(view["importance"]).tolist()):
        partition.by_importance[importance] += count
    partition.body_bytes += int(view["length"].sum(dtype=np.int64))
    own = view[(view["flags"] & SHARED) == 0]
    segments, which = np.unique(own["segment"], return_inverse=True)
    sizes = np.bincount(which.reshape(-1), weights=own["length"].astype(np.float64) + 64)
    for segment, size in zip(segments.tolist(), sizes.tolist(), strict=False):
        partition.ledger[segment] = partition.ledger.get(segment, 0) + int(size)


def _time_rows(
    partition: Partition, view: npt.NDArray[np.void], seqs: npt.NDArray[np.uint64]
) -> None:
    due = (view["due"] & _LOW48).astype(np.int64)
    waits = np.isin(view["state"], (LEASED, SCHEDULED))
    if waits.any():
        partition.due_wheel.add_each(due[waits], seqs[waits])
    for at in np.flatnonzero(view["state"] == DYING).tolist():
        partition.moves.append(Move(int(seqs[at]), Reason(int(view["reason"][at]))))
    ends = ends_of(
        partition,
        (view["enqueued"] & _LOW48).astype(np.int64),
        (view["dead"] & _LOW48).astype(np.int64),
        view["rate"].astype(np.int64),
        view["importance"].astype(np.int64),
    )
    mortal = ends != NEVER
    if mortal.any():
        partition.end_wheel.add_each(ends[mortal], seqs[mortal])


def _classify(
    partition: Partition, seqs: npt.NDArray[np.uint64], view: npt.NDArray[np.void]
) -> None:
    """Give rows the class numbers of this run, in the index and in `view`."""
    enqueued = (view["enqueued"] & _LOW48).astype(np.int64)
    dead = (view["dead"] & _LOW48).astype(np.int64)
    rate = view["rate"].astype(np.int64)
    unit = partition.spec.decay_unit_ms
    span = np.where(rate == 0, 0, np.where(dead > 0, dead - enqueued, unit))
    importance = view["importance"].astype(np.int64)
    kinds, which = distinct(importance, rate, span)
    numbers = np.array(
        [partition.classes.of_key(class_key(*kind)).number for kind in kinds.tolist()],
        dtype=np.uint64,
    )
    view["dead"] = (view["dead"] & _LOW48) | numbers[which] << _HIGH
    for number, where in partition.index.by_page(seqs):
        page = partition.index.pages[number]
        if page.thin is None:
            slots = (seqs[where] & np.uint64(SLOT_MASK)).astype(np.int64)
            page.view["dead"][slots] = view["dead"][where]
        else:
            for seq, dead_bits in zip(
                seqs[where].tolist(), view["dead"][where].tolist(), strict=True
            ):
                page.view["dead"][page.thin[(seq & SLOT_MASK) << 6] >> 6] = dead_bits


def _classify_others(partition: Partition, displaced: list[int]) -> None:
    """The same for rows that are not in a ring: displaced, leased, scheduled, dying."""
    lost_order = np.array(displaced, dtype=np.uint64)
    for page, slots in partition.index.live_seqs():
        if page.thin is None and not len(lost_order) and (page.view["state"][slots] == READY).all():
            continue
        view, page_seqs = _rows_of(page, slots)
        others = (view["state"] != READY) | np.isin(page_seqs, lost_order)
        if others.any():
            _classify(partition, page_seqs[others], view[others])
