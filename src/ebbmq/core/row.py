"""The 64 bytes the index keeps for each message, in RAM, in checkpoints and in the journal alike.

    0  u8   state            FREE (a row that is not alive is all FREE) .. DYING; IN_DOUBT is
                             added to it where the body is not where it should be
    1  u8   flags            DURABLE DISPLACED RELOCATED FAILED_BEFORE SHARED (by queues)
                             HELD (more than one copy in the log is known of it) ELSEWHERE
                             PRIVILEGED
    2  u8   importance       1..10, as published
    3  u8   reason           4 bits: why a DYING message dies (model.Reason); 0 otherwise;
                             above them how it was published (`origin`): 2 bits confirm level
                             (0 = not known), 1 bit to a topic
    4  u32  rate             decay rate in billionths, the adaptive factor included
    8  u64  enqueued_at_ms   48 bits; above them 16 bits: failures
    16 u64  dead_deadline_ms 48 bits, 0 = none; above them 16 bits: order class
    24 u64  due_ms           48 bits: lease deadline (LEASED), due instant (SCHEDULED), else 0;
                             above them 16 bits: length of the headers block
    32 u64  place            48 bits: position in a band; above them 16 bits: epoch of the lease
                             (LEASED), 1 = keeps its place when it comes due (SCHEDULED)
    40 u32  segment          where headers + body start: segment number of the node's log (that of
                             the row itself where the body is ELSEWHERE) ..
    44 u32  offset           .. and byte offset in it
    48 u32  length           bytes of headers block + body
    52 u32  crc              CRC32C of headers block + body
    56 u32  generation       leases granted so far; a token of an older one is refused
    60 u32  nonce            drawn at each grant, part of the token

Changing it: raise journal.record.VERSION, change `_speedups.c` alike, teach `core.facts` to read
the old layout, add a data directory of the old version to tests/upgrade, redraw docs/format.md.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.speedups import twin

if TYPE_CHECKING:
    from mmap import mmap

    Buffer = mmap | bytearray

FREE: Final = 0
SCHEDULED: Final = 1
REPLICATING: Final = 2
READY: Final = 3
LEASED: Final = 4
DYING: Final = 5
#: Added to any of them: no state of those above, so nobody delivers the message, and time does not
#: act on it. A start finds out anew.
IN_DOUBT: Final = 8
#: How many values a state may have.
STATES: Final = IN_DOUBT + DYING + 1

DURABLE: Final = 1
DISPLACED: Final = 2
RELOCATED: Final = 4
FAILED_BEFORE: Final = 8
SHARED: Final = 16
HELD: Final = 32
ELSEWHERE: Final = 64
PRIVILEGED: Final = 128

#: Of the reason's byte: model.Reason, and how the message was published.
REASON: Final = 0x0F
LEVEL_BIT: Final = 4
LEVEL_MASK: Final = 0x30
TOPIC: Final = 0x40
ORIGIN: Final = LEVEL_MASK | TOPIC

LOW48: Final = (1 << 48) - 1
HIGH: Final = 48

ROW: Final = Struct("<BBBBIQQQQIIIIII")
DTYPE: Final = np.dtype(
    [
        ("state", "u1"),
        ("flags", "u1"),
        ("importance", "u1"),
        ("reason", "u1"),
        ("rate", "<u4"),
        ("enqueued", "<u8"),
        ("dead", "<u8"),
        ("due", "<u8"),
        ("place", "<u8"),
        ("segment", "<u4"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("crc", "<u4"),
        ("generation", "<u4"),
        ("nonce", "<u4"),
    ]
)
assert ROW.size == DTYPE.itemsize

#: Byte offsets of the fields that are written one at a time.
AT_FLAGS: Final = 1
AT_REASON: Final = 3
AT_ENQUEUED: Final = 8
AT_DEAD: Final = 16
AT_DUE: Final = 24
AT_PLACE: Final = 32
AT_SEGMENT: Final = 40
AT_GENERATION: Final = 56

RATE_UNIT: Final = 1_000_000_000

_DUE_PLACE: Final = Struct("<QQ")
_GENERATION_NONCE: Final = Struct("<II")
#: What an ack looks at: state, flags, importance; due, place; segment; length; generation, nonce.
_HELD: Final = Struct("<BBB21xQQI4xI4xII")
assert _HELD.size == ROW.size


@twin
def read_row(buffer: Buffer, at: int) -> tuple[int, ...]:
    """The row at an offset of a page."""
    return ROW.unpack_from(buffer, at)


@twin
def mark_leased(buffer: Buffer, at: int, deadline_ms: int, epoch: int, nonce: int) -> None:
    """Note in the row at an offset of a page that it is leased, once more."""
    due, place = _DUE_PLACE.unpack_from(buffer, at + AT_DUE)
    generation, _ = _GENERATION_NONCE.unpack_from(buffer, at + AT_GENERATION)
    lease = _GENERATION_NONCE.pack(generation + 1, nonce)
    buffer[at] = LEASED
    _DUE_PLACE.pack_into(
        buffer,
        at + AT_DUE,
        deadline_ms | due >> HIGH << HIGH,
        place & LOW48 | (epoch & 0xFFFF) << HIGH,
    )
    buffer[at + AT_GENERATION : at + ROW.size] = lease


@twin
def read_held(  # a row and what a token says of its lease
    buffer: Buffer, at: int, generation: int, epoch: int, nonce: int, now_ms: int
) -> tuple[int, int, int, int] | None:
    """Flags, importance, segment and length of a row whose lease is this one; else None."""
    state, flags, importance, due, place, segment, length, granted, drawn = _HELD.unpack_from(
        buffer, at
    )
    if (
        drawn != nonce
        or granted != generation
        or state != LEASED
        or place >> HIGH != epoch
        or due & LOW48 <= now_ms
    ):
        return None
    return flags, importance, segment, length


def log_bytes(flags: int, length: int) -> int:
    """What a message that shares nothing takes in the log."""
    return ROW.size if flags & ELSEWHERE else ROW.size + length
