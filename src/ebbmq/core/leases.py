"""Leases of a partition, settled: acked, retried, released or extended; `core.grants` grants them.

A token names (partition, row, generation, boot epoch, nonce); only the token of the lease that is
running settles it. Batches are acked page by page, as blocks of rows, as if one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.core.block import (
    ALL,
    BYTE,
    DUE,
    FLAGS_BIT,
    IMPORTANCE_BIT,
    KIND,
    LEASE,
    LOW32,
    PLACE,
    SIZE,
    STATE,
    WHERE,
    Block,
)
from ebbmq.core.grants import MANY
from ebbmq.core.happened import ACKED, RELEASED, Happened
from ebbmq.core.index import PAGE_BITS, SLOT_MASK, THIN_BELOW
from ebbmq.core.row import DURABLE, ELSEWHERE, FREE, HIGH, LEASED, LOW48, ROW, SHARED
from ebbmq.core.tokens import TOKEN
from ebbmq.core.values import distinct_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.core.index import Page, Where
    from ebbmq.core.partition import Partition, Row
    from ebbmq.core.tokens import Token

    _Group = tuple[Where, Page | None, Where]

_ROW_BYTES: Final = ROW.size
_read_held: Final = rows.read_held
#: A token as words of 32 bits: the partition is the first.
_SEQ_HIGH: Final = 1
_SEQ_LOW: Final = 2
_GENERATION: Final = 3
_EPOCH: Final = 4
_NONCE: Final = 5
_TOKEN_WORDS: Final = 6
_NO_STATE: Final = np.uint64(ALL ^ STATE)


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
    if (
        len(packed) >= MANY * TOKEN.size
        and partition.adapt is None
        and not partition.granted_at
        and not partition.accesses.rates
        and _ack_many(partition, packed, now_ms)
    ):
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
    held = _read_held(page.buffer, at, generation, epoch, nonce, now_ms)
    if held is None:
        return False
    flags, importance, segment, length = held
    if partition.tell is not None or partition.granted_at or partition.adapt is not None:
        row = ROW.unpack_from(page.buffer, at)
        duration_ms = partition.observe(seq, row, now_ms)
        partition.tell_end(ACKED, seq, row, now_ms, (duration_ms, 0))
    if flags > DURABLE or partition.accesses.rates:
        partition.forget(seq, ROW.unpack_from(page.buffer, at))
        if not flags & SHARED:
            partition.ledger[segment] -= rows.log_bytes(flags, length)
        elif flags & ELSEWHERE:
            partition.ledger[segment] -= _ROW_BYTES
    else:
        partition.ledger[segment] -= length + _ROW_BYTES
    partition.by_importance[importance] -= 1
    partition.body_bytes -= length
    partition.depth[LEASED] -= 1
    partition.totals["acked"] += 1
    page.buffer[at] = FREE
    page.live = live = page.live - 1
    page.dirty = True
    if live <= THIN_BELOW:
        index.tidy(page)
    return True


def _ack_many(partition: Partition, packed: bytes, now_ms: int) -> bool:
    """Ack a batch whose tokens all hold and whose rows are plain; else change nothing."""
    tokens = np.frombuffer(packed, dtype=">u4").reshape(-1, _TOKEN_WORDS).astype(np.int64)
    seqs = tokens[:, _SEQ_HIGH] << 32 | tokens[:, _SEQ_LOW]
    count, first, last = len(seqs), int(seqs[0]), int(seqs[-1])
    rises = bool((seqs[1:] > seqs[:-1]).all())
    is_run = rises and last - first == count - 1
    if not rises and len(distinct_values(seqs)) != count:
        return False
    page = partition.index.whole_page(first, last) if rises else None
    if page is None:
        groups: list[_Group] = list(partition.index.whole_pages(seqs.view(np.uint64)))
    else:
        slot = first & SLOT_MASK
        slots: Where = slice(slot, slot + count) if is_run else seqs & SLOT_MASK
        groups = [(slice(None), page, slots)]
    held: list[tuple[Page, Where, Block]] = []
    for where, page, slots in groups:
        if page is None:
            return False
        block = _held_rows(page, slots, tokens[where], now_ms)
        if block is None:
            return False
        held.append((page, slots, block))
    if partition.tell is not None:
        _tell_acked(partition, seqs.view(np.uint64), groups, held, now_ms)
    for page, slots, block in held:
        _free_rows(partition, page, slots, block)
    partition.depth[LEASED] -= count
    partition.totals["acked"] += count
    partition.facts.append(
        fact.ack_run(partition.pid, first, count)
        if is_run
        else fact.ack_array(partition.pid, seqs, first if rises else int(seqs.min()))
    )
    return True


def _tell_acked(
    partition: Partition,
    seqs: Words,
    groups: list[_Group],
    held: list[tuple[Page, Where, Block]],
    now_ms: int,
) -> None:
    lease_ms = partition.spec.lease_timeout_ms
    assert partition.tell is not None
    for (where, _, _), (_, _, block) in zip(groups, held, strict=True):
        mine = seqs[where]
        partition.tell(
            Happened(
                ACKED, partition.pid, now_ms, len(mine), mine, block.words, int(mine[0]), lease_ms
            )
        )


def _held_rows(
    page: Page, slots: Where, tokens: npt.NDArray[np.int64], now_ms: int
) -> Block | None:
    """Rows of a page, if these tokens hold their leases and nothing is kept beside them."""
    block = Block(page.copy_rows(slots))
    some = block.some
    if (
        not block.all_have(KIND, STATE, LEASED)
        or some[KIND] >> FLAGS_BIT & BYTE >= rows.DISPLACED
        or not block.is_same(PLACE, ~LOW48)
    ):
        return None
    if block.is_same(DUE, LOW48):
        deadline_ms = some[DUE] & LOW48
    else:
        deadline_ms = int(block.column(DUE, LOW48).min())
    leases = tokens[:, _NONCE] << 32 | tokens[:, _GENERATION]
    epoch = some[PLACE] >> HIGH
    if (
        deadline_ms <= now_ms
        or leases.tobytes() != block.words[:, LEASE].tobytes()
        or (tokens[:, _EPOCH] != epoch).any()
    ):
        return None
    return block


def _free_rows(partition: Partition, page: Page, slots: Where, block: Block) -> None:
    count = len(block)
    if block.is_same(KIND, BYTE << IMPORTANCE_BIT):
        partition.by_importance[block.some[KIND] >> IMPORTANCE_BIT & BYTE] -= count
    else:
        importances = block.column(KIND, BYTE << IMPORTANCE_BIT, IMPORTANCE_BIT)
        for importance, of_it in enumerate(np.bincount(importances.astype(np.int64)).tolist()):
            partition.by_importance[importance] -= of_it
    total = block.total(SIZE, LOW32)
    partition.body_bytes -= total
    if block.is_same(WHERE, LOW32):
        partition.ledger[block.some[WHERE] & LOW32] -= total + rows.ROW.size * count
    else:
        segments, lengths = block.column(WHERE, LOW32), block.column(SIZE, LOW32)
        for segment in distinct_values(segments).tolist():
            held = lengths[segments == segment]
            partition.ledger[segment] -= int(held.sum()) + rows.ROW.size * len(held)
    page.words[slots, KIND] = block.words[:, KIND] & _NO_STATE
    page.live -= count
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


def release(
    partition: Partition, tokens: Iterable[Token], now_ms: int, rest_ms: int = 0
) -> list[int]:
    """Give messages back unharmed: no failure, the place is kept; returns refused indexes.

    With `rest_ms` they are leased only then: their bodies are not at hand.
    """
    refused: list[int] = []
    changed: list[int] = []
    for number, token in enumerate(tokens):
        row = held_row(partition, token, now_ms)
        if row is None:
            refused.append(number)
            continue
        seq = token[1]
        _unused(partition, seq, row, rest_ms, now_ms)
        partition.totals["released"] += 1
        if not partition.end_if_due(seq, row, now_ms):
            if rest_ms:
                partition.schedule(seq, row, now_ms + rest_ms, keep_place=True)
            else:
                partition.make_ready(seq, row, now_ms, keep_place=True)
        if partition.index.state_of(seq) != FREE:
            changed.append(seq)
    partition.note_states(changed)
    return refused


def _unused(partition: Partition, seq: int, row: Row, delay_ms: int, now_ms: int) -> None:
    """A lease ends as if it had not been."""
    started_ms = partition.granted_at.pop(seq, (row[7] & LOW48) - partition.spec.lease_timeout_ms)
    partition.tell_end(RELEASED, seq, row, now_ms, (max(0, now_ms - started_ms), delay_ms))


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
