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
from ebbmq.core.classes import NEVER, class_key
from ebbmq.core.index import PAGE_BITS, PAGE_BYTES, SLOT_MASK
from ebbmq.core.lifecycle import distinct, ends_of
from ebbmq.core.partition import Move
from ebbmq.core.row import (
    DISPLACED,
    DURABLE,
    DYING,
    ELSEWHERE,
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
        filled = page.view[at >> 6 : (at + len(block)) >> 6]
        page.live -= int(np.count_nonzero(filled["state"]))
        page.buffer[at : at + len(block)] = bytes(block)
        # Of a damaged record some rows may be left out.
        page.live += int(np.count_nonzero(filled["state"]))
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
        named: list[tuple[int, int]] = []
        for first, count, generation in grant.runs:
            done = 0
            while done < count:
                seq = first + done
                take = min(count - done, limits.PAGE_ROWS - (seq & SLOT_MASK))
                page = self._index.pages.get(seq >> PAGE_BITS)
                if page is not None and page.position <= position:
                    self._lease_rows(page, seq, take, generation, grant, position)
                done += take
            if grant.name:
                named += [
                    (seq, generation)
                    for seq in range(first, first + count)
                    if self._known(seq, position) is not None
                ]
        if named:
            self._partition.names[grant.name] = named

    def _lease_rows(
        self, page: Page, first: int, count: int, generation: int, grant: fact.Grant, position: int
    ) -> None:
        slot = first & SLOT_MASK
        slots = np.flatnonzero(page.view["state"][slot : slot + count]) + slot
        if self._as_of:
            base = page.number << PAGE_BITS
            kept = [s for s in slots.tolist() if self._as_of.get(base + s, -1) <= position]
            slots = np.array(kept, dtype=np.intp)
        view = page.view
        view["state"][slots] = LEASED
        view["due"][slots] = (view["due"][slots] & ~_LOW48) | np.uint64(grant.deadline_ms)
        epoch_bits = np.uint64((grant.epoch & 0xFFFF) << HIGH)
        view["place"][slots] = (view["place"][slots] & _LOW48) | epoch_bits
        view["generation"][slots] = generation
        view["nonce"][slots] = grant.nonce
        page.dirty = True

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
    ready = _Ready()
    for page, slots in partition.index.live_seqs():
        view, seqs = _rows_of(page, slots)
        if reopened:
            view, seqs = _drop_not_durable(partition, page, view, seqs)
        if not len(seqs):
            continue
        classes = _classify(partition, page, view, seqs)
        _count_in(partition, view)
        _time_rows(partition, view, seqs)
        ready.take(view, seqs, classes)
        top = int((view["place"] & _LOW48).max())
        partition.next_place = max(partition.next_place, top + 1)
    ready.enter(partition, now_ms)
    partition.histories.keep(lambda seq: partition.index.state_of(seq) != FREE)


class _Ready:
    """The ready rows of all pages, to be let into the order at once."""

    def __init__(self) -> None:
        self._seqs: list[npt.NDArray[np.uint64]] = []
        self._enqueued: list[npt.NDArray[np.uint64]] = []
        self._classes: list[npt.NDArray[np.int64]] = []
        self._displaced: list[tuple[int, int]] = []

    def take(
        self,
        view: npt.NDArray[np.void],
        seqs: npt.NDArray[np.uint64],
        classes: npt.NDArray[np.int64],
    ) -> None:
        is_ready = view["state"] == READY
        plain = is_ready & ((view["flags"] & DISPLACED) == 0)
        self._seqs.append(seqs[plain])
        self._enqueued.append(view["enqueued"][plain] & _LOW48)
        self._classes.append(classes[plain])
        for at in np.flatnonzero(is_ready & ~plain).tolist():
            self._displaced.append((int(seqs[at]), int(view["place"][at] & _LOW48)))

    def enter(self, partition: Partition, now_ms: int) -> None:
        if self._seqs:
            partition.order.load(
                np.concatenate(self._classes),
                np.concatenate(self._seqs),
                np.concatenate(self._enqueued),
                now_ms,
            )
        for seq, place in self._displaced:
            partition.order.enter(seq, place, now_ms)


def _rows_of(
    page: Page, slots: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint64]]:
    """Live rows and their numbers; a view of the page where they stand together."""
    seqs = slots.astype(np.uint64) + np.uint64(page.number * limits.PAGE_ROWS)
    first, last = int(slots[0]), int(slots[-1])
    if page.thin is not None:
        at = np.array([page.thin[slot << 6] >> 6 for slot in slots.tolist()], dtype=np.int64)
        return page.view[at], seqs
    if last - first + 1 == len(slots):
        return page.view[first : last + 1], seqs
    return page.view[slots], seqs


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
    lengths, segments = view["length"], view["segment"]
    partition.body_bytes += int(lengths.sum(dtype=np.int64))
    away = (view["flags"] & ELSEWHERE) != 0
    if away.any():
        lengths = np.where(away, 0, lengths)
    own = (view["flags"] & SHARED) == 0
    if not own.all():
        lengths, segments = lengths[own], segments[own]
    while len(segments):
        first = int(segments[0])
        mine = segments == first
        size = int(lengths[mine].sum(dtype=np.int64)) + 64 * int(np.count_nonzero(mine))
        partition.ledger[first] = partition.ledger.get(first, 0) + size
        lengths, segments = lengths[~mine], segments[~mine]


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
    partition: Partition, page: Page, view: npt.NDArray[np.void], seqs: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Give rows the class numbers of this run, in the page; returns them."""
    enqueued = (view["enqueued"] & _LOW48).astype(np.int64)
    dead = (view["dead"] & _LOW48).astype(np.int64)
    rate = view["rate"].astype(np.int64)
    span = np.where(dead > 0, dead - enqueued, partition.spec.decay_unit_ms)
    span[rate == 0] = 0
    kinds, which = distinct(view["importance"].astype(np.int64), rate, span)
    numbers = np.array(
        [partition.classes.of_key(class_key(*kind)).number for kind in kinds.tolist()],
        dtype=np.int64,
    )[which]
    bits = dead.astype(np.uint64) | numbers.astype(np.uint64) << _HIGH
    if page.thin is None:
        page.view["dead"][(seqs & np.uint64(SLOT_MASK)).astype(np.int64)] = bits
    else:
        for seq, value in zip(seqs.tolist(), bits.tolist(), strict=True):
            page.view["dead"][page.thin[(seq & SLOT_MASK) << 6] >> 6] = value
    return numbers
