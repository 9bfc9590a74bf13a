"""Numbers by location where neighbours mostly have the same: a stretch of them is kept as one.

Messages are placed, moved and acked in long runs, so what is known of millions of them is a few
stretches. Locations are kept in chunks of 4,096. A chunk has two arrays, where its stretches start
and the number of each; what has no number is a stretch of 0. So the worst case, where no two
neighbours are alike, takes twelve bytes an entry, and a change moves a few kilobytes at most.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.values import as_run, distinct_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

_CHUNK_BITS: Final = 12
_SIZE: Final = 1 << _CHUNK_BITS
_OFFSET: Final = _SIZE - 1
#: Fewer locations of a chunk that are no run are cheaper one by one.
_MANY_MIN: Final = 48

#: A number, and consecutive locations that have it.
Stretch = tuple[int, range]


class _Chunk:
    __slots__ = ("numbers", "starts")

    def __init__(self) -> None:
        self.starts = array("H", (0,))
        self.numbers = array("I", (0,))

    def at(self, offset: int) -> int:
        return self.numbers[bisect_right(self.starts, offset) - 1]

    def at_many(self, offsets: Numbers) -> npt.NDArray[np.uint32]:
        # Views of the arrays must not outlive this: an array cannot grow under them.
        starts = np.frombuffer(self.starts, np.uint16)
        return np.frombuffer(self.numbers, np.uint32)[np.searchsorted(starts, offsets, "right") - 1]

    def is_empty(self) -> bool:
        return len(self.numbers) == 1 and not self.numbers[0]

    def between(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(number, first, stop) of all between, in order, those of 0 too."""
        starts, numbers = self.starts, self.numbers
        at, last = bisect_right(starts, first) - 1, len(starts) - 1
        while first < stop:
            end = stop if at == last else min(starts[at + 1], stop)
            yield numbers[at], first, end
            first, at = end, at + 1

    def put(self, offset: int, number: int) -> int:
        """Give one location a number; return the one it had."""
        starts, numbers = self.starts, self.numbers
        at = bisect_right(starts, offset) - 1
        before, after = numbers[at], at + 1
        stop = starts[after] if after < len(starts) else _SIZE
        if before == number or starts[at] == offset == stop - 1:
            if before != number:
                self.fill(offset, stop, number)
        elif starts[at] == offset:
            starts[at] = offset + 1
            if not at or numbers[at - 1] != number:
                starts.insert(at, offset)
                numbers.insert(at, number)
        elif stop == offset + 1 and stop < _SIZE and numbers[after] == number:
            starts[after] = offset
        else:
            starts.insert(after, offset)
            numbers.insert(after, number)
            if stop != offset + 1:
                starts.insert(after + 1, offset + 1)
                numbers.insert(after + 1, before)
        return before

    def fill(self, first: int, stop: int, number: int) -> None:
        """Give neighbours one number."""
        starts, numbers = self.starts, self.numbers
        at, end = bisect_right(starts, first) - 1, bisect_left(starts, stop)
        ends_at = starts[end] if end < len(starts) else _SIZE
        rest = numbers[end - 1]
        new_starts, new_numbers = [first], [number]
        if starts[at] < first:
            at += 1
        if at and numbers[at - 1] == number:
            new_starts, new_numbers = [], []
        if ends_at > stop:
            if rest != number:
                new_starts.append(stop)
                new_numbers.append(rest)
        elif end < len(starts) and numbers[end] == number:
            end += 1
        starts[at:end] = array("H", new_starts)
        numbers[at:end] = array("I", new_numbers)

    def whole(self) -> npt.NDArray[np.uint32]:
        """The number of every location."""
        ends = np.append(np.frombuffer(self.starts, np.uint16)[1:].astype(np.int64), _SIZE)
        counts = np.diff(ends, prepend=0)
        return np.repeat(np.frombuffer(self.numbers, np.uint32), counts)

    def make(self, whole: npt.NDArray[np.uint32]) -> None:
        """Keep the number of every location."""
        is_start = np.ones(_SIZE, np.bool_)
        np.not_equal(whole[1:], whole[:-1], out=is_start[1:])
        starts = np.flatnonzero(is_start)
        self.starts = array("H", starts.astype(np.uint16).tobytes())
        self.numbers = array("I", whole[starts].tobytes())


class Stretches:
    """A map from location to a number from 1 to 2**32 - 1; 0 stands for no entry."""

    __slots__ = ("_chunks", "_live", "_order")

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}
        #: The numbers of the chunks, ascending.
        self._order: list[int] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def get(self, location: int) -> int:
        """The number of a location."""
        chunk = self._chunks.get(location >> _CHUNK_BITS)
        return 0 if chunk is None else chunk.at(location & _OFFSET)

    def set(self, location: int, number: int) -> int:
        """Give a location a number, 0 removes it; return the number it had."""
        place = location >> _CHUNK_BITS
        chunk = self._chunks.get(place) or self._chunk(place)
        before = chunk.put(location & _OFFSET, number)
        if number:
            self._live += before == 0
        else:
            self._live -= before != 0
            self._drop_if_empty(place, chunk)
        return before

    def get_many(self, locations: Sequence[int]) -> list[int]:
        """The numbers of locations."""
        run = as_run(locations)
        if isinstance(run, range) and run.step == 1:
            out: list[int] = []
            for number, some in self._along(run):
                out += [number] * len(some)
            return out
        if len(locations) < _MANY_MIN:
            return list(map(self.get, locations))
        places = np.array(locations, dtype=np.int64)
        found = np.zeros(len(places), np.uint32)
        for number, where in _by_chunk(places):
            chunk = self._chunks.get(number)
            if chunk is not None:
                found[where] = chunk.at_many(places[where] & _OFFSET)
        return found.tolist()

    def stretches(self, locations: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
        """Locations by their number; a run of them by stretches, in order."""
        if len(locations) == 1:
            return [(self.get(locations[0]), locations)]
        run = as_run(locations)
        if isinstance(run, range) and run.step == 1:
            return [*self._along(run)]
        groups: dict[int, list[int]] = {}
        for location, number in zip(locations, self.get_many(locations), strict=True):
            groups.setdefault(number, []).append(location)
        return list(groups.items())

    def set_many(self, locations: Sequence[int], number: int) -> Mapping[int, int]:
        """`set` for many; returns how many had each number, a location that comes twice once."""
        if len(locations) == 1:
            return {self.set(locations[0], number): 1}
        had: Counter[int] = Counter()
        run = as_run(locations)
        if isinstance(run, range) and run.step == 1:
            for place, first, stop in _parts(run):
                self._fill(place, first, stop, number, had)
        elif len(locations) < _MANY_MIN:
            for location in dict.fromkeys(locations):
                had[self.set(location, number)] += 1
        else:
            places = np.array(locations, dtype=np.int64)
            for place, where in _by_chunk(places):
                some = places[where]
                if len(some) < _MANY_MIN:
                    had.update([self.set(each, number) for each in dict.fromkeys(some.tolist())])
                else:
                    self._fill_some(place, some & _OFFSET, number, had)
        return had

    def after(self, location: int, count: int) -> list[Stretch]:
        """Stretches of at most `count` entries from `location` on, ascending, those of 0 not."""
        found: list[Stretch] = []
        for at in range(bisect_left(self._order, location >> _CHUNK_BITS), len(self._order)):
            place = self._order[at]
            base = place << _CHUNK_BITS
            for number, first, stop in self._chunks[place].between(max(0, location - base), _SIZE):
                if number:
                    stop = min(stop, first + count)  # noqa: PLW2901  # no more than are asked for
                    _add(found, number, base + first, base + stop)
                    count -= stop - first
                    if not count:
                        return found
        return found

    def items(self) -> Iterator[tuple[int, int]]:
        """Every (location, number), ascending, as of the moment its chunk is come to."""
        for place in self._order.copy():
            chunk, base = self._chunks.get(place), place << _CHUNK_BITS
            for number, first, stop in [] if chunk is None else list(chunk.between(0, _SIZE)):
                if number:
                    for offset in range(first, stop):
                        yield base + offset, number

    def _along(self, run: range) -> list[Stretch]:
        """A run of locations by stretches, those of 0 too."""
        found: list[Stretch] = []
        for place, first, stop in _parts(run):
            chunk, base = self._chunks.get(place), place << _CHUNK_BITS
            if chunk is None:
                _add(found, 0, base + first, base + stop)
                continue
            for number, start, end in chunk.between(first, stop):
                _add(found, number, base + start, base + end)
        return found

    def _fill(self, place: int, first: int, stop: int, number: int, had: Counter[int]) -> None:
        chunk, live = self._chunk(place), stop - first if number else 0
        for before, start, end in chunk.between(first, stop):
            had[before] += end - start
            live -= end - start if before else 0
        chunk.fill(first, stop, number)
        self._live += live
        self._drop_if_empty(place, chunk)

    def _fill_some(self, place: int, offsets: Numbers, number: int, had: Counter[int]) -> None:
        chunk = self._chunk(place)
        whole = chunk.whole()
        live = int(np.count_nonzero(whole))
        is_meant = np.zeros(_SIZE, np.bool_)
        is_meant[offsets] = True
        had.update(whole[is_meant].tolist())
        whole[is_meant] = number
        chunk.make(whole)
        self._live += int(np.count_nonzero(whole)) - live
        self._drop_if_empty(place, chunk)

    def _chunk(self, place: int) -> _Chunk:
        chunk = self._chunks.get(place)
        if chunk is None:
            chunk = self._chunks[place] = _Chunk()
            insort(self._order, place)
        return chunk

    def _drop_if_empty(self, place: int, chunk: _Chunk) -> None:
        if chunk.is_empty():
            del self._chunks[place]
            del self._order[bisect_left(self._order, place)]


def _add(found: list[Stretch], number: int, first: int, stop: int) -> None:
    """Add a stretch to those before it; it may go on with the last one."""
    if found:
        before, last = found[-1]
        if before == number and last.stop == first:
            found[-1] = number, range(last.start, stop)
            return
    found.append((number, range(first, stop)))


def _parts(run: range) -> Iterator[tuple[int, int, int]]:
    """A run of locations by chunk: its number, the first offset in it and the one after."""
    at = run.start
    while at < run.stop:
        place, offset = at >> _CHUNK_BITS, at & _OFFSET
        count = min(_SIZE - offset, run.stop - at)
        yield place, offset, offset + count
        at += count


def _by_chunk(places: Numbers) -> Iterator[tuple[int, npt.NDArray[np.int64] | slice]]:
    """Locations by chunk: its number, and where they stand."""
    numbers = places >> _CHUNK_BITS
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None)
        return
    for number in distinct_values(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)
