"""The bodies of one partition that are in RAM; `ebbmq.holding.residency` says by which rules."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.holding.residency import Residency

State = Literal["normal", "paging", "paged"]

_OVERHEAD: Final = limits.CACHE_ENTRY_OVERHEAD_BYTES
#: Nothing ahead of this many bytes is read early, however large the cache.
WINDOW_BYTES_MAX: Final = 32 * limits.MIB
#: How deep to look while no body's size has been seen.
DEPTH_OF_UNKNOWN: Final = 16
#: How deep to look when a body was missed although many are resident, such as after a retry.
DEPTH_AFTER_MISS: Final = 1_024
#: The oldest entries are evicted in runs, because finding the front of a dict is not free.
_RUN_SHARE: Final = 32


class Resident:
    """The bodies of one partition that are in RAM, and what came of asking for them."""

    __slots__ = (
        "_ahead",
        "_bands",
        "_behind",
        "_cost_mean",
        "_decays",
        "_depth",
        "_low_bytes",
        "_missed",
        "_node",
        "_pressed",
        "_reached",
        "bytes",
        "bytes_max",
        "evicted",
        "hits",
        "misses",
        "page_to_disk",
        "window_bytes",
    )

    def __init__(
        self, node: Residency, bytes_max: int, page_to_disk: bool, decays: bool, stored_through: int
    ) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.page_to_disk = page_to_disk
        #: How far to read ahead, unless the node pages out.
        self.window_bytes = min(bytes_max // 2, WINDOW_BYTES_MAX)
        #: With less than this more is to be read: what is left must last until it has been.
        self._low_bytes = self.window_bytes * 3 // 4
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        self._node = node
        self._decays = decays
        # One dict per importance; the place of importance 0, which nobody has, is `ahead`.
        self._bands: tuple[dict[int, bytes], ...] = tuple(
            {} for _ in range(limits.IMPORTANCE_MAX + 1)
        )
        self._ahead = self._bands[0]
        # importance -> newest seq that was passed by; what is published after it is, too
        self._behind: dict[int, int] = {}
        if stored_through and not decays:
            self._behind = dict.fromkeys(range(1, limits.IMPORTANCE_MAX + 1), stored_through)
        self._cost_mean = 0
        self._missed = False
        self._pressed = False
        # How deep was looked last, and the number of takes that comes to the end of that.
        self._depth = 0
        self._reached = 0

    @property
    def entries(self) -> int:
        """Bodies in RAM."""
        return sum(map(len, self._bands))

    @property
    def is_low(self) -> bool:
        """Whether so little of what is delivered next is left that `wanted` is worth a look."""
        if self._decays:
            return 2 * self._reach() <= self._depth
        return self.bytes < self._low_bytes

    def _reach(self) -> int:
        """How many of those delivered next are in RAM, as far as is known of a decaying order."""
        return self._reached - self.hits - self.misses

    def state(self, waiting: int) -> State:
        """Residency of the `waiting` messages that are alive and not leased (see the module)."""
        if self.entries >= waiting:
            return "normal"
        if self.bytes <= self.bytes_max * limits.CACHE_LOW_WATER:
            self._pressed = False
        return "paging" if self._pressed or self._node.is_paging else "paged"

    def has_room(self, payload_bytes: int, count: int = 1) -> bool:
        """Whether `count` more bodies of `payload_bytes` in all may be published.

        Always True where bodies may be paged out; otherwise others are evicted for them first.
        """
        if self.page_to_disk:
            return True
        cost = payload_bytes + count * _OVERHEAD
        return self.bytes + cost <= self.bytes_max and self._node.make_room(cost)

    def take(self, seq: int, importance: int) -> bytes | None:
        """Hand over the body of a message that is being leased; None means read it."""
        payload = self._bands[importance].pop(seq, None)
        if payload is None:
            payload = self._ahead.pop(seq, None)
            if payload is None:
                self._miss(seq, importance)
                return None
        cost = len(payload) + _OVERHEAD
        self.bytes -= cost
        self._node.bytes -= cost
        self.hits += 1
        return payload

    def take_many(self, seqs: Sequence[int], importances: Sequence[int]) -> list[bytes | None]:
        """`take` for a batch, at half the price a message."""
        bands, importance = self._bands, importances[0] if importances else 0
        payloads: list[bytes | None]
        if importances.count(importance) == len(importances):
            pop = bands[importance].pop
            payloads = [pop(seq, None) for seq in seqs]
        else:
            payloads = [
                bands[importance].pop(seq, None)
                for seq, importance in zip(seqs, importances, strict=True)
            ]
        missing = 0
        if None in payloads:
            pop = self._ahead.pop
            for at, payload in enumerate(payloads):
                if payload is None:
                    payloads[at] = found = pop(seqs[at], None)
                    if found is None:
                        missing += 1
                        self._miss(seqs[at], importances[at])
        taken = len(payloads) - missing
        cost = sum(map(len, filter(None, payloads))) + taken * _OVERHEAD
        self.bytes -= cost
        self._node.bytes -= cost
        self.hits += taken
        return payloads

    def get(self, seq: int, importance: int) -> bytes | None:
        """Look at a body without moving or counting it."""
        payload = self._bands[importance].get(seq)
        return self._ahead.get(seq) if payload is None else payload

    def drop(self, seq: int, importance: int) -> None:
        """Let go of the body of a message that left without being leased; absent is fine."""
        payload = self._bands[importance].pop(seq, None)
        if payload is None:
            payload = self._ahead.pop(seq, None)
            if payload is None:
                return
        cost = len(payload) + _OVERHEAD
        self.bytes -= cost
        self._node.bytes -= cost

    def admit_many(
        self, first_seq: int, importances: Sequence[int], payloads: Sequence[bytes]
    ) -> None:
        """Keep bodies just published, with consecutive seqs, as far as they pay."""
        count = len(payloads)
        if not count:
            return
        cost = sum(map(len, payloads)) + count * _OVERHEAD
        seqs = range(first_seq, first_seq + count)
        if self.page_to_disk and (
            self._behind or self.bytes + cost > self.bytes_max or not self._node.fits(cost)
        ):
            self._admit_some(seqs, importances, payloads)
            return
        importance = importances[0]
        if importances.count(importance) == count:
            self._bands[importance].update(zip(seqs, payloads, strict=True))
        else:
            bands = self._bands
            for seq, importance, payload in zip(seqs, importances, payloads, strict=True):
                bands[importance][seq] = payload
        self.bytes += cost
        self._node.bytes += cost

    def admit_one(self, seq: int, importance: int, payload: bytes) -> None:
        """`admit_many` for one body."""
        cost = len(payload) + _OVERHEAD
        if self.page_to_disk and (
            self._behind or self.bytes + cost > self.bytes_max or not self._node.fits(cost)
        ):
            self._admit_some(range(seq, seq + 1), (importance,), (payload,))
            return
        self._bands[importance][seq] = payload
        self.bytes += cost
        self._node.bytes += cost

    def admit(self, seq: int, importance: int, payload: bytes) -> bool:
        """Keep a body read ahead; False means there is no room for it nor for what follows it.

        Call in delivery order, and only while the message waits: nobody would take it otherwise.
        """
        band = self._bands[importance]
        if seq in band or seq in self._ahead:
            return True
        cost = len(payload) + _OVERHEAD
        if cost > self.bytes_max or not self.has_room(len(payload)):
            self._cost_mean = self._cost_mean or cost
            return False
        if self._behind.get(importance, seq + 1) <= seq:
            del self._behind[importance]
        is_last = not self._decays and (not band or next(reversed(band)) < seq)
        chosen = band if is_last else self._ahead
        chosen[seq] = payload
        evicted = self.evicted
        self._grow(cost)
        if self.evicted == evicted or seq in chosen:
            return True
        self.evicted -= 1
        return False

    def admit_ahead(self, keys: Sequence[tuple[int, int]], payloads: Sequence[bytes]) -> bool:
        """`admit` for many (seq, importance); False means there is no room for what follows."""
        if not keys:
            return True
        seqs = [seq for seq, _ in keys]
        cost = sum(map(len, payloads)) + len(payloads) * _OVERHEAD
        band = self._ahead if self._decays else self._line_of(keys, seqs)
        if (
            band is None
            or not self.page_to_disk
            or not self._node.fits(cost)
            or not self._has_share_for(cost)
            or len(self.missing(keys)) < len(keys)
        ):
            pairs = zip(keys, payloads, strict=True)
            return all(self.admit(*key, payload) for key, payload in pairs)
        importance = keys[0][1]
        if self._behind.get(importance, seqs[-1] + 1) <= seqs[-1]:
            del self._behind[importance]
        band.update(zip(seqs, payloads, strict=True))
        self._cost_mean = self._cost_mean or -(-cost // len(seqs))
        self.bytes += cost
        self._node.bytes += cost
        return True

    def _line_of(
        self, keys: Sequence[tuple[int, int]], seqs: Sequence[int]
    ) -> dict[int, bytes] | None:
        """Where bodies belong that all follow, in their order, those there are; else None."""
        importance = keys[0][1]
        band = self._bands[importance]
        if (
            self._ahead
            or (band and next(reversed(band)) >= seqs[0])
            or seqs != sorted(seqs)
            or any(other != importance for _, other in keys)
        ):
            return None
        return band

    def _has_share_for(self, cost: int) -> bool:
        """Whether `cost` more bytes are within the share once others of a decaying queue went."""
        least = self.bytes_max - cost
        if self.bytes > least >= 0 and self._decays:
            self._pressed = True
            self._evict_published(least)
        return self.bytes <= least

    def wanted(self, ready_count: int, depth_max: int = limits.LEASE_COUNT_MAX) -> int:
        """How deep from the head of the order to look for bodies to read now; 0 = enough is here.

        The window is half of the cache or 32 MiB, less while the node pages out. It is looked
        through when less than 3/4 of it is resident, its near end when a lease has missed. Of a
        decaying queue, whose resident bodies may be of messages that are far from delivery, it is
        looked through when half of those that were looked at are delivered.
        One read-ahead at a time: ask again when what was `missing` has been admitted.
        """
        entries = self.entries
        if entries:
            self._cost_mean = -(-self.bytes // entries)
        else:
            self._give_back_tables()
        if entries >= ready_count:
            self._behind.clear()
        if self._cost_mean:
            depth = min(ready_count, self._window_bytes() // self._cost_mean)
        else:
            depth = min(ready_count, DEPTH_OF_UNKNOWN) if self.bytes_max else 0
        if self._decays and entries < ready_count:
            is_enough = 2 * self._reach() > depth
        else:
            is_enough = 4 * entries >= 3 * depth
        self._depth = depth = min(depth, depth_max)
        if is_enough:
            depth = min(depth, DEPTH_AFTER_MISS) if self._missed else 0
        self._missed = False
        self._reached = max(self._reached, self.hits + self.misses + depth)
        return depth

    def missing(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those (seq, importance) whose bodies are not in RAM, in the order given."""
        bands, ahead = self._bands, self._ahead
        return [key for key in wanted if key[0] not in bands[key[1]] and key[0] not in ahead]

    def evict(self, wanted_bytes: int) -> int:
        """Give up at least `wanted_bytes` from the far end, or all there is; return the bytes."""
        before = self.bytes
        least = before - wanted_bytes
        self._evict_published(least)
        if self.bytes > least and self._ahead:
            self._evict_newest(self._ahead, least)
        return before - self.bytes

    def _evict_published(self, least: int) -> None:
        """Give up bodies that were not read ahead of the order, down to `least` bytes in all."""
        for importance in range(1, len(self._bands)):
            band = self._bands[importance]
            if self.bytes <= least:
                break
            if band and self._decays:
                self._evict_oldest(band, least)
            elif band:
                self._pass_by(self._evict_newest(band, least), importance)

    def _admit_some(
        self, seqs: range, importances: Sequence[int], payloads: Sequence[bytes]
    ) -> None:
        """Keep all that is not passed by, then evict from the far end, these bodies included."""
        behind = self._behind
        importance = importances[0]
        if importance in behind and importances.count(importance) == len(seqs):
            behind[importance] = seqs[-1]
            return
        cost_max = self.bytes_max
        admitted = []
        for seq, importance, payload in zip(seqs, importances, payloads, strict=True):
            if importance not in behind and len(payload) + _OVERHEAD <= cost_max:
                self._bands[importance][seq] = payload
                admitted.append((seq, importance, len(payload)))
            elif not self._decays:
                behind[importance] = seq
        evicted = self.evicted
        self._grow(sum(size for _, _, size in admitted) + len(admitted) * _OVERHEAD)
        if self.evicted > evicted:
            self.evicted -= sum(seq not in self._bands[imp] for seq, imp, _ in admitted)

    def _grow(self, cost: int) -> None:
        """Account for `cost` more bytes, then keep to the bounds."""
        self.bytes += cost
        self._node.bytes += cost
        if self.bytes > self.bytes_max:
            self._pressed = True
            cost -= self.evict(self.bytes - self.bytes_max)
        if cost > 0 and not self._node.fits(0):
            self._node.relieve(cost)

    def _evict_newest(self, band: dict[int, bytes], least: int) -> int:
        newest = next(reversed(band))
        before, freed = len(band), 0
        excess = self.bytes - least
        while band and freed < excess:
            freed += len(band.popitem()[1]) + _OVERHEAD
        self._evicted(before - len(band), freed)
        return newest

    def _evict_oldest(self, band: dict[int, bytes], least: int) -> None:
        while band and self.bytes > least:
            run = list(islice(band, -(-len(band) // _RUN_SHARE)))
            self._evicted(len(run), sum(len(band.pop(seq)) for seq in run) + len(run) * _OVERHEAD)

    def _evicted(self, count: int, freed: int) -> None:
        self.evicted += count
        self.bytes -= freed
        self._node.bytes -= freed

    def _miss(self, seq: int, importance: int) -> None:
        self.misses += 1
        self._missed = True
        if self._behind.get(importance, seq + 1) <= seq:
            del self._behind[importance]

    def _pass_by(self, seq: int, importance: int) -> None:
        self._behind[importance] = max(seq, self._behind.get(importance, 0))

    def _window_bytes(self) -> int:
        window = self.window_bytes
        return min(window, self._node.even_part) if self._node.is_paging else window

    def _give_back_tables(self) -> None:
        """A dict that was large stays large when it is emptied, unless it is cleared."""
        for band in self._bands:
            band.clear()
