"""What is known of bodies by their place in the log, packed: eight bytes an entry, no object each.

A location is `segment << 32 | offset`. Per segment there are two arrays, offsets in ascending order
and their numbers. Bodies come in the order of the log, so an entry is nearly always appended;
removed entries become 0 and are squeezed out once they are the majority.

Values proper are immutable and few, so equal ones are kept once and an entry is their number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

_OFFSET: Final = 0xFFFF_FFFF
_SQUEEZE_ENTRIES_MIN: Final = 64
_NORMAL: Final = 0


V = TypeVar("V", bound="Hashable")


class _Segment:
    __slots__ = ("live", "numbers", "offsets")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.numbers = array("I")
        self.live = 0

    def squeeze(self) -> None:
        kept = [at for at, number in enumerate(self.numbers) if number]
        self.offsets = array("I", [self.offsets[at] for at in kept])
        self.numbers = array("I", [self.numbers[at] for at in kept])


class Located:
    """A map from location to a number from 1 to 2**32 - 1; 0 stands for no entry."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}

    def __len__(self) -> int:
        return sum(segment.live for segment in self._segments.values())

    def get(self, location: int) -> int:
        """The number of a location."""
        segment = self._segments.get(location >> 32)
        if segment is None:
            return 0
        offset = location & _OFFSET
        at = bisect_left(segment.offsets, offset)
        if at == len(segment.offsets) or segment.offsets[at] != offset:
            return 0
        return segment.numbers[at]

    def set(self, location: int, number: int) -> int:
        """Give a location a number, 0 removes it; return the number it had."""
        segment = self._segments.get(location >> 32)
        if segment is None:
            segment = self._segments[location >> 32] = _Segment()
        offsets, offset = segment.offsets, location & _OFFSET
        before = 0
        if not offsets or offset > offsets[-1]:
            at = len(offsets)
        else:
            at = bisect_left(offsets, offset)
            if offsets[at] == offset:
                before = segment.numbers[at]
                segment.numbers[at] = number
                segment.live -= before != 0
        if number:
            if at == len(offsets) or offsets[at] != offset:
                offsets.insert(at, offset)
                segment.numbers.insert(at, number)
            segment.live += 1
        else:
            self._maybe_squeeze(location >> 32, segment)
        return before

    def items(self) -> Iterator[tuple[int, int]]:
        """Every (location, number), segment by segment in ascending order."""
        for number, segment in sorted(self._segments.items()):
            for offset, value in zip(segment.offsets, segment.numbers, strict=True):
                if value:
                    yield number << 32 | offset, value

    def _maybe_squeeze(self, number: int, segment: _Segment) -> None:
        entries = len(segment.offsets)
        if not segment.live:
            del self._segments[number]
        elif entries >= _SQUEEZE_ENTRIES_MIN and 2 * segment.live < entries:
            segment.squeeze()


class SharedValues(Generic[V]):
    """A map from location to a value, `normal` where nothing else was set."""

    __slots__ = ("_free", "_numbers", "_rows", "_uses", "_values")

    def __init__(self, normal: V) -> None:
        self._rows = Located()
        self._values = [normal]
        self._uses = [0]
        self._numbers: dict[V, int] = {normal: _NORMAL}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, location: int) -> V:
        """The value of a location."""
        return self._values[self._rows.get(location)]

    def set(self, location: int, value: V) -> None:
        """Give a location a value; the normal one takes no space."""
        number = self._numbers.get(value)
        if number is None:
            number = self._add(value)
        before = self._rows.set(location, number)
        self._uses[number] += 1
        self._uses[before] -= 1
        if before != _NORMAL and not self._uses[before]:
            # The stale value stays in its slot until the number is given out again.
            del self._numbers[self._values[before]]
            self._free.append(before)

    def items(self) -> Iterator[tuple[int, V]]:
        """Every (location, value) that is not normal, in ascending order."""
        for location, number in self._rows.items():
            yield location, self._values[number]

    def _add(self, value: V) -> int:
        if self._free:
            number = self._free.pop()
            self._values[number] = value
        else:
            number = len(self._values)
            self._values.append(value)
            self._uses.append(0)
        self._numbers[value] = number
        return number
