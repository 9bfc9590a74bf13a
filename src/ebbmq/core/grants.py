"""Leases of a partition, granted in delivery order; `core.leases` settles them.

Batches are handled page by page as blocks of rows, with the outcome of one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import names
from ebbmq.core import row as rows
from ebbmq.core.block import (
    ALL,
    BYTE,
    DEAD,
    ENQUEUED,
    FLAGS_BIT,
    IMPORTANCE_BIT,
    KIND,
    LEASE,
    LOW32,
    RATE_BIT,
    SIZE,
    STATE,
    WORDS,
    Block,
    as_words,
)
from ebbmq.core.happened import LEASED as TOLD_LEASED
from ebbmq.core.happened import Happened
from ebbmq.core.index import PAGE_BITS, SLOT_MASK
from ebbmq.core.row import FREE, HIGH, LEASED, LOW48, PRIVILEGED, READY, ROW
from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ebbmq.core.index import Page, Where
    from ebbmq.core.partition import Partition, Row

    #: Of rows of a partition, those that a consumer may not have.
    Withheld = Callable[[int, list[int]], set[int]]

_read_row: Final = rows.read_row
_mark_leased: Final = rows.mark_leased
_grant_fact: Final = fact.grant_of_one
#: Below this many rows of a page, one by one is faster.
MANY: Final = 16
_PRIVILEGED: Final = PRIVILEGED << FLAGS_BIT
_NO_ROW: Final = bytes(ROW.size)
#: Where the fields that are asked for stand: in the row, and in which bits of which word.
_FIELDS: Final = {
    "importance": (2, KIND, BYTE << IMPORTANCE_BIT, IMPORTANCE_BIT),
    "length": (11, SIZE, LOW32, 0),
    "generation": (13, LEASE, LOW32, 0),
}
#: What a grant keeps of a row, word by word; to the rest it adds.
_KEPT: Final = np.array([ALL, ALL, ALL, ALL ^ LOW48, LOW48, ALL, ALL, LOW32], dtype=np.uint64)
assert LEASED == READY + 1, "a grant adds one to the state"


class Grants:
    """What a lease call got: the rows as they were, and what their tokens need.

    A batch is kept as one `block` of rows, and taken apart only for who asks for `rows`.
    """

    __slots__ = (
        "_rows", "at_ms", "block", "deadline_ms", "epoch", "is_run", "nonce", "numbers", "seqs",
    )  # fmt: skip

    def __init__(self, seqs: list[int], rows: list[Row], deadline_ms: int, nonce: int) -> None:
        self.seqs = seqs
        self.block: Block | None = None
        #: `seqs` again, with a block.
        self.numbers: npt.NDArray[np.int64] | None = None
        #: The rows are known to be consecutive.
        self.is_run = False
        self.deadline_ms = deadline_ms
        self.nonce = nonce
        #: The boot they were granted in; None: this one.
        self.epoch: int | None = None
        #: When these were next to be delivered, those of the highest band first; 0: not known.
        self.at_ms = 0
        self._rows = rows

    @property
    def rows(self) -> list[Row]:
        """The rows as they were before, one by one."""
        if self.block is not None and not self._rows:
            self._rows = list(ROW.iter_unpack(self.block.words.tobytes()))
        return self._rows

    def add(self, seq: int, row: Row) -> None:
        """One more row."""
        self.rows.append(row)
        self.block = None
        self.is_run = False
        self.seqs.append(seq)

    def add_many(
        self,
        seqs: list[int],
        block: Block,
        numbers: npt.NDArray[np.int64] | None = None,
        *,
        are_run: bool = False,
    ) -> None:
        """Many more rows."""
        if self.seqs:
            self.rows.extend(ROW.iter_unpack(block.words.tobytes()))
            self.block = None
            self.is_run = False
        else:
            self.block = block
            self.numbers = numbers
            self.is_run = are_run
        self.seqs.extend(seqs)

    def chosen(self, numbers: Sequence[int]) -> Grants:
        """Some of them, by their numbers here, in the same order."""
        seqs, rows = self.seqs, self.rows
        out = Grants(
            [seqs[i] for i in numbers], [rows[i] for i in numbers], self.deadline_ms, self.nonce
        )
        out.epoch, out.at_ms = self.epoch, self.at_ms
        return out

    def column(self, name: str) -> list[int]:
        """The importance, length or generation of every row."""
        at, word, mask, shift = _FIELDS[name]
        if self.block is None:
            return [row[at] for row in self._rows]
        return self.block.values(word, mask, shift)


class Choice:
    """What a consumer takes of the rows that are next; the others stay, untouched."""

    def __init__(self, withheld: Withheld | None, bytes_max: int | None, *, privileged: bool):
        self.is_full = False
        self._privileged = privileged
        self._withheld = withheld
        self._left = bytes_max
        self._is_first = True
        self._passed: list[int] = []

    def next(self, partition: Partition, count: int, now_ms: int) -> list[int]:
        """Rows it takes in delivery order; none where there is none it takes."""
        chosen: list[int] = []
        while not (chosen or self.is_full or len(self._passed) > limits.LEASE_COUNT_MAX):
            seqs = _candidates(partition, count, now_ms, whole=self._privileged)
            if not seqs:
                break
            chosen = self.take(partition, seqs)
            if len(chosen) < len(seqs):
                self._passed += set(seqs).difference(chosen)
        return chosen

    def take(self, partition: Partition, seqs: list[int]) -> list[int]:
        """Those of some rows that it takes."""
        if self._withheld is not None:
            withheld = self._withheld(partition.pid, seqs)
            seqs = [seq for seq in seqs if seq not in withheld]
        if not seqs:
            return seqs
        run = range(seqs[0], seqs[-1] + 1) if is_run(seqs) else seqs
        block = Block(partition.index.words_at(run))
        if not self._privileged and block.some[KIND] & _PRIVILEGED:
            mine = block.words[:, KIND] & np.uint64(_PRIVILEGED) == 0
            seqs, block = [*compress(seqs, mine)], Block(block.words[mine])
        if self._left is None or not seqs:
            return seqs
        fitting, total = len(seqs), block.total(SIZE, LOW32)
        if total > self._left:
            ends = block.column(SIZE, LOW32).cumsum().tolist()
            fitting = max(bisect_right(ends, self._left), self._is_first)
            self.is_full, total = fitting < len(seqs), ends[fitting - 1] if fitting else 0
        self._left, self._is_first = self._left - total, False
        return seqs[:fitting]

    def leave(self, partition: Partition, now_ms: int) -> None:
        """Let stand what it did not take."""
        partition.put_back(self._passed, now_ms, apart=True)
        partition.leases_granted -= len(self._passed)
        self._passed = []


def lease(  # noqa: PLR0913  # who leases what, how much of it, and for how long
    partition: Partition,
    count: int,
    timeout_ms: int,
    nonce: int,
    now_ms: int,
    name: str = "",
    *,
    choice: Choice | None = None,
) -> Grants:
    """Grant up to `count` leases in delivery order, ending `timeout_ms` from now."""
    seqs: list[int] = []
    grants = Grants(seqs, [], now_ms + timeout_ms, nonce)
    grants.at_ms = 0 if partition.spec.fair_share else now_ms
    while not partition.paused and len(seqs) < count:
        wanted = count - len(seqs)
        source = _candidates if choice is None else choice.next
        candidates = source(partition, wanted, now_ms)
        if not candidates:
            break
        if len(candidates) < MANY:
            for seq in candidates:
                _grant_one(partition, seq, grants, now_ms)
        else:
            _grant_many(partition, candidates, grants, now_ms)
    if choice is not None:
        choice.leave(partition, now_ms)
    if seqs:
        if partition.counts_reads:
            partition.accesses.credit(seqs, now_ms)
        _note_grants(partition, grants, now_ms, name)
        if timeout_ms != partition.spec.lease_timeout_ms:
            partition.granted_at.update(dict.fromkeys(seqs, now_ms))
    return grants


def lease_one(
    partition: Partition, timeout_ms: int | None, nonce: int, now_ms: int
) -> tuple[int, Row, int, bytes] | None:
    """Grant a lease of the next message: its number, its row as it was, deadline and GRANT fact.

    The short way of `lease`, for a partition that `is_leased_simply`, without a name; a timeout of
    None is the queue's. None is returned where there is no message, or one that ended, for which
    facts may have been left; `lease` knows what comes next.
    """
    seq, usual_ms = partition.order.pop_one(now_ms), partition.spec.lease_timeout_ms
    deadline_ms = now_ms + (usual_ms if timeout_ms is None else timeout_ms)
    row = _grant(partition, seq, deadline_ms, nonce, now_ms)
    if row is None:
        return None
    depth = partition.depth
    depth[READY] -= 1
    depth[LEASED] += 1
    partition.totals["leased"] += 1
    partition.due_wheel.add(deadline_ms, seq)
    if timeout_ms is not None and timeout_ms != usual_ms:
        partition.granted_at[seq] = now_ms
    if partition.tell is not None:
        partition.tell(Happened(TOLD_LEASED, partition.pid, now_ms, 1, (seq,), (row,), seq))
    told = _grant_fact(deadline_ms, nonce, partition.epoch, now_ms, seq, row[13] + 1)
    return seq, row, deadline_ms, told


def _candidates(partition: Partition, count: int, now_ms: int, *, whole: bool = True) -> list[int]:
    """Candidates in delivery order, one in `fair_share` of them the oldest of any band.

    With `whole`, rows aside are among them.
    """
    share, aside = partition.spec.fair_share, partition.aside if whole else None
    until_turn = share - partition.leases_granted % share - 1 if share else count
    if until_turn:
        count = min(count, until_turn)
        if aside is not None:
            partition.put_back(aside.pop(count, now_ms), now_ms)
        taken = partition.order.pop(count, now_ms)
        partition.leases_granted += len(taken)
        return taken
    if aside is not None:
        partition.put_back([aside.pop_oldest(now_ms)], now_ms)
    oldest = partition.order.pop_oldest(now_ms)
    partition.leases_granted += 1
    return [] if oldest < 0 else [oldest]


def _grant_one(partition: Partition, seq: int, grants: Grants, now_ms: int) -> None:
    """Grant a lease of one row, unless it is a ghost or its end has come."""
    row = _grant(partition, seq, grants.deadline_ms, grants.nonce, now_ms)
    if row is not None:
        grants.add(seq, row)


def _grant(partition: Partition, seq: int, deadline_ms: int, nonce: int, now_ms: int) -> Row | None:
    """Mark a row as leased and return it as it was; None if it is a ghost or its end has come."""
    page = partition.index.pages.get(seq >> PAGE_BITS)
    if page is None:
        return None
    at = (seq & SLOT_MASK) << 6
    if page.thin is not None:
        at = page.thin.get(at, -1)
        if at < 0:
            return None
    buffer = page.buffer
    row = _read_row(buffer, at)
    if row[0] != READY:
        return None
    if (
        (row[4] or row[6] & LOW48 or partition.spec.retention_ms)
        and partition.end_wheel.begins_ms <= now_ms
        and partition.end_if_due(seq, row, now_ms)
    ):
        return None
    _mark_leased(buffer, at, deadline_ms, partition.epoch, nonce)
    page.dirty = True
    return row


def _grant_many(partition: Partition, candidates: list[int], grants: Grants, now_ms: int) -> None:
    """`_grant_one` for many; the order of the candidates is kept."""
    page = partition.index.whole_page(min(candidates), max(candidates))
    first, count = candidates[0] & SLOT_MASK, len(candidates)
    numbers: npt.NDArray[np.int64] | None = None
    slots: Where
    if is_run(candidates):
        slots = slice(first, first + count)
    else:
        numbers = np.array(candidates, dtype=np.int64)
        slots = numbers & SLOT_MASK
    if page is not None:
        block = _grant_rows(partition, page, slots, grants, now_ms)
        if block is not None:
            grants.add_many(candidates, block, numbers, are_run=numbers is None)
            return
    _grant_pages(partition, candidates, grants, now_ms)


def _grant_pages(partition: Partition, candidates: list[int], grants: Grants, now_ms: int) -> None:
    """`_grant_many`, page by page."""
    array = np.array(candidates, dtype=np.uint64)
    groups = list(partition.index.whole_pages(array))
    if len(groups) * MANY > len(candidates):
        for seq in candidates:
            _grant_one(partition, seq, grants, now_ms)
        return
    words = np.empty((len(candidates), WORDS), dtype=np.uint64)
    missing = False
    for where, page, slots in groups:
        block = None if page is None else _grant_rows(partition, page, slots, grants, now_ms)
        if block is not None:
            words[where] = block.words
            continue
        packed = [_granted_row(partition, seq, grants, now_ms) for seq in array[where].tolist()]
        missing = missing or _NO_ROW in packed
        words[where] = as_words(b"".join(packed))
    if missing:
        there = words[:, KIND] & np.uint64(STATE) != FREE
        candidates = [seq for seq, granted in zip(candidates, there, strict=True) if granted]
        words = words[there]
    if candidates:
        grants.add_many(candidates, Block(words))


def is_run(seqs: list[int]) -> bool:
    """Whether row numbers are consecutive."""
    first, count = seqs[0], len(seqs)
    return seqs[-1] - first == count - 1 and seqs == list(range(first, first + count))


def _granted_row(partition: Partition, seq: int, grants: Grants, now_ms: int) -> bytes:
    """The row as it was, packed; a free one if no lease of it was granted."""
    one = Grants([], [], grants.deadline_ms, grants.nonce)
    _grant_one(partition, seq, one, now_ms)
    return ROW.pack(*one.rows[0]) if one.rows else _NO_ROW


def _grant_rows(
    partition: Partition, page: Page, where: Where, grants: Grants, now_ms: int
) -> Block | None:
    """Mark rows of a page as leased and return them as they were; None if any is not plain."""
    block = Block(page.copy_rows(where))
    if not block.all_have(KIND, STATE, READY) or not _all_live_on(partition, block, now_ms):
        return None
    epoch_bits = (partition.epoch & 0xFFFF) << HIGH
    lease = 1 | grants.nonce << 32
    leased = block.words & _KEPT
    leased += np.array([1, 0, 0, grants.deadline_ms, epoch_bits, 0, 0, lease], dtype=np.uint64)
    page.words[where] = leased
    page.dirty = True
    return block


def _all_live_on(partition: Partition, block: Block, now_ms: int) -> bool:
    """Whether none of these ready rows ends by now."""
    retention_ms = partition.spec.retention_ms
    fading = block.some[KIND] >> RATE_BIT
    if not fading and not block.some[DEAD] & LOW48 and not retention_ms:
        return True
    # What can end is in the wheel until its end is dealt with.
    if now_ms < partition.end_wheel.begins_ms:
        return True
    dead = block.column(DEAD, LOW48).astype(np.int64)
    if ((dead <= now_ms) & (dead > 0)).any():
        return False
    enqueued = block.column(ENQUEUED, LOW48).astype(np.int64)
    if (now_ms - enqueued >= (retention_ms or limits.DURATION_MS_MAX * 2)).any():
        return False
    return not fading or _none_is_stale(partition, block, enqueued, dead, now_ms)


def _none_is_stale(
    partition: Partition,
    block: Block,
    enqueued: npt.NDArray[np.int64],
    dead: npt.NDArray[np.int64],
    now_ms: int,
) -> bool:
    view = block.as_rows()
    span = np.where(dead > 0, dead - enqueued, partition.spec.decay_unit_ms)
    current = policy.decayed(
        view["importance"].astype(np.float64),
        view["rate"] / rows.RATE_UNIT,
        now_ms - enqueued,
        span,
    )
    threshold = np.minimum(partition.spec.stale_threshold, view["importance"] / 2)
    return bool((np.maximum(current, 0) >= threshold).all())


def _note_grants(partition: Partition, grants: Grants, now_ms: int, name: str) -> None:
    seqs = grants.seqs
    count = len(seqs)
    depth = partition.depth
    depth[READY] -= count
    depth[LEASED] += count
    partition.totals["leased"] += count
    if count == 1:
        partition.due_wheel.add(grants.deadline_ms, seqs[0])
        runs = fact.GRANT_RUN.pack(seqs[0], 1, grants.rows[0][13] + 1)
    else:
        partition.due_wheel.add_many(grants.deadline_ms, seqs)
        runs = _runs(grants)
    told = (grants.deadline_ms, grants.nonce, partition.epoch, now_ms)
    partition.facts.append(fact.grant(partition.pid, told, runs, count, seqs[0], name))
    if partition.tell is not None:
        before = grants.rows if grants.block is None else grants.block.words
        partition.tell(
            Happened(TOLD_LEASED, partition.pid, now_ms, count, seqs, before, seqs[0], name=name)
        )
    if name:
        generations = grants.column("generation")
        held = [(seq, before + 1) for seq, before in zip(seqs, generations, strict=True)]
        names.note(partition, name, held)


def _runs(grants: Grants) -> bytes:
    """(first, count, generation) runs of leased rows, packed."""
    seqs, block = grants.seqs, grants.block
    if block is not None and block.is_same(LEASE, LOW32):
        generation = (block.some[LEASE] & LOW32) + 1
        if grants.is_run:
            return fact.GRANT_RUN.pack(seqs[0], len(seqs), generation)
        numbers = grants.numbers
        if numbers is None:
            numbers = np.array(seqs, dtype=np.int64)
        return fact.packed_runs(numbers, generation)
    pairs = sorted(zip(seqs, grants.column("generation"), strict=True))
    runs: list[tuple[int, int, int]] = []
    first = last = generation = -1
    for seq, before in pairs:
        if seq != last + 1 or before != generation:
            if first >= 0:
                runs.append((first, last - first + 1, generation + 1))
            first, generation = seq, before
        last = seq
    runs.append((first, last - first + 1, generation + 1))
    return b"".join([fact.GRANT_RUN.pack(*run) for run in runs])
