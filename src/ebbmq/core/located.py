"""What is known of bodies by their name or place, packed: six bytes an entry, no object each.

A location is any whole number: a place in the log, or the name of a message. Locations are kept in
chunks of 65,536, each with two arrays, the low bits in ascending order and their numbers. Bodies
come in order, so an entry is nearly always appended; removed entries become 0 and are squeezed out
once they are the majority.

Values proper are immutable and few, so equal ones are kept once and an entry is their number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

_CHUNK_BITS: Final = 16
_OFFSET: Final = (1 << _CHUNK_BITS) - 1
_SQUEEZE_ENTRIES_MIN: Final = 64
_NORMAL: Final = 0
#: Fewer are looked up one by one.
_RUN_MIN: Final = 8


V = TypeVar("V", bound="Hashable")


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

    def get_many(self, locations: Sequence[int]) -> list[int]:
        """The numbers of locations, at a fraction of the price where they are consecutive."""
        found = self._run(locations)
        if found is None:
            if self._has_none(locations):
                return [0] * len(locations)
            return list(map(self.get, locations))
        chunk, at = found
        return chunk.numbers[at : at + len(locations)].tolist()

    def set_many(self, locations: Sequence[int], number: int) -> list[int]:
        """`set` for many; returns the numbers they had."""
        found = self._run(locations)
        if found is None:
            if number and self._append_run(locations, number):
                return [0] * len(locations)
            return [self.set(location, number) for location in locations]
        chunk, at = found
        count = len(locations)
        before = chunk.numbers[at : at + count].tolist()
        chunk.numbers[at : at + count] = array("I", [number]) * count
        chunk.live += before.count(0) if number else before.count(0) - count
        if not number:
            self._maybe_squeeze(locations[0] >> _CHUNK_BITS, chunk)
        return before

    def _run(self, locations: Sequence[int]) -> tuple[_Chunk, int] | None:
        """Where consecutive locations are that all have an entry, if they are such."""
        if not _is_run(locations):
            return None
        chunk = self._chunks.get(locations[0] >> _CHUNK_BITS)
        if chunk is None:
            return None
        offsets, offset = chunk.offsets, locations[0] & _OFFSET
        at = bisect_left(offsets, offset)
        end = at + len(locations) - 1
        # Offsets ascend: where the first and the last are that far apart, all between are there.
        if end >= len(offsets) or offsets[at] != offset or offsets[end] - offset != end - at:
            return None
        return chunk, at

    def _has_none(self, locations: Sequence[int]) -> bool:
        """Whether locations are consecutive and none of them has an entry."""
        if not _is_run(locations):
            return False
        chunk = self._chunks.get(locations[0] >> _CHUNK_BITS)
        if chunk is None:
            return True
        first, last = locations[0] & _OFFSET, locations[-1] & _OFFSET
        return bisect_left(chunk.offsets, first) == bisect_right(chunk.offsets, last)

    def _append_run(self, locations: Sequence[int], number: int) -> bool:
        """Add consecutive locations behind all others of their chunk, if they are such."""
        if not _is_run(locations):
            return False
        first, count = locations[0], len(locations)
        chunk = self._chunks.get(first >> _CHUNK_BITS)
        if chunk is None:
            chunk = self._chunks[first >> _CHUNK_BITS] = _Chunk()
        offset = first & _OFFSET
        if chunk.offsets and chunk.offsets[-1] >= offset:
            return False
        chunk.offsets.extend(range(offset, offset + count))
        chunk.numbers.extend([number] * count)
        chunk.live += count
        return True

    def after(self, location: int, count: int) -> tuple[list[int], list[int]]:
        """At most `count` entries from `location` on, ascending: locations, and their numbers."""
        locations: list[int] = []
        numbers: list[int] = []
        first = location >> _CHUNK_BITS
        for number in sorted(number for number in self._chunks if number >= first):
            chunk, base = self._chunks[number], number << _CHUNK_BITS
            start = bisect_left(chunk.offsets, location - base) if location > base else 0
            # Views of the arrays must not outlive this: an array cannot grow under them.
            values = np.frombuffer(chunk.numbers, dtype=np.uint32)[start:]
            found = np.flatnonzero(values)[: count - len(locations)]
            places = np.frombuffer(chunk.offsets, dtype=np.uint16)[start:][found]
            locations += (places.astype(np.uint64) + np.uint64(base)).tolist()
            numbers += values[found].tolist()
            del values
            if len(locations) == count:
                break
        return locations, numbers

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


def _grouped(locations: Sequence[int], numbers: list[int]) -> Mapping[int, Sequence[int]]:
    groups: dict[int, list[int]] = {}
    for location, number in zip(locations, numbers, strict=True):
        groups.setdefault(number, []).append(location)
    return groups


def _is_run(locations: Sequence[int]) -> bool:
    """Whether many locations are consecutive, and of one chunk."""
    count = len(locations)
    if count < _RUN_MIN:
        return False
    first, last = locations[0], locations[-1]
    return (
        last - first + 1 == count
        and first >> _CHUNK_BITS == last >> _CHUNK_BITS
        and (type(locations) is range or list(locations) == list(range(first, last + 1)))
    )


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

    def get_many(self, locations: Sequence[int]) -> list[V]:
        """The values of locations."""
        values = self._values
        return [values[number] for number in self._rows.get_many(locations)]

    def is_one(self, locations: Sequence[int]) -> bool:
        """Whether all of some locations have the same value."""
        numbers = self._rows.get_many(locations)
        return numbers.count(numbers[0]) == len(numbers)

    def set(self, location: int, value: V) -> None:
        """Give a location a value; the normal one takes no space."""
        number = self._number(value)
        before = self._rows.set(location, number)
        self._uses[number] += 1
        self._drop_use(before, 1)

    def set_many(self, locations: Sequence[int], value: V) -> None:
        """`set` for many locations."""
        number = self._number(value)
        self._uses[number] += len(locations)
        numbers = self._rows.set_many(locations, number)
        if numbers and numbers.count(numbers[0]) == len(numbers):
            self._drop_use(numbers[0], len(numbers))
            return
        for before, count in Counter(numbers).items():
            self._drop_use(before, count)

    def where(self, locations: Sequence[int], is_so: Callable[[V], bool]) -> Sequence[int]:
        """Those locations of whose value something is true; a value is asked about once."""
        numbers = self._rows.get_many(locations)
        kinds = set(numbers)
        chosen = {number for number in kinds if is_so(self._values[number])}
        if not chosen or len(chosen) == len(kinds):
            return locations if chosen else []
        return [each for each, number in zip(locations, numbers, strict=True) if number in chosen]

    def change(
        self, locations: Sequence[int], transition: Callable[[V], V]
    ) -> list[tuple[V, V, Sequence[int]]]:
        """Give locations the value that follows from theirs; a value is asked about once.

        Returns what was, what is, and where, for every value that changed.
        """
        numbers = self._rows.get_many(locations)
        groups: Mapping[int, Sequence[int]]
        if numbers and numbers.count(numbers[0]) == len(numbers):
            groups = {numbers[0]: locations if type(locations) is range else list(locations)}
        else:
            groups = _grouped(locations, numbers)
        out: list[tuple[V, V, Sequence[int]]] = []
        for number, some in groups.items():
            before = self._values[number]
            after = transition(before)
            if after != before:
                self.set_many(some, after)
                out.append((before, after, some))
        return out

    def _number(self, value: V) -> int:
        number = self._numbers.get(value)
        return self._add(value) if number is None else number

    def _drop_use(self, number: int, count: int) -> None:
        self._uses[number] -= count
        if number != _NORMAL and not self._uses[number]:
            # The stale value stays in its slot until the number is given out again.
            del self._numbers[self._values[number]]
            self._free.append(number)

    def counts(self) -> list[tuple[V, int]]:
        """Every value that is not normal, with how many locations have it."""
        return [
            (self._values[number], count)
            for number, count in enumerate(self._uses)
            if number != _NORMAL and count
        ]

    def after(self, location: int, count: int) -> list[tuple[int, V]]:
        """At most `count` (location, value) from `location` on; none: there are no more."""
        values = self._values
        places, numbers = self._rows.after(location, count)
        return [(place, values[number]) for place, number in zip(places, numbers, strict=True)]

    def alike_after(self, location: int, count: int) -> dict[V, list[int]]:
        """`after` by value."""
        places, numbers = self._rows.after(location, count)
        kinds = set(numbers)
        if len(kinds) == 1:
            return {self._values[numbers[0]]: places}
        found: dict[int, list[int]] = {number: [] for number in kinds}
        for place, number in zip(places, numbers, strict=True):
            found[number].append(place)
        return {self._values[number]: some for number, some in found.items()}

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
