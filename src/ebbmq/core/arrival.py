"""One plain message taken in and let into the order: what a batch needs is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.checksum import crc32c
from ebbmq.core.classes import NEVER
from ebbmq.core.facts import ROWS_HEAD
from ebbmq.core.happened import PUBLISHED, Happened
from ebbmq.core.index import PAGE_BITS, SLOT_MASK
from ebbmq.core.row import DURABLE, READY, ROW

if TYPE_CHECKING:
    from ebbmq.core.partition import Partition
    from ebbmq.model import Message

_pack_row: Final = ROW.pack_into
_pack_head: Final = ROWS_HEAD.pack
#: What a PUBLISH fact of one message has before its body.
HEAD_BYTES: Final = ROWS_HEAD.size + ROW.size


def publish_one(
    partition: Partition, message: Message, segment: int, offset: int, now_ms: int
) -> tuple[int, int, bytes]:
    """Take in a message without headers, delay and id, whose body will stand at (segment, offset).

    It is ready at once. Returned are its number, its importance and the payload of its fact, which
    the caller appends. Nothing may be held: messages are let in by the order they came.
    """
    body = message.body
    key = (message.importance, message.ttl_ms, message.decay_rate)
    profile = partition.profiles.get(key) or partition.profile(key)
    importance, rate, ttl_ms, known, class_bits, end_age_ms = profile
    index = partition.index
    seq, place = index.next_seq, partition.next_place
    page = index.pages.get(seq >> PAGE_BITS) or index.page_for(seq)
    at, size = (seq & SLOT_MASK) << 6, len(body)
    buffer = page.buffer
    _pack_row(
        buffer,
        at,
        READY,
        DURABLE if message.durable else 0,
        importance,
        0,
        rate,
        now_ms,
        now_ms + ttl_ms | class_bits if ttl_ms else class_bits,
        0,
        place,
        segment,
        offset,
        size,
        crc32c(body),
        0,
        0,
    )
    row = bytes(buffer[at : at + 64])
    page.live += 1
    page.dirty = True
    index.next_seq, partition.next_place = seq + 1, place + 1
    partition.by_importance[importance] += 1
    partition.depth[READY] += 1
    partition.body_bytes += size
    partition.totals["published"] += 1
    ledger = partition.ledger
    ledger[segment] = ledger.get(segment, 0) + size + 64
    if end_age_ms != NEVER:
        partition.end_wheel.add(now_ms + end_age_ms, seq)
    if partition.tell is not None:
        partition.tell(Happened(PUBLISHED, partition.pid, now_ms, 1, None, row, seq))
    partition.order.extend(known, seq, 1, place, now_ms)
    return seq, importance, _pack_head(crc32c(row), 0) + row + body
