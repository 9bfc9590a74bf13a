"""Producers' ids a partition remembers, so that a publish that is sent twice is stored once.

An id is 24 bytes (128 bits of a keyed hash and the message number) at the end of its bucket, where
the interpreter's own search for bytes finds it. There are as many buckets as keep them short; they
are split one at a time (linear hashing), and what is too old is dropped from the start of a bucket
that is looked at anyway, so that neither growing nor forgetting ever takes long.

A bucket is replaced and never changed, so it has no room to spare. A checkpoint takes some of them
at a time: all at once, or kept as they were, they would take as much again, and an allocator does
not give all of that back.

When an id was seen follows from its message number, since numbers rise with time: an id is found
for the whole window, at most limits.DEDUP_IDS_MAX of them per queue, which its
partitions share evenly (ADR 0037).
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import blake2b
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import numpy.typing as npt

_NUMBER: Final = Struct("<Q")
_STAMP: Final = Struct("<QQ")
_COUNT: Final = Struct("<I")
_HASH_BYTES: Final = 16
_ENTRY: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("seq", "<u8")])
_ENTRY_BYTES: Final = _ENTRY.itemsize
#: Ids a bucket has on average: with fewer, the bytes beside them count; with more, the search.
_BUCKET_IDS: Final = 16
#: A stamp holds for at most this long, and for at most one of so many parts of all ids.
_STAMP_MS: Final = 1_000
_STAMPS: Final = 64
#: Buckets that are rid of what is too old with each stamp, besides those that ids are added to.
_TIDIED: Final = 256
#: Buckets that are packed or unpacked together: some 200 KB.
_BUCKETS_AT_ONCE: Final = 512
_IDS_AT_ONCE: Final = _BUCKETS_AT_ONCE * _BUCKET_IDS


class Dedup:
    """The ids of one partition."""

    def __init__(self, key: bytes = b"", ids_max: int = limits.DEDUP_IDS_MAX) -> None:
        self._key = key
        self._ids_max = ids_max
        self._stamp_ids = max(1, ids_max // _STAMPS)
        self._buckets = [b""]
        #: Buckets below it were split into two, the second of which is this power of two further.
        self._split, self._power = 0, 1
        self._count = 0
        #: First message number and last instant of each stretch of ids, and how many they are.
        self._stamps: list[tuple[int, int]] = []
        self._stamped: list[int] = []
        self._stamp_ends_ms = 0
        self._last_seq = 0
        self._hand = 0
        self._is_packed = False

    def __len__(self) -> int:
        return self._count

    def find(self, name: str, now_ms: int) -> int:
        """The number of the message published under this id within the window; 0 if none."""
        digest = self._hash(name)
        bucket = self._buckets[self._place(digest)]
        # From the end, as an id that is used again after the window belongs to the later message.
        at = bucket.rfind(digest)
        while at >= 0 and at % _ENTRY_BYTES:
            at = bucket.rfind(digest, 0, at + _HASH_BYTES - 1)
        if at < 0:
            return 0
        seq = int.from_bytes(bucket[at + _HASH_BYTES : at + _ENTRY_BYTES], "little")
        return seq if self._seen_at(seq) + limits.DEDUP_WINDOW_MS > now_ms else 0

    def add(self, name: str, seq: int, now_ms: int) -> None:
        """Remember an id; one that recovery meets again, in its order, changes nothing."""
        digest = self._hash(name)
        entry = digest + _NUMBER.pack(seq)
        if seq <= self._last_seq and entry in self._buckets[self._place(digest)]:
            return
        self._stamp(seq, now_ms)
        place = self._place(digest)
        self._tidy(place)
        self._buckets[place] += entry
        self._count += 1
        if self._count > len(self._buckets) * _BUCKET_IDS and not self._is_packed:
            self._split_one()

    def _stamp(self, seq: int, now_ms: int) -> None:
        if seq <= self._last_seq:
            return
        self._last_seq = seq
        if self._stamps and now_ms < self._stamp_ends_ms and self._stamped[-1] < self._stamp_ids:
            self._stamps[-1] = (self._stamps[-1][0], now_ms)
            self._stamped[-1] += 1
            return
        self._stamps.append((seq, now_ms))
        self._stamped.append(1)
        self._stamp_ends_ms = now_ms + _STAMP_MS
        self._forget(now_ms - limits.DEDUP_WINDOW_MS)
        for _ in range(min(_TIDIED, len(self._buckets))):
            self._hand = (self._hand + 1) % len(self._buckets)
            self._tidy(self._hand)

    def _forget(self, oldest_ms: int) -> None:
        """Let go of stamps, and with them of the ids before the first that is left."""
        most = self._ids_max - self._stamp_ids
        remembered = sum(self._stamped)
        gone = 0
        while gone < len(self._stamps) - 1 and (
            remembered > most or self._stamps[gone][1] <= oldest_ms
        ):
            remembered -= self._stamped[gone]
            gone += 1
        del self._stamps[:gone], self._stamped[:gone]

    def _tidy(self, place: int) -> None:
        bucket = self._buckets[place]
        oldest = self._stamps[0][0] if self._stamps else 0
        gone = 0
        while gone < len(bucket) and _NUMBER.unpack_from(bucket, gone + _HASH_BYTES)[0] < oldest:
            gone += _ENTRY_BYTES
        if gone:
            self._buckets[place] = bucket[gone:]
            self._count -= gone // _ENTRY_BYTES

    def _hash(self, name: str) -> bytes:
        return blake2b(name.encode(), digest_size=_HASH_BYTES, key=self._key).digest()

    def _place(self, digest: bytes) -> int:
        low = int.from_bytes(digest[8:], "little")
        place = low & self._power - 1
        return place if place >= self._split else low & 2 * self._power - 1

    def _split_one(self) -> None:
        bucket = self._buckets[self._split]
        parts: tuple[list[bytes], list[bytes]] = [], []
        for at in range(0, len(bucket), _ENTRY_BYTES):
            low = int.from_bytes(bucket[at + 8 : at + _HASH_BYTES], "little")
            parts[low & self._power != 0].append(bucket[at : at + _ENTRY_BYTES])
        self._buckets[self._split] = b"".join(parts[0])
        self._buckets.append(b"".join(parts[1]))
        self._split += 1
        if self._split == self._power:
            self._split, self._power = 0, 2 * self._power

    def _seen_at(self, seq: int) -> int:
        at = bisect_right(self._stamps, (seq, 1 << 62)) - 1
        return self._stamps[at][1] if at >= 0 else 0

    def entries(self) -> Generator[bytes]:
        """Everything remembered when it is begun, packed for a checkpoint, in parts to be joined.

        Ids may be added between two parts; buckets are not split until it has ended or is closed.
        """
        last_seq = self._last_seq
        self._is_packed = True
        try:
            stamps = [_STAMP.pack(*stamp) for stamp in self._stamps]
            yield b"".join([_COUNT.pack(len(stamps)), *stamps])
            for first in range(0, len(self._buckets), _BUCKETS_AT_ONCE):
                packed = b"".join(self._buckets[first : first + _BUCKETS_AT_ONCE])
                found = np.frombuffer(packed, _ENTRY)
                is_known = found["seq"] <= last_seq
                yield packed if is_known.all() else found[is_known].tobytes()
        finally:
            self._is_packed = False

    def restore(self, packed: bytes | memoryview) -> None:
        """Put back what `entries` packed."""
        (count,) = _COUNT.unpack_from(packed)
        end = _COUNT.size + count * _STAMP.size
        self._stamps = [(seq, at) for seq, at in _STAMP.iter_unpack(packed[_COUNT.size : end])]
        found = np.frombuffer(packed, _ENTRY, offset=end)
        firsts = np.array([seq for seq, _ in self._stamps], "u8")
        stamped = np.zeros(len(firsts) + 1, "i8")
        for part in _parts(found):
            self._last_seq = max(self._last_seq, int(part["seq"].max()))
            which = np.searchsorted(firsts, part["seq"], side="right")
            stamped += np.bincount(which, minlength=len(stamped))
        self._stamped = stamped[1:].tolist()
        self._count = len(found)
        self._fill(found)

    def _fill(self, found: npt.NDArray[np.void]) -> None:
        """Lay all ids out in as many buckets as they would have come to, some at a time."""
        buckets = max(1, -(-len(found) // _BUCKET_IDS))
        self._power = 1 << buckets.bit_length() - 1
        self._split = buckets - self._power
        places = np.concatenate(
            [np.empty(0, "u4"), *(self._places(part["low"]) for part in _parts(found))]
        )
        self._buckets = []
        for first in range(0, buckets, _BUCKETS_AT_ONCE):
            count = min(_BUCKETS_AT_ONCE, buckets - first)
            some = np.flatnonzero((places >= first) & (places < first + count))
            which, ids = places[some] - first, found[some]
            packed = ids[np.lexsort((ids["seq"], which))].tobytes()
            ends = np.cumsum(np.bincount(which, minlength=count)) * _ENTRY_BYTES
            bounds = pairwise([0, *ends.tolist()])
            self._buckets += [packed[start:end] for start, end in bounds]

    def _places(self, lows: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        near = lows & np.uint64(self._power - 1)
        far = lows & np.uint64(2 * self._power - 1)
        return np.where(near < self._split, far, near).astype("u4")


def _parts(found: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """Some ids at a time: what is computed of them all would stay with the allocator."""
    return (found[at : at + _IDS_AT_ONCE] for at in range(0, len(found), _IDS_AT_ONCE))
