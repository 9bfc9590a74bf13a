"""What the rows of a plan are worth, in as much memory however many there are.

Up to some hundred thousand rows each is remembered by its value. Of more, neighbours are counted
together, about as many in each entry, and told to be worth what the best of them is. Who takes all
entries above a value has all rows above it, and each time entries are joined at most an entry more:
of ten million rows, six in ten thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

#: 24 bytes each; of ten million rows an entry is about eighty.
ENTRIES_MAX: Final = 131_072


class Ranked(NamedTuple):
    """Entries, the most valuable first; their bytes as numbers that no plan overflows."""

    values: Floats
    counts: Ints
    sizes: Floats


class Worth:
    """Rows by what they are worth, with the bytes they are to write."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._parts: list[Ranked] = []
        self._entries = 0

    def add(self, values: Floats, sizes: Ints) -> None:
        """Take more rows; one that is worth no number is worth less than all others."""
        known = np.where(np.isnan(values), -np.inf, values)
        self._put(Ranked(known, np.ones(len(known), np.int64), sizes.astype(np.float64)))

    def ranked(self) -> Ranked:
        """All rows."""
        return all_ranked([self])

    def _put(self, more: Ranked) -> None:
        self._parts.append(more)
        self._entries += len(more.values)
        if self._entries > 2 * self._entries_max:
            self._parts = [self._squeezed(self.ranked())]
            self._entries = len(self._parts[0].values)

    def _squeezed(self, every: Ranked) -> Ranked:
        """Entries of neighbours: about as many rows in each."""
        total = int(every.counts.sum())
        before = np.cumsum(every.counts) - every.counts
        which = before * self._entries_max // total
        firsts = np.flatnonzero(np.diff(which, prepend=-1))
        return Ranked(
            every.values[firsts],
            np.add.reduceat(every.counts, firsts),
            np.add.reduceat(every.sizes, firsts),
        )

    @property
    def parts(self) -> list[Ranked]:
        """As they came."""
        return self._parts


def all_ranked(some: Iterable[Worth]) -> Ranked:
    """All rows of several, the most valuable first."""
    parts = [part for worth in some for part in worth.parts]
    if not parts:
        return Ranked(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    values, counts, sizes = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(-values, kind="stable")
    return Ranked(values[order], counts[order], sizes[order])
