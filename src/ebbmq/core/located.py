"""Numbers by location where entries are far apart: six bytes an entry, no object each.

A location is any whole number, such as a place in the log. Locations are kept in chunks of 65,536,
each with two arrays, the low bits in ascending order and their numbers. Bodies come in order, so an
entry is nearly always appended; removed entries become 0 and are squeezed out once they are the
majority. Where neighbours are alike, `stretches` takes less.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BITS: Final = 16
_OFFSET: Final = (1 << _CHUNK_BITS) - 1
_SQUEEZE_ENTRIES_MIN: Final = 64


class _Chunk:
    __slots__ = ("live", "numbers", "offsets")

    def __init__(self) -> None:
        self.offsets = array("H")
        self.numbers = array("I")
        self.live = 0

    def squeeze(self) -> None:
        kept = [at for at, number in enumerate(self.numbers) if number]
        self.offsets = array("H", [self.offsets[at] for at in kept])
        self.numbers = array("I", [self.numbers[at] for at in kept])


class Located:
    """A map from location to a number from 1 to 2**32 - 1; 0 stands for no entry."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}

    def __len__(self) -> int:
        return sum(chunk.live for chunk in self._chunks.values())

    def get(self, location: int) -> int:
        """The number of a location."""
        chunk = self._chunks.get(location >> _CHUNK_BITS)
        if chunk is None:
            return 0
        offset = location & _OFFSET
        at = bisect_left(chunk.offsets, offset)
        if at == len(chunk.offsets) or chunk.offsets[at] != offset:
            return 0
        return chunk.numbers[at]

    def set(self, location: int, number: int) -> int:
        """Give a location a number, 0 removes it; return the number it had."""
        chunk = self._chunks.get(location >> _CHUNK_BITS)
        if chunk is None:
            chunk = self._chunks[location >> _CHUNK_BITS] = _Chunk()
        offsets, offset = chunk.offsets, location & _OFFSET
        before = 0
        if not offsets or offset > offsets[-1]:
            at = len(offsets)
        else:
            at = bisect_left(offsets, offset)
            if offsets[at] == offset:
                before = chunk.numbers[at]
                chunk.numbers[at] = number
                chunk.live -= before != 0
        if number:
            if at == len(offsets) or offsets[at] != offset:
                offsets.insert(at, offset)
                chunk.numbers.insert(at, number)
            chunk.live += 1
        else:
            self._maybe_squeeze(location >> _CHUNK_BITS, chunk)
        return before

    def items(self) -> Iterator[tuple[int, int]]:
        """Every (location, number), chunk by chunk in ascending order."""
        for number, chunk in sorted(self._chunks.items()):
            for offset, value in zip(chunk.offsets, chunk.numbers, strict=True):
                if value:
                    yield number << _CHUNK_BITS | offset, value

    def _maybe_squeeze(self, number: int, chunk: _Chunk) -> None:
        entries = len(chunk.offsets)
        if not chunk.live:
            del self._chunks[number]
        elif entries >= _SQUEEZE_ENTRIES_MIN and 2 * chunk.live < entries:
            chunk.squeeze()
