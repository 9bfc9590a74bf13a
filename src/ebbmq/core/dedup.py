"""Producers' ids a partition remembers, so that a publish that is sent twice is stored once.

Packed tables: 24 bytes a slot (128 bits of a keyed hash and the message number), open addressing.
When an id was seen follows from its message number, since numbers rise with time. Tables are of
bounded size and the oldest goes as a whole, so that neither growing nor forgetting ever takes long:
an id is found for the whole window, at most limits.DEDUP_IDS_MAX of them per partition.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

_HASH: Final = Struct("<QQ")
_ENTRY: Final = Struct("<QQQ")
_COUNT: Final = Struct("<I")
_FIRST_SLOTS: Final = 64
_SLOTS_MAX: Final = 1 << 16
_FILL: Final = 0.85
_STAMP_MS: Final = 1_000


class _Table:
    __slots__ = ("count", "high", "last_seq", "low", "seqs", "slots")

    def __init__(self, slots: int = _FIRST_SLOTS) -> None:
        self.slots = slots
        self.high = array("Q", bytes(8 * slots))
        self.low = array("Q", bytes(8 * slots))
        self.seqs = array("Q", bytes(8 * slots))
        self.count = 0
        self.last_seq = 0

    def find(self, high: int, low: int) -> int:
        at = low & self.slots - 1
        while seq := self.seqs[at]:
            if self.low[at] == low and self.high[at] == high:
                return seq
            at = at + 1 & self.slots - 1
        return 0

    def is_full(self) -> bool:
        return self.count >= self.slots * _FILL

    def add(self, high: int, low: int, seq: int) -> None:
        at = low & self.slots - 1
        while self.seqs[at] and (self.low[at] != low or self.high[at] != high):
            at = at + 1 & self.slots - 1
        self.count += not self.seqs[at]
        self.high[at], self.low[at], self.seqs[at] = high, low, seq
        self.last_seq = max(self.last_seq, seq)

    def entries(self) -> Iterator[tuple[int, int, int]]:
        return (entry for entry in zip(self.high, self.low, self.seqs, strict=True) if entry[2])

    def doubled(self) -> _Table:
        larger = _Table(2 * self.slots)
        for entry in self.entries():
            larger.add(*entry)
        return larger


class Dedup:
    """The ids of one partition."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        #: Oldest first; ids are added to the last.
        self._tables = [_Table()]
        #: First message number and last instant of each second in which an id was seen.
        self._stamps: list[tuple[int, int]] = []
        self._stamp_ends_ms = 0

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    def find(self, name: str, now_ms: int) -> int:
        """The number of the message published under this id within the window; 0 if none."""
        high, low = self._hash(name)
        for table in reversed(self._tables):
            seq = table.find(high, low)
            if seq:
                return seq if self._seen_at(seq) + limits.DEDUP_WINDOW_MS > now_ms else 0
        return 0

    def add(self, name: str, seq: int, now_ms: int) -> None:
        """Remember an id."""
        if self._tables[-1].is_full():
            self._make_room(now_ms)
        if not self._stamps or now_ms >= self._stamp_ends_ms:
            self._stamps.append((seq, now_ms))
            self._stamp_ends_ms = now_ms + _STAMP_MS
        else:
            self._stamps[-1] = (self._stamps[-1][0], now_ms)
        self._tables[-1].add(*self._hash(name), seq)

    def _make_room(self, now_ms: int) -> None:
        tables = self._tables
        if tables[-1].slots < _SLOTS_MAX:
            tables[-1] = tables[-1].doubled()
            return
        tables.append(_Table(_SLOTS_MAX))
        oldest_ms = now_ms - limits.DEDUP_WINDOW_MS
        while len(tables) > 1 and (
            len(self) > limits.DEDUP_IDS_MAX or self._seen_at(tables[0].last_seq) <= oldest_ms
        ):
            del tables[0]
        self._stamps = [stamp for stamp in self._stamps if stamp[1] >= oldest_ms]

    def _hash(self, name: str) -> tuple[int, int]:
        digest = blake2b(name.encode(), digest_size=16, key=self._key).digest()
        high, low = _HASH.unpack(digest)
        return high, low

    def _seen_at(self, seq: int) -> int:
        at = bisect_right(self._stamps, (seq, 1 << 62)) - 1
        return self._stamps[at][1] if at >= 0 else 0

    def entries(self) -> bytes:
        """Everything remembered, packed for a checkpoint."""
        parts = [_COUNT.pack(len(self._stamps))]
        parts += [_HASH.pack(*stamp) for stamp in self._stamps]
        for table in self._tables:
            parts += [_ENTRY.pack(*entry) for entry in table.entries()]
        return b"".join(parts)

    def restore(self, packed: bytes | memoryview) -> None:
        """Put back what `entries` packed."""
        (count,) = _COUNT.unpack_from(packed)
        end = _COUNT.size + count * _HASH.size
        self._stamps = [(seq, at) for seq, at in _HASH.iter_unpack(packed[_COUNT.size : end])]
        now_ms = self._stamps[-1][1] if self._stamps else 0
        for entry in sorted(_ENTRY.iter_unpack(packed[end:]), key=lambda known: known[2]):
            if self._tables[-1].is_full():
                self._make_room(now_ms)
            self._tables[-1].add(*entry)
