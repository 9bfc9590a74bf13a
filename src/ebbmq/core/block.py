"""Rows of a batch looked at together, as eight words of 64 bits each (see `row` for the fields).

Most batches are of messages that are much alike. One look at the bits that some row has, and one at
those that every row has, says which fields are the same in all rows and what is in none of them;
so most questions about a batch are answered without another look at its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core import row as rows
from ebbmq.speedups import twin

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

#: state, flags, importance, reason: 8 bits each; rate: 32.
KIND: Final = 0
#: 48 bits, and 16 above them.
ENQUEUED: Final = 1
DEAD: Final = 2
DUE: Final = 3
PLACE: Final = 4
#: segment and offset, length and crc, generation and nonce: 32 bits each.
WHERE: Final = 5
SIZE: Final = 6
LEASE: Final = 7
WORDS: Final = 8

STATE: Final = 0xFF
FLAGS_BIT: Final = 8
IMPORTANCE_BIT: Final = 16
REASON_BIT: Final = 24
RATE_BIT: Final = 32
BYTE: Final = 0xFF
LOW32: Final = (1 << 32) - 1
ALL: Final = (1 << 64) - 1

#: Rows that are taken as one, and how many of those are worth it.
_WIDE_ROWS: Final = 32
_WIDE_MIN: Final = 8

_or = np.bitwise_or.reduce
_and = np.bitwise_and.reduce


def as_words(buffer: mmap.mmap | bytearray | bytes | memoryview) -> Words:
    """Rows that stand one after the other."""
    return np.frombuffer(buffer, dtype="<u8").reshape(-1, WORDS)


def _reduced(reduce: Callable[..., Words], words: Words) -> Words:
    """One row of all; many rows are taken as few long ones first, which is quicker by far."""
    wide = len(words) // _WIDE_ROWS
    if wide < _WIDE_MIN or not words.flags.c_contiguous:
        return reduce(words, 0)
    cut = wide * _WIDE_ROWS
    first = reduce(words[:cut].reshape(wide, -1), 0).reshape(_WIDE_ROWS, WORDS)
    return reduce(np.concatenate((first, words[cut:])), 0)


@twin
def fold_rows(words: Words) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The bits that some row has and those that every row has, word by word."""
    return tuple(_reduced(_or, words).tolist()), tuple(_reduced(_and, words).tolist())


class Block:
    """Rows as words, and the bits that some and that all of them have."""

    __slots__ = ("every", "some", "words")

    def __init__(self, words: Words) -> None:
        self.words = words
        self.some, self.every = fold_rows(words)

    def __len__(self) -> int:
        return len(self.words)

    def is_same(self, word: int, mask: int = ALL) -> bool:
        """Whether all rows agree in these bits of a word."""
        return not (self.some[word] ^ self.every[word]) & mask

    def all_have(self, word: int, mask: int, value: int) -> bool:
        """Whether these bits of a word are exactly the value in all rows."""
        return self.some[word] & mask == value and self.every[word] & mask == value

    def column(self, word: int, mask: int, shift: int = 0) -> Words:
        """These bits of a word, of every row."""
        found: Words = self.words[:, word] & np.uint64(mask)
        return found >> np.uint64(shift) if shift else found

    def values(self, word: int, mask: int, shift: int = 0) -> list[int]:
        """`column` as numbers."""
        if self.is_same(word, mask):
            return [(self.some[word] & mask) >> shift] * len(self.words)
        values: list[int] = self.column(word, mask, shift).tolist()
        return values

    def total(self, word: int, mask: int) -> int:
        """The sum of these lowest bits of a word."""
        if self.is_same(word, mask):
            return (self.some[word] & mask) * len(self.words)
        return int(self.column(word, mask).sum())

    def as_rows(self) -> npt.NDArray[np.void]:
        """The rows by the names of their fields."""
        found: npt.NDArray[np.void] = self.words.reshape(-1).view(rows.DTYPE)
        return found
