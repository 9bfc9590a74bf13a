"""Leases of a partition: granted in delivery order, then acked, retried, released or extended.

A token names (partition, row, generation, boot epoch, nonce); only the token of the lease that is
running settles it. Batches are handled page by page with numpy, with the outcome of one by one.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.core.index import PAGE_BITS, SLOT_MASK, THIN_BELOW
from ebbmq.core.row import (
    AT_DUE,
    AT_GENERATION,
    FREE,
    HIGH,
    LEASED,
    LOW48,
    READY,
    ROW,
    SHARED,
)
from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from ebbmq.core.index import Page
    from ebbmq.core.partition import Partition, Row

    Seqs = npt.NDArray[np.uint64]

_DUE_PLACE: Final = Struct("<QQ")
_GENERATION_NONCE: Final = Struct("<II")
_HIGH_MASK: Final = np.uint64(((1 << 16) - 1) << HIGH)
_LOW48: Final = np.uint64(LOW48)
_SLOTS: Final = np.uint64(SLOT_MASK)
#: Below this many rows of a page, one by one is faster.
_MANY: Final = 16
_NO_ROW: Final = bytes(ROW.size)
#: Names of leases that are over and not yet forgotten, at least.
_NAMES_SPARED: Final = 64
_FIELDS: Final = rows.DTYPE.names or ()

TOKEN: Final = Struct(">IQIII")
TOKEN_DTYPE: Final = np.dtype(
    [("pid", ">u4"), ("seq", ">u8"), ("generation", ">u4"), ("epoch", ">u4"), ("nonce", ">u4")]
)
Token = tuple[int, int, int, int, int]


class Grants:
    """What a lease call got: the rows as they were, and what their tokens need.

    A batch is kept as one `array` of rows, and taken apart only for who asks for `rows`.
    """

    __slots__ = ("_rows", "array", "deadline_ms", "nonce", "seqs")

    def __init__(self, seqs: list[int], rows: list[Row], deadline_ms: int, nonce: int) -> None:
        self.seqs = seqs
        self.array: npt.NDArray[np.void] | None = None
        self.deadline_ms = deadline_ms
        self.nonce = nonce
        self._rows = rows

    @property
    def rows(self) -> list[Row]:
        """The rows as they were before, one by one."""
        if self.array is not None and not self._rows:
            self._rows = list(ROW.iter_unpack(self.array.tobytes()))
        return self._rows

    def add(self, seq: int, row: Row) -> None:
        """One more row."""
        self.rows.append(row)
        self.array = None
        self.seqs.append(seq)

    def add_many(self, seqs: list[int], array: npt.NDArray[np.void]) -> None:
        """Many more rows."""
        if self.seqs:
            self.rows.extend(ROW.iter_unpack(array.tobytes()))
            self.array = None
        else:
            self.array = array
        self.seqs.extend(seqs)

    def column(self, name: str) -> list[int]:
        """One field of every row."""
        if self.array is not None:
            column: list[int] = self.array[name].tolist()
            return column
        at = _FIELDS.index(name)
        return [row[at] for row in self._rows]


def lease(
    partition: Partition, count: int, timeout_ms: int, nonce: int, now_ms: int, name: str = ""
) -> Grants:
    """Grant up to `count` leases in delivery order, ending `timeout_ms` from now."""
    seqs: list[int] = []
    grants = Grants(seqs, [], now_ms + timeout_ms, nonce)
    while not partition.paused and len(seqs) < count:
        wanted = count - len(seqs)
        if partition.spec.fair_share:
            candidates = _next(partition, wanted, now_ms)
        else:
            candidates = partition.order.pop(wanted, now_ms)
        if not candidates:
            break
        if len(candidates) < _MANY:
            for seq in candidates:
                _grant_one(partition, seq, grants, now_ms)
        else:
            _grant_many(partition, candidates, grants, now_ms)
    if seqs:
        _note_grants(partition, grants, now_ms, name)
        if timeout_ms != partition.spec.lease_timeout_ms:
            partition.granted_at.update(dict.fromkeys(seqs, now_ms))
    return grants


def _next(partition: Partition, count: int, now_ms: int) -> list[int]:
    """Candidates in delivery order, one in `fair_share` of them the oldest of any band."""
    share = partition.spec.fair_share
    until_turn = share - partition.leases_granted % share - 1
    if until_turn:
        taken = partition.order.pop(min(count, until_turn), now_ms)
        partition.leases_granted += len(taken)
        return taken
    oldest = partition.order.pop_oldest(now_ms)
    partition.leases_granted += 1
    return [] if oldest < 0 else [oldest]


def _grant_one(partition: Partition, seq: int, grants: Grants, now_ms: int) -> None:
    """Grant a lease of one row, unless it is a ghost or its end has come."""
    page = partition.index.pages.get(seq >> PAGE_BITS)
    if page is None:
        return
    at = (seq & SLOT_MASK) << 6
    if page.thin is not None:
        at = page.thin.get(at, -1)
        if at < 0:
            return
    buffer = page.buffer
    row = ROW.unpack_from(buffer, at)
    if row[0] != READY:
        return
    if (row[4] or row[6] & LOW48 or partition.spec.retention_ms) and partition.end_if_due(
        seq, row, now_ms
    ):
        return
    buffer[at] = LEASED
    _DUE_PLACE.pack_into(
        buffer,
        at + AT_DUE,
        grants.deadline_ms | row[7] >> HIGH << HIGH,
        row[8] & LOW48 | (partition.epoch & 0xFFFF) << HIGH,
    )
    _GENERATION_NONCE.pack_into(buffer, at + AT_GENERATION, row[13] + 1, grants.nonce)
    page.dirty = True
    grants.add(seq, row)


def _grant_many(partition: Partition, candidates: list[int], grants: Grants, now_ms: int) -> None:
    """`_grant_one` for many, page by page; the order of the candidates is kept."""
    array = np.array(candidates, dtype=np.uint64)
    groups = list(partition.index.by_page(array))
    if len(groups) * _MANY > len(candidates):
        for seq in candidates:
            _grant_one(partition, seq, grants, now_ms)
        return
    found = np.empty(len(candidates), dtype=rows.DTYPE)
    missing = False
    for number, where in groups:
        page = partition.index.pages.get(number)
        slots = (array[where] & _SLOTS).astype(np.int64)
        if page is not None and page.thin is None and _all_plain(partition, page, slots, now_ms):
            found[where] = _grant_rows(partition, page, slots, grants)
        else:
            blocks = [_granted_row(partition, seq, grants, now_ms) for seq in array[where].tolist()]
            missing = missing or _NO_ROW in blocks
            found[where] = np.frombuffer(b"".join(blocks), dtype=rows.DTYPE)
    if missing:
        there = found["state"] != FREE
        candidates = [seq for seq, granted in zip(candidates, there, strict=True) if granted]
        found = found[there]
    if candidates:
        grants.add_many(candidates, found)


def _granted_row(partition: Partition, seq: int, grants: Grants, now_ms: int) -> bytes:
    """The row as it was, packed; a free one if no lease of it was granted."""
    one = Grants([], [], grants.deadline_ms, grants.nonce)
    _grant_one(partition, seq, one, now_ms)
    return ROW.pack(*one.rows[0]) if one.rows else _NO_ROW


def _all_plain(partition: Partition, page: Page, slots: npt.NDArray[np.int64], now_ms: int) -> bool:
    """Whether all these rows are ready and none of them ends by now."""
    view = page.view[slots]
    if not (view["state"] == READY).all():
        return False
    dead = view["dead"] & _LOW48
    fading = bool(view["rate"].any())
    if not fading and not dead.any() and not partition.spec.retention_ms:
        return True
    if ((dead <= np.uint64(now_ms)) & (dead > 0)).any():
        return False
    enqueued = (view["enqueued"] & _LOW48).astype(np.int64)
    ages = now_ms - enqueued
    if (ages >= (partition.spec.retention_ms or limits.DURATION_MS_MAX * 2)).any():
        return False
    if not fading:
        return True
    lives = dead.astype(np.int64)
    span = np.where(lives > 0, lives - enqueued, partition.spec.decay_unit_ms)
    current = policy.decayed(
        view["importance"].astype(np.float64), view["rate"] / rows.RATE_UNIT, ages, span
    )
    threshold = np.minimum(partition.spec.stale_threshold, view["importance"] / 2)
    return bool((np.maximum(current, 0) >= threshold).all())


def _grant_rows(
    partition: Partition, page: Page, slots: npt.NDArray[np.int64], grants: Grants
) -> npt.NDArray[np.void]:
    """Mark rows of a page as leased; returns them as they were."""
    first, count = int(slots[0]), len(slots)
    where: slice | npt.NDArray[np.int64] = slots
    if int(slots[-1]) - first == count - 1 and bool((slots[1:] > slots[:-1]).all()):
        where = slice(first, first + count)
    view = page.view
    before = view[where].copy()
    view["state"][where] = LEASED
    view["due"][where] = (view["due"][where] & _HIGH_MASK) | np.uint64(grants.deadline_ms)
    epoch_bits = np.uint64((partition.epoch & 0xFFFF) << HIGH)
    view["place"][where] = (view["place"][where] & _LOW48) | epoch_bits
    view["generation"][where] += np.uint32(1)
    view["nonce"][where] = grants.nonce
    page.dirty = True
    return before


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
        runs = _runs(seqs, grants.column("generation"))
    told = (grants.deadline_ms, grants.nonce, partition.epoch, now_ms)
    partition.facts.append(fact.grant(partition.pid, told, runs, count, seqs[0], name))
    if name:
        if len(partition.names) >= 2 * partition.names_in_use + _NAMES_SPARED:
            _forget_names(partition)
        partition.names[name] = [
            (seq, generation + 1)
            for seq, generation in zip(seqs, grants.column("generation"), strict=True)
        ]


def _forget_names(partition: Partition) -> None:
    """Drop names of which no lease is held; seldom enough to cost nothing a name."""
    index = partition.index
    partition.names = {
        name: held
        for name, held in partition.names.items()
        if any(
            (row := index.read(seq)) is not None and row[0] == LEASED and row[13] == generation
            for seq, generation in held
        )
    }
    partition.names_in_use = len(partition.names)


def _runs(seqs: list[int], generations: list[int]) -> bytes:
    """(first, count, generation) runs of leased rows, packed."""
    first, count = seqs[0], len(seqs)
    if generations.count(generations[0]) == count and seqs == list(range(first, first + count)):
        return fact.GRANT_RUN.pack(first, count, generations[0] + 1)
    order = np.argsort(np.array(seqs, dtype=np.uint64))
    numbers = np.array(seqs, dtype=np.uint64)[order]
    raised = np.array(generations, dtype=np.uint32)[order] + np.uint32(1)
    breaks = np.flatnonzero((np.diff(numbers) != 1) | (raised[1:] != raised[:-1])) + 1
    starts = np.concatenate(([0], breaks))
    runs = np.empty(len(starts), dtype=fact.GRANT_RUN_DTYPE)
    runs["first"] = numbers[starts]
    runs["rows"] = np.diff(np.append(starts, count))
    runs["generation"] = raised[starts]
    return runs.tobytes()


# Settle


def held_row(partition: Partition, token: Token, now_ms: int) -> Row | None:
    """The row whose lease a token holds; None if it holds none."""
    _, seq, generation, epoch, nonce = token
    row = partition.index.read(seq)
    if (
        row is None
        or row[0] != LEASED
        or row[14] != nonce
        or row[13] != generation
        or row[8] >> HIGH != epoch
        or row[7] & LOW48 <= now_ms
    ):
        return None
    return row


def ack(partition: Partition, packed: bytes, now_ms: int) -> list[int]:
    """Remove the messages whose lease a token holds; returns the indexes of refused tokens."""
    if len(packed) >= _MANY * TOKEN.size and partition.adapt is None and not partition.granted_at:
        tokens = np.frombuffer(packed, dtype=TOKEN_DTYPE)
        if _ack_many(partition, tokens, now_ms):
            return []
    refused: list[int] = []
    acked: list[int] = []
    for number, token in enumerate(TOKEN.iter_unpack(packed)):
        if ack_one(partition, token, now_ms):
            acked.append(token[1])
        else:
            refused.append(number)
    if acked:
        partition.facts.append(fact.ack(partition.pid, acked))
    return refused


def ack_one(partition: Partition, token: Token, now_ms: int) -> bool:
    """Remove the message whose lease a token holds; False if it holds none. Leaves no fact."""
    _, seq, generation, epoch, nonce = token
    index = partition.index
    page = index.pages.get(seq >> PAGE_BITS)
    if page is None:
        return False
    at = (seq & SLOT_MASK) << 6
    if page.thin is not None:
        at = page.thin.get(at, -1)
        if at < 0:
            return False
    row = ROW.unpack_from(page.buffer, at)
    if (
        row[0] != LEASED
        or row[14] != nonce
        or row[13] != generation
        or row[8] >> HIGH != epoch
        or row[7] & LOW48 <= now_ms
    ):
        return False
    if partition.adapt is not None or partition.granted_at:
        partition.observe(seq, row, now_ms)
    if row[1] > 1:
        partition.forget(seq, row)
    partition.by_importance[row[2]] -= 1
    partition.body_bytes -= row[11]
    if not row[1] & SHARED:
        partition.ledger[row[9]] -= row[11] + 64
    partition.depth[LEASED] -= 1
    partition.totals["acked"] += 1
    page.buffer[at] = FREE
    page.live -= 1
    page.dirty = True
    if page.live <= THIN_BELOW:
        index.tidy(page)
    return True


def _ack_many(partition: Partition, tokens: npt.NDArray[np.void], now_ms: int) -> bool:
    """Ack a batch whose tokens all hold and whose rows are plain; else change nothing."""
    seqs = tokens["seq"].astype(np.uint64)
    is_run = bool((seqs[1:] == seqs[:-1] + np.uint64(1)).all())
    if not is_run and len(np.unique(seqs)) != len(seqs):
        return False
    groups: list[tuple[Page, npt.NDArray[np.int64], npt.NDArray[np.void]]] = []
    for number, where in partition.index.by_page(seqs):
        page = partition.index.pages.get(number)
        if page is None or page.thin is not None:
            return False
        slots = (seqs[where] & _SLOTS).astype(np.int64)
        view = page.view[slots]
        mine = tokens[where]
        held = (
            (view["state"] == LEASED)
            & (view["nonce"] == mine["nonce"])
            & (view["generation"] == mine["generation"])
            & (view["place"] >> np.uint64(HIGH) == mine["epoch"])
            & (view["due"] & _LOW48 > np.uint64(now_ms))
            & (view["flags"] < rows.DISPLACED)
        )
        if not held.all():
            return False
        groups.append((page, slots, view))
    for page, slots, view in groups:
        _free_rows(partition, page, slots, view)
    partition.depth[LEASED] -= len(seqs)
    partition.totals["acked"] += len(seqs)
    told = (
        fact.ack_run(partition.pid, int(seqs[0]), len(seqs))
        if is_run
        else fact.ack_array(partition.pid, np.sort(seqs))
    )
    partition.facts.append(told)
    return True


def _free_rows(
    partition: Partition, page: Page, slots: npt.NDArray[np.int64], view: npt.NDArray[np.void]
) -> None:
    for importance, count in enumerate(np.bincount(view["importance"]).tolist()):
        if count:
            partition.by_importance[importance] -= count
    lengths = view["length"]
    total = int(lengths.sum(dtype=np.int64))
    partition.body_bytes -= total
    segments = view["segment"]
    first = int(segments[0])
    if (segments == first).all():
        partition.ledger[first] -= total + 64 * len(slots)
    else:
        for segment in np.unique(segments).tolist():
            held = lengths[segments == segment]
            partition.ledger[segment] -= int(held.sum(dtype=np.int64)) + 64 * len(held)
    page.view["state"][slots] = FREE
    page.live -= len(slots)
    page.dirty = True
    if page.live <= THIN_BELOW:
        partition.index.tidy(page)


def retry(
    partition: Partition, tokens: Iterable[Token], delay_ms: int | None, now_ms: int
) -> list[int]:
    """Count a failure against each message and give it back; returns refused indexes."""
    refused: list[int] = []
    changed: list[int] = []
    for number, token in enumerate(tokens):
        row = held_row(partition, token, now_ms)
        if row is None:
            refused.append(number)
            continue
        if partition.fail(token[1], row, "retried", delay_ms, now_ms):
            changed.append(token[1])
        partition.totals["retried"] += 1
    partition.note_states(changed)
    return refused


def release(partition: Partition, tokens: Iterable[Token], now_ms: int) -> list[int]:
    """Give messages back unharmed: no failure, the place is kept; returns refused indexes."""
    refused: list[int] = []
    changed: list[int] = []
    for number, token in enumerate(tokens):
        row = held_row(partition, token, now_ms)
        if row is None:
            refused.append(number)
            continue
        seq = token[1]
        partition.granted_at.pop(seq, None)
        partition.totals["released"] += 1
        if not partition.end_if_due(seq, row, now_ms):
            partition.make_ready(seq, row, now_ms, keep_place=True)
        if partition.index.state_of(seq) != FREE:
            changed.append(seq)
    partition.note_states(changed)
    return refused


def extend(
    partition: Partition, tokens: Iterable[Token], timeout_ms: int, now_ms: int
) -> list[int]:
    """Move lease deadlines to `timeout_ms` from now; returns refused indexes."""
    refused: list[int] = []
    changed: list[int] = []
    deadline_ms = now_ms + timeout_ms
    for number, token in enumerate(tokens):
        row = held_row(partition, token, now_ms)
        if row is None:
            refused.append(number)
            continue
        seq = token[1]
        before_ms = row[7] & LOW48
        partition.granted_at.setdefault(seq, before_ms - partition.spec.lease_timeout_ms)
        partition.write_row(seq, (*row[:7], deadline_ms | row[7] >> HIGH << HIGH, *row[8:]))
        # An earlier deadline needs its own entry; a later one is found when the old one fires.
        if deadline_ms < before_ms:
            partition.due_wheel.add(deadline_ms, seq)
        changed.append(seq)
    partition.note_states(changed)
    return refused


def select(packed: bytes, chosen: Sequence[int]) -> bytes:
    """Some of the packed tokens."""
    size = TOKEN.size
    return b"".join([packed[i * size : (i + 1) * size] for i in chosen])
