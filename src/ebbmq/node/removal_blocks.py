"""Blocks of the removals log: whatever is damaged between them, those that are whole are found.

block: [u32 magic][u32 records][u64 journal position][u32 crc of records][u32 0][record 56]*
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core.facts import REMOVAL_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_MAGIC: Final = 0x52424245
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "little")
_HEAD: Final = Struct("<IIQII")
_SEARCHED_AT_ONCE: Final = 65_536


class Block(NamedTuple):
    """Where a block is in its file, the journal position it came from, and what it holds."""

    start: int
    end: int
    position: int
    records: npt.NDArray[np.void]


def pack(records: bytes, position: int) -> list[bytes]:
    """The bytes of a block."""
    count = len(records) // REMOVAL_DTYPE.itemsize
    return [_HEAD.pack(_MAGIC, count, position, crc32c(records), 0), records]


def find_blocks(data: bytes | memoryview) -> Iterator[Block]:
    """Every block that is whole, in order; what is between two of them is damaged."""
    at = 0
    while at + _HEAD.size <= len(data):
        block = _block_at(data, at)
        if block is None:
            at = _next_magic(data, at + 1)
        else:
            yield block
            at = block.end


def unreadable_bytes(data: bytes | memoryview) -> tuple[int, int]:
    """How much is damaged before the last block that is whole, and how much follows that."""
    end = damaged = 0
    for block in find_blocks(data):
        damaged += block.start - end
        end = block.end
    return damaged, len(data) - end


def _block_at(data: bytes | memoryview, at: int) -> Block | None:
    magic, count, position, crc, _ = _HEAD.unpack_from(data, at)
    start, end = at + _HEAD.size, at + _HEAD.size + count * REMOVAL_DTYPE.itemsize
    if magic != _MAGIC or end > len(data) or crc32c(data[start:end]) != crc:
        return None
    return Block(at, end, position, np.frombuffer(data[start:end], dtype=REMOVAL_DTYPE))


def _next_magic(data: bytes | memoryview, at: int) -> int:
    """Where a block may begin, from a byte on; the end of the data where none does."""
    while at < len(data):
        found = bytes(data[at : at + _SEARCHED_AT_ONCE]).find(_MAGIC_BYTES)
        if found >= 0:
            return at + found
        at += _SEARCHED_AT_ONCE - len(_MAGIC_BYTES) + 1
    return len(data)
