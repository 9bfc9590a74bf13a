"""Deriving from a partition's rows what is not stored: order, wheels, counts, ledger.

A start waits for this, for every row there is. So a page is first asked what its rows have in
common (`core.block`): most pages hold messages that are much alike, and then a few words tell what
else would take a look at each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.block import (
    ALL,
    BYTE,
    DEAD,
    DUE,
    ENQUEUED,
    FLAGS_BIT,
    IMPORTANCE_BIT,
    KIND,
    LOW32,
    PLACE,
    RATE_BIT,
    SIZE,
    STATE,
    WHERE,
    Block,
)
from ebbmq.core.classes import NEVER, class_key
from ebbmq.core.index import SLOT_MASK
from ebbmq.core.lifecycle import distinct, ends_of
from ebbmq.core.partition import Move
from ebbmq.core.row import (
    DISPLACED,
    DURABLE,
    DYING,
    ELSEWHERE,
    FREE,
    HIGH,
    IN_DOUBT,
    LEASED,
    LOW48,
    READY,
    REASON,
    ROW,
    SCHEDULED,
    SHARED,
    STATES,
)
from ebbmq.core.wheel import Wheel
from ebbmq.model import Reason

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.index import Page
    from ebbmq.core.partition import Partition

    Numbers = npt.NDArray[np.int64]
    Seqs = npt.NDArray[np.uint64]

_HIGH: Final = np.uint64(HIGH)
_IMPORTANCE: Final = BYTE << IMPORTANCE_BIT
_RATE: Final = LOW32 << RATE_BIT
_CLASS: Final = ALL ^ LOW48


def rebuild(partition: Partition, now_ms: int, *, reopened: bool) -> bool:
    """Derive order, wheels, counts and ledger from the rows; returns whether bodies are shared.

    With `reopened`, rows that were not durable are dropped: their process is gone.
    """
    partition.depth = [0] * STATES
    partition.by_importance = [0] * (limits.IMPORTANCE_MAX + 1)
    partition.body_bytes = partition.dying_bytes = 0
    partition.ledger.clear()
    partition.held.clear()
    partition.due_wheel = Wheel(now_ms)
    partition.end_wheel = Wheel(now_ms)
    index = partition.index
    for page in list(index.pages.values()):
        index.tidy(page)
    ready = _Ready()
    has_shared = False
    for number in sorted(index.pages):
        page = index.pages[number]
        if not page.live:
            continue
        rows = _Rows(page)
        if reopened and not rows.every[KIND] >> FLAGS_BIT & DURABLE:
            _drop_not_durable(page, rows)
            if not page.live:
                continue
            rows = _Rows(page)
        classes = _classify(partition, rows)
        _count_in(partition, rows)
        _time_rows(partition, rows)
        ready.take(rows, classes)
        top = int(rows.column(PLACE, LOW48).max())
        partition.next_place = max(partition.next_place, top + 1)
        has_shared = has_shared or bool(rows.some[KIND] >> FLAGS_BIT & SHARED)
    ready.enter(partition, now_ms)
    partition.histories.keep(lambda seq: index.state_of(seq) != FREE)
    return has_shared


class _Rows(Block):
    """The live rows of a page, with where they stand in its memory and what their numbers are."""

    __slots__ = ("at", "page", "seqs")

    def __init__(self, page: Page) -> None:
        self.page = page
        base = page.number * limits.PAGE_ROWS
        #: The page's own memory, or the rows of it that these are.
        self.at: slice | Numbers = slice(None)
        if page.thin is None and page.live == limits.PAGE_ROWS:
            super().__init__(page.words)
            self.seqs: Seqs = np.arange(base, base + limits.PAGE_ROWS, dtype=np.uint64)
            return
        slots = page.live_slots()
        self.seqs = slots.astype(np.uint64) + np.uint64(base)
        if page.thin is not None:
            self.at = np.array(
                [page.thin[slot * ROW.size] // ROW.size for slot in slots.tolist()], dtype=np.int64
            )
        elif int(slots[-1]) - int(slots[0]) + 1 == len(slots):
            self.at = slice(int(slots[0]), int(slots[-1]) + 1)
        else:
            self.at = slots
        super().__init__(page.words[self.at])

    def numbers(self, word: int, mask: int, shift: int = 0) -> Numbers:
        """`column`, signed, one after the other."""
        return self.column(word, mask, shift).astype(np.int64)

    def flag(self, flag: int) -> npt.NDArray[np.bool_]:
        """Which rows have a flag."""
        found: npt.NDArray[np.bool_] = self.column(KIND, flag << FLAGS_BIT) != 0
        return found


def _drop_not_durable(page: Page, rows: _Rows) -> None:
    gone = rows.seqs[~rows.flag(DURABLE)] & np.uint64(SLOT_MASK)
    for slot in gone.tolist():
        page.buffer[page.offset_of(slot * ROW.size)] = FREE
    page.live -= len(gone)
    page.dirty = True


def _classify(partition: Partition, rows: _Rows) -> int | Numbers:
    """Give rows the class numbers of this run, in the page; returns them, or the one of all."""
    if not rows.some[KIND] & _RATE and rows.is_same(KIND, _IMPORTANCE):
        importance = (rows.some[KIND] & _IMPORTANCE) >> IMPORTANCE_BIT
        only = partition.classes.of_key(class_key(importance, 0, 0)).number
        if not rows.all_have(DEAD, _CLASS, only << HIGH):
            dead = rows.column(DEAD, LOW48)
            rows.page.words[rows.at, DEAD] = dead | np.uint64(only << HIGH)
        return only
    dead = rows.column(DEAD, LOW48)
    rate = rows.numbers(KIND, _RATE, RATE_BIT)
    lives = dead.astype(np.int64) - rows.numbers(ENQUEUED, LOW48)
    span = np.where(dead > 0, lives, partition.spec.decay_unit_ms)
    span[rate == 0] = 0
    kinds, which = distinct(rows.numbers(KIND, _IMPORTANCE, IMPORTANCE_BIT), rate, span)
    known = [partition.classes.of_key(class_key(*kind)).number for kind in kinds.tolist()]
    numbers = np.array(known, dtype=np.int64)[which]
    rows.page.words[rows.at, DEAD] = dead | numbers.astype(np.uint64) << _HIGH
    return numbers


def _count_in(partition: Partition, rows: _Rows) -> None:
    _add(partition.depth, rows, STATE, 0)
    if rows.some[KIND] & IN_DOUBT:
        partition.dying_bytes += int(
            rows.numbers(SIZE, LOW32)[rows.numbers(KIND, STATE) >= IN_DOUBT].sum()
        )
    _add(partition.by_importance, rows, _IMPORTANCE, IMPORTANCE_BIT)
    partition.body_bytes += rows.total(SIZE, LOW32)
    some = rows.some[KIND] >> FLAGS_BIT
    if rows.is_same(WHERE, LOW32) and not some & (ELSEWHERE | SHARED):
        size = rows.total(SIZE, LOW32) + ROW.size * len(rows)
        _hold(partition, rows.some[WHERE] & LOW32, size)
        return
    segments, lengths = rows.column(WHERE, LOW32), rows.numbers(SIZE, LOW32)
    if some & ELSEWHERE:
        lengths[rows.flag(ELSEWHERE)] = 0
    if some & SHARED:
        own = ~rows.flag(SHARED)
        lengths, segments = lengths[own], segments[own]
    while len(segments):
        first = segments[0]
        mine = segments == first
        size = int(lengths[mine].sum()) + ROW.size * int(np.count_nonzero(mine))
        _hold(partition, int(first), size)
        lengths, segments = lengths[~mine], segments[~mine]


def _add(counts: list[int], rows: _Rows, mask: int, shift: int) -> None:
    """Count rows by the value of some bits of their first word."""
    if rows.is_same(KIND, mask):
        counts[(rows.some[KIND] & mask) >> shift] += len(rows)
        return
    for value, count in enumerate(np.bincount(rows.numbers(KIND, mask, shift)).tolist()):
        counts[value] += count


def _hold(partition: Partition, segment: int, size: int) -> None:
    partition.ledger[segment] = partition.ledger.get(segment, 0) + size


def _time_rows(partition: Partition, rows: _Rows) -> None:
    if not rows.all_have(KIND, STATE, READY):
        states = rows.numbers(KIND, STATE)
        waits = (states == LEASED) | (states == SCHEDULED)
        if waits.any():
            partition.due_wheel.add_each(rows.numbers(DUE, LOW48)[waits], rows.seqs[waits])
        for at in np.flatnonzero(states == DYING).tolist():
            reason = Reason(int(rows.as_rows()["reason"][at]) & REASON)
            partition.moves.append(Move(int(rows.seqs[at]), reason))
            partition.dying_bytes += int(rows.as_rows()["length"][at])
    if not (partition.spec.retention_ms or rows.some[KIND] & _RATE or rows.some[DEAD] & LOW48):
        return
    ends = ends_of(
        partition,
        rows.numbers(ENQUEUED, LOW48),
        rows.numbers(DEAD, LOW48),
        rows.numbers(KIND, _RATE, RATE_BIT),
        rows.numbers(KIND, _IMPORTANCE, IMPORTANCE_BIT),
    )
    mortal = ends != NEVER
    if mortal.any():
        partition.end_wheel.add_each(ends[mortal], rows.seqs[mortal])


class _Ready:
    """The ready rows of all pages, to be let into the order at once."""

    def __init__(self) -> None:
        self._seqs: list[Seqs] = []
        self._enqueued: list[Seqs] = []
        self._classes: list[Numbers] = []
        self._displaced: list[tuple[int, int]] = []

    def take(self, rows: _Rows, classes: int | Numbers) -> None:
        """Take in the ready rows of a page."""
        seqs, enqueued = rows.seqs, rows.column(ENQUEUED, LOW48)
        numbers = classes
        if isinstance(numbers, int):
            numbers = np.full(len(rows), numbers, dtype=np.int64)
        is_plain = not rows.some[KIND] >> FLAGS_BIT & DISPLACED
        if not (is_plain and rows.all_have(KIND, STATE, READY)):
            is_ready = rows.column(KIND, STATE) == READY
            displaced = rows.flag(DISPLACED)
            plain = is_ready & ~displaced
            places = rows.column(PLACE, LOW48)
            for at in np.flatnonzero(is_ready & displaced).tolist():
                self._displaced.append((int(seqs[at]), int(places[at])))
            seqs, enqueued, numbers = seqs[plain], enqueued[plain], numbers[plain]
        self._seqs.append(seqs)
        self._enqueued.append(enqueued)
        self._classes.append(numbers)

    def enter(self, partition: Partition, now_ms: int) -> None:
        """Let them in, those that kept their place first."""
        if self._seqs:
            partition.order.load(
                np.concatenate(self._classes),
                np.concatenate(self._seqs),
                np.concatenate(self._enqueued),
                now_ms,
            )
        for seq, place in self._displaced:
            partition.order.enter(seq, place, now_ms)
