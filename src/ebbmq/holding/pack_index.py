"""Where the messages of one store are in its packs: in RAM, 32 bytes each, sorted runs of numbers.

A put adds a run; runs of similar size are merged, so there are few of them and each message is
moved a logarithmic number of times. At most one entry of a key is live: a put or delete first marks
the older one as dead (pack 0), and merging drops the dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq.core.values import distinct_values
from ebbmq.holding.columns import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

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
_FROM_ROW: Final = [name for name in ENTRY.names or () if name != "pack"]


class _Run:
    """Entries sorted by seq."""

    __slots__ = ("dead", "entries", "seqs")

    def __init__(self, seqs: npt.NDArray[np.uint64], entries: Entries) -> None:
        self.seqs = seqs
        self.entries = entries
        self.dead = 0


class PackIndex:
    """(pid, seq) -> pack and place, for one store."""

    def __init__(self) -> None:
        self._partitions: dict[int, list[_Run]] = {}

    def add(self, pack: int, rows: Rows) -> Entries:
        """These messages are in this pack; gives the live entries that they replace."""
        replaced = [np.zeros(0, ENTRY)]
        for pid in distinct_values(rows["pid"]).tolist():
            part = rows[rows["pid"] == pid]
            part = part[np.argsort(part["seq"], kind="stable")]
            entries = entries_of(pack, part)
            seqs = part["seq"].copy()
            runs = self._partitions.setdefault(pid, [])
            replaced.append(_taken(runs, seqs))
            runs.append(_Run(seqs, entries))
            _merge(runs)
        return _live(replaced)

    def find(self, keys: Sequence[Key]) -> Entries:
        """The entries in the order of the keys; pack 0 where there is none."""
        found = np.zeros(len(keys), ENTRY)
        for pid, places, seqs in _by_pid(keys):
            for run in self._partitions.get(pid, ()):
                at, hit = _hits(run, seqs)
                found[places[hit]] = run.entries[at[hit]]
        return found

    def remove(self, keys: Sequence[Key]) -> Entries:
        """Forget the keys; gives the entries that were there."""
        removed = [np.zeros(0, ENTRY)]
        for pid, _, seqs in _by_pid(keys):
            runs = self._partitions.get(pid)
            if runs is not None:
                removed.append(_taken(runs, distinct_values(seqs)))
                _merge(runs)
                if not runs:
                    del self._partitions[pid]
        return _live(removed)

    def live(self) -> Iterator[tuple[int, npt.NDArray[np.uint64], Entries]]:
        """pid, seqs and entries of everything."""
        for pid, runs in self._partitions.items():
            for run in runs:
                alive = run.entries["pack"] != 0
                yield pid, run.seqs[alive], run.entries[alive]


def entries_of(pack: int, rows: Rows) -> Entries:
    """Rows of a pack as entries."""
    entries = np.zeros(len(rows), ENTRY)
    for name in _FROM_ROW:
        entries[name] = rows[name]
    entries["pack"] = pack
    return entries


def _live(parts: list[Entries]) -> Entries:
    found: Entries = np.concatenate(parts)
    alive: Entries = found[found["pack"] != 0]
    return alive


def _by_pid(
    keys: Sequence[Key],
) -> Iterator[tuple[int, npt.NDArray[np.intp], npt.NDArray[np.uint64]]]:
    if isinstance(keys, Keys):
        at = 0
        for pid, numbers in keys.parts:
            yield pid, np.arange(at, at + len(numbers)), numbers.astype(np.uint64)
            at += len(numbers)
        return
    pids = np.fromiter((key.pid for key in keys), np.uint64, len(keys))
    seqs = np.fromiter((key.seq for key in keys), np.uint64, len(keys))
    for pid in distinct_values(pids).tolist():
        places = np.flatnonzero(pids == pid)
        yield pid, places, seqs[places]


def _hits(
    run: _Run, seqs: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    at = np.minimum(np.searchsorted(run.seqs, seqs), len(run.seqs) - 1)
    return at, (run.seqs[at] == seqs) & (run.entries["pack"][at] != 0)


def _taken(runs: list[_Run], seqs: npt.NDArray[np.uint64]) -> Entries:
    """Mark the live entries of these seqs, each given once, as dead and give them."""
    found = np.zeros(len(seqs), ENTRY)
    for run in runs:
        at, hit = _hits(run, seqs)
        found[hit] = run.entries[at[hit]]
        run.entries["pack"][at[hit]] = 0
        run.dead += int(np.count_nonzero(hit))
    return found


def _merge(runs: list[_Run]) -> None:
    for place, run in enumerate(runs):
        if 2 * run.dead > len(run.seqs):
            alive = run.entries["pack"] != 0
            runs[place] = _Run(run.seqs[alive], run.entries[alive])
    runs[:] = [run for run in runs if len(run.seqs)]
    while len(runs) > 1 and len(runs[-2].seqs) < 2 * len(runs[-1].seqs):
        newer, older = runs.pop(), runs.pop()
        seqs = np.concatenate([older.seqs, newer.seqs])
        entries = np.concatenate([older.entries, newer.entries])
        alive = np.flatnonzero(entries["pack"])
        order = alive[np.argsort(seqs[alive], kind="stable")]
        if len(order):
            runs.append(_Run(seqs[order], entries[order]))
