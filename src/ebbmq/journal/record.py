"""The header every record of the journal starts with, and what makes a record believable.

Records are 8-byte aligned; all numbers are little endian::

    0  u16  magic          EB B0
    2  u8   version        1
    3  u8   kind           0 = LINK, the journal's own; others belong to the caller
    4  u32  payload_bytes  without the padding
    8  u32  pid            )
    12 u32  count          ) what the record is about, so that damage can be named exactly
    16 u64  first          )
    24 u64  synced         log position known to be on the device when this record was appended
    32 u32  payload_crc    CRC32C of the payload
    36 u32  header_crc     CRC32C of store uuid (16 bytes), own position (u64), bytes 0..35
    40      payload, then zeros up to a multiple of 8

A position is `segment << 32 | offset`. Because the header's checksum starts from the store and the
position, a message that contains a copy of a log is never taken for records, nor is a record that
was written to the wrong place.

Every segment starts with a LINK without payload, whose `first` is the position at which the
segment before it ended (0 = there is none): so that a missing end is noticed. A log that is closed
or idle ends with one more, whose `synced` proves that everything before it was on the device.

Changing the format: raise VERSION, here and in `_speedups.c`, keep magic, version and header_crc
where they are (this is what lets an older EbbMQ refuse a newer log by name), teach `parse` to read
the old version, add a data directory of the old version to tests/upgrade, redraw docs/format.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from ebbmq.checksum import crc32c
from ebbmq.errors import StorageFailed
from ebbmq.speedups import twin

VERSION: Final = 1
MAGIC: Final = 0xB0EB
MAGIC_BYTES: Final = MAGIC.to_bytes(2, "little")
LINK: Final = 0
UUID_BYTES: Final = 16
HEADER_BYTES: Final = 40
ALIGNMENT: Final = 8
#: By payload length modulo 8.
PADDING: Final = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))

_PLACED: Final = Struct("<QHBBIIIQQI")
_POSITION: Final = Struct("<Q")
_CRC: Final = Struct("<I")
_HEADER: Final = Struct("<HBBIIIQQII")
_CHECKED_BYTES: Final = HEADER_BYTES - _CRC.size
_pack_placed: Final = _PLACED.pack
POSITION_BYTES: Final = _POSITION.size
_pack_crc: Final = _CRC.pack
assert _HEADER.size == HEADER_BYTES
assert _PLACED.size == _POSITION.size + _CHECKED_BYTES

#: kind, pid, count, first, synced.
About = tuple[int, int, int, int, int]


class Header(msgspec.Struct, frozen=True, gc=False):
    """A header that verified at `position`."""

    position: int
    kind: int
    payload_bytes: int
    pid: int
    count: int
    first: int
    synced: int
    payload_crc: int
    #: Position after the record and its padding.
    end: int


def record_bytes(payload_bytes: int) -> int:
    """Bytes a record takes in its segment."""
    return (HEADER_BYTES + ALIGNMENT - 1 + payload_bytes) & -ALIGNMENT


def seed(uuid: bytes) -> int:
    """Where the checksums of a store's headers start from."""
    assert len(uuid) == UUID_BYTES
    return crc32c(uuid)


def pack(store: int, position: int, about: About, payload: bytes) -> bytes:
    """Make the header of a record that will start at `position`; `store` comes from `seed`."""
    kind, pid, count, first, synced = about
    placed = _pack_placed(
        position, MAGIC, VERSION, kind, len(payload), pid, count, first, synced, crc32c(payload)
    )
    return placed[POSITION_BYTES:] + _pack_crc(crc32c(placed, store))


@twin
def pack_whole(  # noqa: PLR0913, PLR0917  # the fields of a header, one by one
    store: int,
    position: int,
    kind: int,
    pid: int,
    count: int,
    first: int,
    synced: int,
    payload: bytes,
) -> bytes:
    """Make a whole record: header, payload and padding."""
    size = len(payload)
    placed = _pack_placed(
        position, MAGIC, VERSION, kind, size, pid, count, first, synced, crc32c(payload)
    )
    whole = placed[POSITION_BYTES:] + _pack_crc(crc32c(placed, store)) + payload
    return whole + PADDING[size & 7] if size & 7 else whole


def parse(store: int, position: int, data: bytes, offset: int) -> Header | None:
    """Read the header at `offset`, or None where no header of this store and position is.

    Raises:
        StorageFailed: a later version of EbbMQ wrote it.
    """
    if offset + HEADER_BYTES > len(data):
        return None
    magic, version, kind, size, pid, count, first, synced, payload_crc, header_crc = (
        _HEADER.unpack_from(data, offset)
    )
    if magic != MAGIC:
        return None
    start = crc32c(_POSITION.pack(position), store)
    if crc32c(data[offset : offset + _CHECKED_BYTES], start) != header_crc:
        return None
    if version != VERSION:
        raise StorageFailed(
            f"the journal has a record of format version {version} at {position:#x}, "
            f"this EbbMQ reads version {VERSION}",
            "open the data directory with the EbbMQ that wrote it, or a later one",
        )
    end = position + record_bytes(size)
    return Header(position, kind, size, pid, count, first, synced, payload_crc, end)
