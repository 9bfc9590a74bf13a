"""Producers' ids a partition remembers, so that a publish that is sent twice is stored once.

A packed table: 24 bytes a slot (128 bits of a keyed hash and the message number), open addressing.
When an id was seen follows from its message number, since numbers rise with time. Two generations
of tables let old ids go without touching each: an id is found for the whole window, at most
limits.DEDUP_IDS_MAX of them per partition.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from hashlib import blake2b
from struct import Struct
from typing import Final

from ebbmq import limits

_HASH: Final = Struct("<QQ")
_GENERATION_IDS: Final = limits.DEDUP_IDS_MAX // 2
_FIRST_SLOTS: Final = 61
_STAMP_MS: Final = 1_000


class _Table:
    __slots__ = ("count", "high", "low", "seqs", "slots")

    def __init__(self, slots: int = _FIRST_SLOTS) -> None:
        self.slots = slots
        self.high = array("Q", bytes(8 * slots))
        self.low = array("Q", bytes(8 * slots))
        self.seqs = array("Q", bytes(8 * slots))
        self.count = 0

    def find(self, high: int, low: int) -> int:
        at = low % self.slots
        while seq := self.seqs[at]:
            if self.low[at] == low and self.high[at] == high:
                return seq
            at = at + 1 if at + 1 < self.slots else 0
        return 0

    def add(self, high: int, low: int, seq: int) -> None:
        if self.count * 100 >= self.slots * 85:
            self._grow()
        at = low % self.slots
        while self.seqs[at] and (self.low[at] != low or self.high[at] != high):
            at = at + 1 if at + 1 < self.slots else 0
        self.count += not self.seqs[at]
        self.high[at], self.low[at], self.seqs[at] = high, low, seq

    def _grow(self) -> None:
        larger = _Table(self.slots * 5 // 4 | 1)
        for high, low, seq in zip(self.high, self.low, self.seqs, strict=True):
            if seq:
                larger.add(high, low, seq)
        self.slots, self.high, self.low, self.seqs = (
            larger.slots, larger.high, larger.low, larger.seqs,
        )  # fmt: skip


class Dedup:
    """The ids of one partition."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._current = _Table()
        self._former = _Table()
        self._since_ms = 0
        #: First message number and last instant of each second in which an id was seen.
        self._stamps: list[tuple[int, int]] = []
        self._stamp_ends_ms = 0

    def __len__(self) -> int:
        return self._current.count + self._former.count

    def find(self, name: str, now_ms: int) -> int:
        """The number of the message published under this id within the window; 0 if none."""
        if not self._current.count and not self._former.count:
            return 0
        high, low = self._hash(name)
        seq = self._current.find(high, low) or self._former.find(high, low)
        if seq and self._seen_at(seq) + limits.DEDUP_WINDOW_MS > now_ms:
            return seq
        return 0

    def add(self, name: str, seq: int, now_ms: int) -> None:
        """Remember an id."""
        self._rotate(now_ms)
        if not self._stamps or now_ms >= self._stamp_ends_ms:
            self._stamps.append((seq, now_ms))
            self._stamp_ends_ms = now_ms + _STAMP_MS
        else:
            self._stamps[-1] = (self._stamps[-1][0], now_ms)
        self._current.add(*self._hash(name), seq)

    def _hash(self, name: str) -> tuple[int, int]:
        digest = blake2b(name.encode(), digest_size=16, key=self._key).digest()
        high, low = _HASH.unpack(digest)
        return high, low

    def _rotate(self, now_ms: int) -> None:
        if self._current.count == 0:
            self._since_ms = now_ms
        aged = now_ms - self._since_ms >= limits.DEDUP_WINDOW_MS
        if aged or self._current.count >= _GENERATION_IDS:
            self._former, self._current = self._current, _Table()
            self._since_ms = now_ms
            oldest = now_ms - 2 * limits.DEDUP_WINDOW_MS
            self._stamps = [stamp for stamp in self._stamps if stamp[1] >= oldest]

    def _seen_at(self, seq: int) -> int:
        at = bisect_right(self._stamps, (seq, 1 << 62)) - 1
        return self._stamps[at][1] if at >= 0 else 0

    def entries(self) -> bytes:
        """Everything remembered, packed for a checkpoint."""
        parts = [Struct("<I").pack(len(self._stamps))]
        parts += [_HASH.pack(*stamp) for stamp in self._stamps]
        for table in (self._former, self._current):
            for high, low, seq in zip(table.high, table.low, table.seqs, strict=True):
                if seq:
                    parts.append(Struct("<QQQ").pack(high, low, seq))
        return b"".join(parts)

    def restore(self, packed: bytes | memoryview) -> None:
        """Put back what `entries` packed."""
        (count,) = Struct("<I").unpack_from(packed)
        end = 4 + count * _HASH.size
        self._stamps = [(seq, at) for seq, at in _HASH.iter_unpack(packed[4:end])]
        for high, low, seq in Struct("<QQQ").iter_unpack(packed[end:]):
            self._former.add(high, low, seq)
