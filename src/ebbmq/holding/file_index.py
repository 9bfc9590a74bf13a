"""Which copies a file device has and where: in RAM, rebuilt from the log when the device opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.holding.contract import Key, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.holding.contract import Copy

_WORD: Final = 0xFFFF_FFFF


class Place(NamedTuple):
    """Where a payload is in the log, and its checksum."""

    segment: int
    offset: int
    payload_bytes: int
    crc: int


class FileIndex:
    """Key -> place; counts what is live in each segment. One int of 128 bits holds a place."""

    def __init__(self, overhead_bytes: int) -> None:
        """Start empty; each copy counts `overhead_bytes` beside its payload."""
        self._overhead_bytes = overhead_bytes
        self._partitions: dict[tuple[bytes, int], dict[int, int]] = {}
        self.live: dict[int, int] = {}
        self.live_bytes = 0
        self.count = 0

    def __contains__(self, key: Key) -> bool:
        return key.seq in self._partitions.get((key.store, key.pid), ())

    def get(self, key: Key) -> Place | None:
        """Where a copy is."""
        packed = self._partitions.get((key.store, key.pid), {}).get(key.seq)
        return None if packed is None else _unpack(packed)

    def add(self, key: Key, place: Place) -> None:
        """A copy is here, and no more where it was before."""
        self.remove(key)
        segment, offset, payload_bytes, crc = place
        packed = ((segment << 32 | offset) << 32 | payload_bytes) << 32 | crc
        self._partitions.setdefault((key.store, key.pid), {})[key.seq] = packed
        self.live[segment] = self.live.get(segment, 0) + 1
        self.live_bytes += payload_bytes + self._overhead_bytes
        self.count += 1

    def add_many(self, copies: Sequence[Copy], segment: int, offset: int) -> None:
        """`add` for copies whose payloads follow one another from an offset on."""
        start = offset
        partition: dict[int, int] = {}
        of: tuple[bytes, int] | None = None
        base = segment << 96
        for (store, pid, seq), payload, crc, _ in copies:
            if of != (store, pid):
                of = store, pid
                partition = self._partitions.setdefault(of, {})
            if seq in partition:
                self.remove(Key(store, pid, seq))
                partition = self._partitions.setdefault(of, {})
            size = len(payload)
            partition[seq] = base | (offset << 64) | (size << 32) | crc
            offset += size
        self.live[segment] = self.live.get(segment, 0) + len(copies)
        self.live_bytes += offset - start + len(copies) * self._overhead_bytes
        self.count += len(copies)

    def remove(self, key: Key) -> None:
        """A copy is gone; absent is fine."""
        partition = self._partitions.get((key.store, key.pid))
        packed = None if partition is None else partition.pop(key.seq, None)
        if partition is None or packed is None:
            return
        if not partition:
            del self._partitions[key.store, key.pid]
        place = _unpack(packed)
        self.live[place.segment] -= 1
        if not self.live[place.segment]:
            del self.live[place.segment]
        self.live_bytes -= place.payload_bytes + self._overhead_bytes
        self.count -= 1

    def of_store(self, store: bytes) -> list[Stored]:
        """Every copy of a store."""
        return [
            Stored(Key(store, pid, seq), packed >> 32 & _WORD, packed & _WORD)
            for (owner, pid), partition in self._partitions.items()
            if owner == store
            for seq, packed in partition.items()
        ]

    def in_segment(self, segment: int) -> Iterator[tuple[Key, Place]]:
        """Every copy in a segment; looks at all copies there are."""
        for (store, pid), partition in self._partitions.items():
            for seq, packed in partition.items():
                if packed >> 96 == segment:
                    yield Key(store, pid, seq), _unpack(packed)


def _unpack(packed: int) -> Place:
    return Place(packed >> 96, packed >> 64 & _WORD, packed >> 32 & _WORD, packed & _WORD)
