"""What is known of bodies by the name of their message: a value for each, kept once for many.

Values are immutable and few, so equal ones are one object, and a body has only its number; what is
the same of consecutive messages is one number (`stretches`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ebbmq.core.stretches import Stretches

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

_NORMAL: Final = 0

V = TypeVar("V", bound="Hashable")
_K = TypeVar("_K", bound="Hashable")


class SharedValues(Generic[V]):
    """A map from location to a value, `normal` where nothing else was set."""

    __slots__ = ("_free", "_numbers", "_rows", "_uses", "_values")

    def __init__(self, normal: V) -> None:
        self._rows = Stretches()
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
        return len(self._rows.stretches(locations)) == 1

    def set(self, location: int, value: V) -> None:
        """Give a location a value; the normal one takes no space."""
        number = self._number(value)
        before = self._rows.set(location, number)
        self._uses[number] += 1
        self._drop_use(before, 1)

    def set_many(self, locations: Sequence[int], value: V) -> None:
        """`set` for many locations."""
        self._renumber(locations, self._number(value))

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
        groups: dict[int, Sequence[int]] = {}
        for number, some in self._rows.stretches(locations):
            _gather(groups, number, some)
        out: list[tuple[V, V, Sequence[int]]] = []
        for number, some in groups.items():
            before = self._values[number]
            after = transition(before)
            if after != before:
                self._renumber(some, self._number(after))
                out.append((before, after, some))
        return out

    def _renumber(self, locations: Sequence[int], number: int) -> None:
        had = self._rows.set_many(locations, number)
        self._uses[number] += sum(had.values())
        for before, count in had.items():
            self._drop_use(before, count)

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
        return [
            (place, values[number])
            for number, some in self._rows.after(location, count)
            for place in some
        ]

    def alike_after(self, location: int, count: int) -> dict[V, Sequence[int]]:
        """`after` by value."""
        found: dict[V, Sequence[int]] = {}
        for number, some in self._rows.after(location, count):
            _gather(found, self._values[number], some)
        return found

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


def _gather(found: dict[_K, Sequence[int]], key: _K, some: Sequence[int]) -> None:
    """Add locations to those of a key; where they are the only ones they stay what they are."""
    before = found.get(key)
    if before is None:
        found[key] = some
    elif isinstance(before, list):
        before.extend(some)
    else:
        found[key] = [*before, *some]
