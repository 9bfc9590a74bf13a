"""Headers and rows that one flipped bit made unreadable, put right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.checksum import crc32c
from ebbmq.journal import record
from ebbmq.journal.found import Damaged, Found
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import OFFSET_MASK, name_of
from ebbmq.journal.unreadable import read_around

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk

#: CRC32C's, reflected: also what a flip of the last bit changes in a checksum.
_POLYNOMIAL: Final = 0x82F63B78


def mended(disk: Disk, uuid: bytes, item: Damaged) -> Found | Damaged | None:
    """The record that these bytes are if one bit of its header is turned; None if there is none.

    The header's checksum, its length and the record after it must all agree.
    """
    file = disk.open(name_of(item.position >> 32))
    data = read_around(file, item.position & OFFSET_MASK, item.nbytes)
    file.close()
    # A segment that was cut short has fewer bytes than are missing.
    if len(data) < HEADER_BYTES:
        return None
    store = record.seed(uuid)
    head = bytearray(data[:HEADER_BYTES])
    for bit in range(8 * HEADER_BYTES):
        head[bit >> 3] ^= 1 << (bit & 7)
        header = record.parse(store, item.position, bytes(head), 0)
        head[bit >> 3] ^= 1 << (bit & 7)
        if header is not None and record.record_bytes(header.payload_bytes) == item.nbytes:
            break
    else:
        return None
    payload = memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    if crc32c(payload) == header.payload_crc:
        return Found(header, payload)
    return Damaged(item.position, item.nbytes, header, payload)


def unflipped(data: bytes, crc: int) -> bytes | None:
    """These bytes as they were before one bit of them, or of their checksum, was flipped.

    None if it was not one bit. What a flip changes in a checksum depends only on how far from the
    end it is; one of the checksum itself changes a single bit, as no other does.
    """
    change = crc32c(data) ^ crc
    if change.bit_count() == 1:
        return data
    effect = _POLYNOMIAL
    for bit in reversed(range(8 * len(data))):
        if effect == change:
            turned = bytearray(data)
            turned[bit >> 3] ^= 1 << (bit & 7)
            return bytes(turned)
        effect = effect >> 1 ^ (_POLYNOMIAL if effect & 1 else 0)
    return None
