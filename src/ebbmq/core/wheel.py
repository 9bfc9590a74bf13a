"""Exact deadlines of many rows at two to four bytes each.

Theory of operation. A bucket is a ring of rows whose deadlines lie in one stretch of time: 1 ms
wide for deadlines less than 256 ms away, 256 ms wide for those less than 65 s away, and so on by
factors of 256. A bucket is due when its stretch begins. One of 1 ms then holds due rows and nothing
else; the rows of a wider one are spread over narrower ones, for which their deadlines are asked
from the caller: its rows hold them, the wheel does not. So there are at most about 257 buckets per
width, a row moves at most four times, and only the instants at which buckets begin are in a heap.

Nothing is taken out early. A row that was postponed or settled meanwhile follows its new deadline
or is let go when its bucket is spread, else it comes out when it would have, and the caller, who
looks at each row again, adds it again where it must.

Rows that are added one after the other mostly have deadlines in one stretch: they are collected and
put into the bucket of it some at a time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.classes import NEVER
from ebbmq.core.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.uint64]
    DeadlineOf = Callable[[Rows], npt.NDArray[np.integer]]

#: Buckets of level n are 2**(8 n) ms wide and hold rows at least that far away.
_LEVEL_BITS: Final = 8
_LEVEL_FROM_MS: Final = np.array([1 << _LEVEL_BITS * level for level in (1, 2, 3, 4)])
_LEVEL_MAX: Final = len(_LEVEL_FROM_MS)
#: A bucket's key is its first millisecond and its level, so that keys sort by time.
_KEY_BITS: Final = 3
_KEY_LEVEL: Final = (1 << _KEY_BITS) - 1
_FEW_ROWS: Final = 8
_RECENT_ROWS: Final = 256
_NO_ROWS: Final = np.empty(0, dtype=np.uint64)


class Wheel:
    """Rows by deadline; `now_ms` is where time stands when the first rows are added."""

    __slots__ = (
        "_buckets", "_count", "_keys", "_now_ms", "_recent", "_recent_from_ms", "_recent_key",
        "_recent_until_ms", "begins_ms",
    )  # fmt: skip

    def __init__(self, now_ms: int = 0) -> None:
        self._buckets: dict[int, Ring] = {}
        self._keys: list[int] = []
        #: When the first bucket begins: nothing is due before.
        self.begins_ms = NEVER
        self._now_ms = now_ms
        self._count = 0
        #: Rows for the bucket of the stretch that is at hand; it is there already.
        self._recent: list[int] = []
        self._recent_from_ms = self._recent_until_ms = self._recent_key = 0

    def __len__(self) -> int:
        return self._count + len(self._recent)

    def add(self, deadline_ms: int, seq: int) -> None:
        """Have a row come out at its deadline."""
        if not self._recent_from_ms <= deadline_ms < self._recent_until_ms:
            self._reach(deadline_ms)
        recent = self._recent
        recent.append(seq)
        if len(recent) >= _RECENT_ROWS:
            self._settle()

    def add_many(self, deadline_ms: int, seqs: Sequence[int]) -> None:
        """Have rows come out at a deadline they share."""
        if len(seqs):
            self._bucket(self._key(deadline_ms)).extend(seqs)
            self._count += len(seqs)

    def add_each(self, deadlines: npt.NDArray[np.integer], seqs: Rows) -> None:
        """Have rows come out each at its own deadline."""
        if len(seqs) < _FEW_ROWS:
            for deadline_ms, seq in zip(deadlines.tolist(), seqs.tolist(), strict=True):
                self.add(deadline_ms, seq)
            return
        instants = deadlines.astype(np.int64)
        levels = np.searchsorted(_LEVEL_FROM_MS, instants - self._now_ms, side="right")
        shifts = levels * _LEVEL_BITS
        keys = (instants >> shifts << shifts << _KEY_BITS) | levels
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        seqs = seqs[order]
        starts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        for key, rows in zip(keys[[0, *starts]].tolist(), np.split(seqs, starts), strict=True):
            self._bucket(key).extend_array(rows)
        self._count += len(seqs)

    def next_deadline_ms(self) -> int | None:
        """Return an instant before which nothing is due; early for a wide bucket, never late."""
        return self.begins_ms if self._keys else None

    def due(self, now_ms: int, budget: int, deadline_of: DeadlineOf) -> Rows:
        """Take rows whose deadline has come, looking at no more than `budget` rows.

        No row comes out before its deadline. While `next_deadline_ms() <= now_ms` there is more to
        do, even if no row came out; once it is later, every row due at `now_ms` has come out.

        Args:
            now_ms: rows with a deadline up to this one, included, are due.
            budget: rows looked at, whether they come out or only move to a narrower bucket.
            deadline_of: the present deadlines of rows; a row without one, 0, is let go.
        """
        self._now_ms = max(self._now_ms, now_ms)
        self._settle()
        self._recent_until_ms = 0
        out: list[Rows] = []
        while self._keys and self._keys[0] >> _KEY_BITS <= now_ms and budget > 0:
            key = self._keys[0]
            bucket = self._buckets[key]
            rows = bucket.pop_array(budget)
            budget -= len(rows)
            self._count -= len(rows)
            if not bucket:
                heappop(self._keys)
                del self._buckets[key]
                self.begins_ms = self._keys[0] >> _KEY_BITS if self._keys else NEVER
            if key & _KEY_LEVEL:
                rows = self._spread(rows, deadline_of(rows), now_ms)
            out.append(rows)
        if len(out) == 1:
            return out[0]
        return np.concatenate(out) if out else _NO_ROWS

    def _spread(self, rows: Rows, deadlines: npt.NDArray[np.integer], now_ms: int) -> Rows:
        """Move rows that are not due to their buckets, and return the others."""
        is_later = deadlines > now_ms
        self.add_each(deadlines[is_later], rows[is_later])
        return rows[~is_later & (deadlines > 0)]

    def _reach(self, deadline_ms: int) -> None:
        """Collect rows for the stretch of a deadline."""
        self._settle()
        self._recent_key = key = self._key(deadline_ms)
        self._bucket(key)
        self._recent_from_ms = key >> _KEY_BITS
        self._recent_until_ms = self._recent_from_ms + (1 << (key & _KEY_LEVEL) * _LEVEL_BITS)

    def _settle(self) -> None:
        """Put the rows that were collected into their bucket."""
        if self._recent:
            self._bucket(self._recent_key).extend(self._recent)
            self._count += len(self._recent)
            self._recent.clear()

    def _key(self, deadline_ms: int) -> int:
        away = (deadline_ms - self._now_ms) >> _LEVEL_BITS
        if away <= 0:
            return deadline_ms << _KEY_BITS
        level = min((away.bit_length() + _LEVEL_BITS - 1) // _LEVEL_BITS, _LEVEL_MAX)
        shift = level * _LEVEL_BITS
        return (deadline_ms >> shift << shift << _KEY_BITS) | level

    def _bucket(self, key: int) -> Ring:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Ring()
            heappush(self._keys, key)
            self.begins_ms = self._keys[0] >> _KEY_BITS
        return bucket
