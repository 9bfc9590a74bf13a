"""Where the messages of one store are in its packs: in RAM, 12 to 28 bytes each, as sorted runs.

A put adds a run; runs of similar size are merged, so there are few of them and each message is
moved a logarithmic number of times. At most one entry of a key is live: a put or delete first marks
the older one as dead (pack 0), and merging drops the dead.

A run has a column for each part of an entry, four bytes a message; what is the same for all of them
is one number, and consecutive numbers of messages are none. Messages without headers take 20 bytes,
those of one length 16, and 4 less where they are consecutive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ebbmq.core.values import distinct_values
from ebbmq.holding.columns import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.holding.contract import Key
    from ebbmq.holding.pack import Rows

#: A row of a pack without its key, with its pack; 0 is no pack.
ENTRY: Final = np.dtype(
    [
        ("pack", "<u4"),
        ("envelope_at", "<u4"),
        ("envelope_bytes", "<u4"),
        ("body_at", "<u4"),
        ("body_bytes", "<u4"),
        ("crc", "<u4"),
    ]
)
Entries = np.ndarray[Any, np.dtype[np.void]]
_NAMES: Final = ENTRY.names or ()
_FROM_ROW: Final = [name for name in _NAMES if name != "pack"]
_PACK: Final = 0
_HALF: Final = 32
Halves = np.ndarray[Any, np.dtype[np.uint32]]
Places = np.ndarray[Any, np.dtype[np.intp]]
Where = npt.NDArray[np.intp] | npt.NDArray[np.bool_]


class _Run:
    """Entries of numbers that share their high half, sorted by the low one."""

    __slots__ = ("_first", "_seqs", "columns", "count", "dead")

    def __init__(self, seqs: Halves, columns: list[Halves | int]) -> None:
        self.count = len(seqs)
        self._first = int(seqs[0]) if self.count else 0
        is_whole = (
            self.count > 0
            and int(seqs[-1]) - self._first == self.count - 1
            and bool((seqs[1:] > seqs[:-1]).all())
        )
        #: None where they are consecutive.
        self._seqs = None if is_whole else seqs
        #: As `ENTRY` has them.
        self.columns = columns
        self.dead = 0

    @property
    def seqs(self) -> Halves:
        if self._seqs is not None:
            return self._seqs
        return np.arange(self._first, self._first + self.count).astype(np.uint32)

    @classmethod
    def of(cls, seqs: Halves, entries: Entries) -> _Run:
        """Entries in the order of their numbers."""
        return cls(seqs, [_column(entries[name]) for name in _NAMES])

    def entries(self, at: Where) -> Entries:
        found = np.empty(np.count_nonzero(at) if at.dtype == np.bool_ else len(at), ENTRY)
        for name, column in zip(_NAMES, self.columns, strict=True):
            found[name] = column if isinstance(column, int) else column[at]
        return found

    def is_live(self) -> npt.NDArray[np.bool_]:
        packs = self.columns[_PACK]
        return np.ones(self.count, np.bool_) if isinstance(packs, int) else packs != 0

    def hits(self, seqs: Halves) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Where numbers would be, and which of them are there."""
        if self._seqs is None:
            away = seqs.astype(np.intp) - self._first
            at = np.clip(away, 0, self.count - 1)
            hit = at == away
        else:
            at = np.minimum(np.searchsorted(self._seqs, seqs), self.count - 1)
            hit = self._seqs[at] == seqs
        packs = self.columns[_PACK]
        return at, hit if isinstance(packs, int) else hit & (packs[at] != 0)

    def kill(self, at: npt.NDArray[np.intp]) -> None:
        packs = self.columns[_PACK]
        if isinstance(packs, int):
            packs = self.columns[_PACK] = np.full(self.count, packs, np.uint32)
        packs[at] = 0
        self.dead += len(at)

    def only(self, order: npt.NDArray[Any]) -> _Run:
        """Some of them."""
        return _Run(
            self.seqs[order],
            [each if isinstance(each, int) else _column(each[order]) for each in self.columns],
        )


class PackIndex:
    """(pid, seq) -> pack and place, for one store."""

    def __init__(self) -> None:
        #: By partition and the high half of the numbers.
        self._runs: dict[tuple[int, int], list[_Run]] = {}

    def add(self, pack: int, rows: Rows) -> Entries:
        """These messages are in this pack; gives the live entries that they replace."""
        replaced = [np.zeros(0, ENTRY)]
        ordered = rows[np.lexsort((rows["seq"], rows["pid"]))]
        for owner, places, seqs in _halved(ordered["pid"], ordered["seq"]):
            runs = self._runs.setdefault(owner, [])
            replaced.append(_taken(runs, seqs))
            runs.append(_Run.of(seqs, entries_of(pack, ordered[places])))
            _merge(runs)
        return _live(replaced)

    def find(self, keys: Sequence[Key]) -> Entries:
        """The entries in the order of the keys; pack 0 where there is none."""
        return self._find(len(keys), _by_owner(keys))

    def find_rows(self, rows: Rows) -> Entries:
        """The entries of the messages that rows of a pack are of."""
        return self._find(len(rows), _halved(rows["pid"], rows["seq"]))

    def _find(self, count: int, asked: Iterator[tuple[tuple[int, int], Places, Halves]]) -> Entries:
        found = np.zeros(count, ENTRY)
        for owner, places, seqs in asked:
            for run in self._runs.get(owner, ()):
                at, hit = run.hits(seqs)
                if hit.any():
                    found[places[hit]] = run.entries(at[hit])
        return found

    def remove(self, keys: Sequence[Key]) -> Entries:
        """Forget the keys; gives the entries that were there."""
        removed = [np.zeros(0, ENTRY)]
        for owner, _, seqs in _by_owner(keys):
            runs = self._runs.get(owner)
            if runs is not None:
                removed.append(_taken(runs, distinct_values(seqs)))
                _merge(runs)
                if not runs:
                    del self._runs[owner]
        return _live(removed)

    def live(self) -> Iterator[tuple[int, npt.NDArray[np.uint64], Entries]]:
        """pid, seqs and entries of everything."""
        for (pid, high), runs in self._runs.items():
            for run in runs:
                alive = run.is_live()
                seqs = run.seqs[alive].astype(np.uint64) | np.uint64(high << _HALF)
                yield pid, seqs, run.entries(alive)


def entries_of(pack: int, rows: Rows) -> Entries:
    """Rows of a pack as entries; where there are no headers, they are nowhere."""
    entries = np.zeros(len(rows), ENTRY)
    for name in _FROM_ROW:
        entries[name] = rows[name]
    entries["envelope_at"][rows["envelope_bytes"] == 0] = 0
    entries["pack"] = pack
    return entries


def _column(values: Halves) -> Halves | int:
    """A column, or the one number that is the same for all."""
    if len(values) and (values == values[0]).all():
        return int(values[0])
    return np.ascontiguousarray(values)


def _live(parts: list[Entries]) -> Entries:
    found: Entries = np.concatenate(parts)
    alive: Entries = found[found["pack"] != 0]
    return alive


def _by_owner(keys: Sequence[Key]) -> Iterator[tuple[tuple[int, int], Places, Halves]]:
    if isinstance(keys, Keys):
        at = 0
        for pid, numbers in keys.parts:
            for owner, places, seqs in _halved(np.full(len(numbers), pid), numbers):
                yield owner, places + at, seqs
            at += len(numbers)
        return
    pids = np.fromiter((key.pid for key in keys), np.uint64, len(keys))
    seqs = np.fromiter((key.seq for key in keys), np.uint64, len(keys))
    yield from _halved(pids, seqs)


def _halved(
    pids: npt.NDArray[Any], seqs: npt.NDArray[Any]
) -> Iterator[tuple[tuple[int, int], Places, Halves]]:
    """Numbers by partition and high half: these, where they stand, and their low halves."""
    highs, lows = seqs >> _HALF, seqs.astype(np.uint32)
    for pid in distinct_values(pids).tolist():
        mine = pids == pid
        for high in distinct_values(highs[mine]).tolist():
            places = np.flatnonzero(mine & (highs == high))
            yield (pid, high), places, lows[places]


def _taken(runs: list[_Run], seqs: Halves) -> Entries:
    """Mark the live entries of these numbers, each given once, as dead and give them."""
    found = np.zeros(len(seqs), ENTRY)
    for run in runs:
        at, hit = run.hits(seqs)
        if hit.any():
            found[hit] = run.entries(at[hit])
            run.kill(at[hit])
    return found


def _merge(runs: list[_Run]) -> None:
    for place, run in enumerate(runs):
        if 2 * run.dead > run.count:
            runs[place] = run.only(run.is_live())
    runs[:] = [run for run in runs if run.count]
    while len(runs) > 1 and runs[-2].count < 2 * runs[-1].count:
        newer, older = runs.pop(), runs.pop()
        merged = _merged(older, newer)
        if merged.count:
            runs.append(merged)


def _merged(older: _Run, newer: _Run) -> _Run:
    """The live entries of both, a column at a time."""
    seqs = np.concatenate([older.seqs, newer.seqs])
    alive = np.flatnonzero(np.concatenate([older.is_live(), newer.is_live()]))
    order = alive[np.argsort(seqs[alive], kind="stable")]
    columns: list[Halves | int] = []
    for left, right in zip(older.columns, newer.columns, strict=True):
        if isinstance(left, int) and isinstance(right, int) and left == right:
            columns.append(left)
            continue
        both = [
            np.full(run.count, each, np.uint32) if isinstance(each, int) else each
            for run, each in ((older, left), (newer, right))
        ]
        columns.append(_column(np.concatenate(both)[order]))
    return _Run(seqs[order], columns)
