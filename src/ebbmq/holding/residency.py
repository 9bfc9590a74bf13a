"""RAM residency of bodies: a cache above the stored copies, never the record.

Theory of operation. A body is worth its RAM while it waits for delivery, most of all if it is
delivered soon. Each partition has a `Resident`: one dict per importance, seq -> payload, in the
order of admission, and one dict `ahead` for bodies read because they are delivered next although
neither importance nor seq says so (decayed order, retries). A lease takes its body out.

What is evicted is what is farthest from delivery: of the lowest importance first, in it the newest
(in a queue whose messages decay the oldest, because there age costs rank), and `ahead` last of
all. A body which would itself be the farthest is not kept. So in a full FIFO the head stays in RAM
and publishes pass it by; once one of an importance was passed by, the later ones of it are too,
until read-ahead or delivery has caught up with them. That keeps the resident part of a FIFO one
piece beginning at its head, so that counting it tells how far ahead it reaches.

A body whose record is not written yet is pinned in the log's own pending bytes, which a read hands
to the kernel first. So any body may be evicted at any time.

The node's bound has two marks. The sum of all partitions may rise to high water (90 %). An
admission that would cross it makes the node page out: from then on every admission pays twice its
own size out of the largest partition, until the sum is at low water (80 %). No sweep, no stall.

State of a partition with `waiting` messages that are alive and not leased:
    normal  every one of them is in RAM
    paging  not all are, and a bound presses: the partition's share has turned a body away or out
            and it was not down at 80 % of it since, or the node is on its way to low water
    paged   not all are, and there is room, which read-ahead fills as far as it pays

Invariants:
    1. `bytes` of a partition is the sum of its payloads and `CACHE_ENTRY_OVERHEAD_BYTES` each.
    2. `bytes` of the node is the sum of its partitions.
    3. No partition is above its share and the node is not above high water, provided the engine
       asks `has_room` before it publishes to a partition that may not page out.
Not thread-safe: the engine's lock guards it.
"""

from __future__ import annotations

from typing import Final

from ebbmq import limits
from ebbmq.holding.resident import Resident

#: Paging out looks for the largest partition, so it is done by this much at a time.
_PORTION_BYTES: Final = limits.MIB


class Residency:
    """The node's cache: opens a `Resident` per partition and keeps their sum within its bound."""

    __slots__ = ("_ceiling", "_owed", "_portion", "_residents", "bytes", "bytes_max", "high", "low")

    def __init__(self, node_bytes: int = limits.NODE_CACHE_BYTES) -> None:
        self.bytes = 0
        self.bytes_max = node_bytes
        self.high = int(node_bytes * limits.CACHE_HIGH_WATER)
        self.low = int(node_bytes * limits.CACHE_LOW_WATER)
        self._ceiling = self.high
        self._owed = 0
        self._portion = min(_PORTION_BYTES, (self.high - self.low) // 8)
        self._residents: dict[int, Resident] = {}

    def open(
        self,
        pid: int,
        cache_bytes: int,
        enabled: bool,
        page_to_disk: bool,
        *,
        decays: bool = False,
        stored_through: int = 0,
    ) -> Resident:
        """Start caching for a partition.

        Args:
            pid: the partition; opened once until closed.
            cache_bytes: its share of the queue's cache, overhead included.
            enabled: False keeps nothing.
            page_to_disk: False never evicts; the engine asks `has_room` before it accepts.
            decays: messages lose rank with age, so the newest of an importance is the nearest.
            stored_through: the last seq whose body is on the device only, after a restart.
        """
        assert pid not in self._residents
        bound = cache_bytes if enabled else 0
        resident = Resident(self, bound, page_to_disk or not enabled, decays, stored_through)
        self._residents[pid] = resident
        return resident

    def close(self, pid: int) -> None:
        """Forget a partition and its bodies; its `Resident` is not used again."""
        resident = self._residents.pop(pid)
        self.bytes -= resident.bytes
        resident.bytes = 0

    @property
    def entries(self) -> int:
        """Bodies in RAM, all partitions."""
        return sum(resident.entries for resident in self._residents.values())

    @property
    def is_paging(self) -> bool:
        """High water was crossed and low water is not reached yet."""
        return self._ceiling < self.bytes

    @property
    def even_part(self) -> int:
        """What each partition would have if all were equal at low water."""
        return self.low // max(1, len(self._residents))

    def fits(self, cost: int) -> bool:
        """Whether `cost` more bytes need no eviction anywhere."""
        return self.bytes + cost <= self._ceiling

    def make_room(self, cost: int) -> bool:
        """Evict so that `cost` more bytes stay below high water; False if that is not enough."""
        excess = self.bytes + cost - self.high
        if 0 < excess <= self.bytes:
            self._ceiling = self.low
            self._page_out(excess)
        return excess <= 0 or self.bytes + cost <= self.high

    def relieve(self, grown: int) -> None:
        """Pay for having grown above the ceiling: twice, in portions, at once above high water."""
        if self.bytes - grown <= self.low:
            self._ceiling = self.high
        if self.bytes <= self._ceiling:
            return
        self._ceiling = self.low
        self._owed += 2 * grown
        if self._owed >= self._portion or self.bytes > self.high:
            self._page_out(min(max(self._owed, self.bytes - self.high), self.bytes - self.low))
            self._owed = 0

    def _page_out(self, wanted_bytes: int) -> None:
        evictable = (each for each in self._residents.values() if each.page_to_disk)
        for victim in sorted(evictable, key=lambda each: each.bytes, reverse=True):
            wanted_bytes -= victim.evict(wanted_bytes)
            if wanted_bytes <= 0:
                break
