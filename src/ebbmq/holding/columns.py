"""Copies as columns: what a device that packs many into one object is given.

A backlog goes to an archive by the million; three objects for each message would cost more than to
write it. Whoever wants single copies of a batch gets them made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import numpy as np
from typing_extensions import override

from ebbmq.holding.contract import Copy, Key, Properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Numbers = npt.NDArray[np.integer]


#: For every copy that is read back: it takes half the time of the class itself.
_KEY: Final[Callable[[tuple[bytes, int, int]], Key]] = partial(tuple.__new__, Key)


class Told(NamedTuple):
    """What is said of messages of one queue beside their bodies, as `Properties` says it of one."""

    queue: str
    importances: Numbers
    enqueued_at_ms: Numbers
    dead_at_ms: Numbers  # 0 without a TTL
    decay_rates: npt.NDArray[np.float64]
    headers_bytes: Numbers


class Columns(NamedTuple):
    """Copies of one store; all or none of them have properties."""

    pids: Numbers
    seqs: Numbers
    crcs: Numbers
    payloads: Sequence[bytes]
    told: Told | None
    #: They are of one partition, and their numbers consecutive.
    is_run: bool = False

    def copy(self, number: int, store: bytes) -> Copy:
        """One of them as devices of other kinds take it."""
        key = Key(store, int(self.pids[number]), int(self.seqs[number]))
        told, properties = self.told, None
        if told is not None:
            properties = Properties(
                told.queue,
                int(told.importances[number]),
                int(told.enqueued_at_ms[number]),
                int(told.dead_at_ms[number]) or None,
                float(told.decay_rates[number]),
                int(told.headers_bytes[number]),
            )
        return Copy(key, self.payloads[number], int(self.crcs[number]), properties)

    def in_order(self) -> Columns:
        """The same by key, so that neighbours stay neighbours; of one key the latest."""
        if self.is_run:
            return self
        if (self.pids[1:] == self.pids[:-1]).all() and (self.seqs[1:] > self.seqs[:-1]).all():
            return self
        order = np.lexsort((self.seqs, self.pids))
        pids, seqs = self.pids[order], self.seqs[order]
        last = np.append((pids[1:] != pids[:-1]) | (seqs[1:] != seqs[:-1]), values=True)
        return self._only(order[last])

    def cut(self, bytes_max: int) -> Iterator[Columns]:
        """The same in parts of at most so many bytes, or of one message."""
        ends = np.cumsum(np.fromiter(map(len, self.payloads), np.int64, len(self.payloads)))
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
            whole = end - first == len(ends)
            yield self if whole else self._only(np.arange(first, end))
            first = end

    def _only(self, chosen: npt.NDArray[np.intp]) -> Columns:
        told = self.told
        if told is not None:
            told = Told(
                told.queue,
                told.importances[chosen],
                told.enqueued_at_ms[chosen],
                told.dead_at_ms[chosen],
                told.decay_rates[chosen],
                told.headers_bytes[chosen],
            )
        return Columns(
            self.pids[chosen],
            self.seqs[chosen],
            self.crcs[chosen],
            [self.payloads[number] for number in chosen.tolist()],
            told,
        )


class Keys(Sequence[Key]):
    """Keys of one store, by partition; whoever wants single ones gets them made one by one."""

    __slots__ = ("_count", "parts", "store")

    def __init__(self, store: bytes, parts: Sequence[tuple[int, Numbers]]) -> None:
        """Makes some.

        Args:
            store: whose they are.
            parts: partitions, and numbers of messages there.
        """
        self.store = store
        self.parts = parts
        self._count = sum([len(seqs) for _, seqs in parts])

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def __iter__(self) -> Iterator[Key]:
        for pid, seqs in self.parts:
            yield from map(_KEY, zip(repeat(self.store), repeat(pid), seqs.tolist(), strict=False))

    @overload
    def __getitem__(self, number: int) -> Key: ...
    @overload
    def __getitem__(self, number: slice) -> list[Key]: ...
    @override
    def __getitem__(self, number: int | slice) -> Key | list[Key]:
        return list(self)[number]


def keys_together(several: Sequence[Sequence[Key]]) -> Sequence[Key]:
    """Keys of several calls as one, in columns if all of them are."""
    if len(several) == 1:
        return several[0]
    packed = [keys for keys in several if isinstance(keys, Keys)]
    if len(packed) == len(several) and len({keys.store for keys in packed}) == 1:
        return Keys(packed[0].store, [part for keys in packed for part in keys.parts])
    return [key for keys in several for key in keys]


class Batch(Sequence[Copy]):
    """Copies of one store for one put."""

    __slots__ = ("_count", "is_verified", "nbytes", "parts", "read_back", "store")

    def __init__(self, store: bytes, parts: Sequence[Columns], *, read_back: bool = False) -> None:
        """Makes one.

        Args:
            store: whose copies they are.
            parts: the copies.
            read_back: another copy goes for these: a device that can is to read them back, and
                say so (`is_verified`).
        """
        self.store = store
        self.parts = parts
        self.read_back = read_back
        self.is_verified = False
        self._count = sum(len(part.seqs) for part in parts)
        self.nbytes = sum(sum(map(len, part.payloads)) for part in parts)

    def keys(self) -> Keys:
        """The keys of all."""
        found: list[tuple[int, Numbers]] = []
        for part in self.parts:
            found += _by_pid(part)
        return Keys(self.store, found)

    def payloads(self) -> list[bytes]:
        """The bodies of all."""
        return [payload for part in self.parts for payload in part.payloads]

    @override
    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Copy: ...
    @overload
    def __getitem__(self, number: slice) -> list[Copy]: ...
    @override
    def __getitem__(self, number: int | slice) -> Copy | list[Copy]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        at = number + len(self) if number < 0 else number
        for part in self.parts:
            if 0 <= at < len(part.seqs):
                return part.copy(at, self.store)
            at -= len(part.seqs)
        raise IndexError(number)


def _by_pid(part: Columns) -> Iterator[tuple[int, Numbers]]:
    """The numbers of copies in their order, neighbours of one partition together."""
    pids = part.pids
    if not len(pids):
        return
    first = int(pids[0])
    if (pids == first).all():
        yield first, part.seqs
        return
    cuts = [0, *(np.flatnonzero(np.diff(pids)) + 1).tolist(), len(pids)]
    for start, end in pairwise(cuts):
        yield int(pids[start]), part.seqs[start:end]


def together(batches: Sequence[Sequence[Copy]]) -> Sequence[Copy]:
    """Copies of several batches as one, in columns if all of them are."""
    if len(batches) == 1:
        return batches[0]
    packed = [batch for batch in batches if isinstance(batch, Batch)]
    if len(packed) == len(batches) and len({batch.store for batch in packed}) == 1:
        parts = [part for batch in packed for part in batch.parts]
        return Batch(packed[0].store, parts, read_back=any(each.read_back for each in packed))
    return [copy for batch in batches for copy in batch]


def joined(parts: Sequence[Columns]) -> Columns:
    """Copies of one store and queue together."""
    if len(parts) == 1:
        return parts[0]
    told = [part.told for part in parts if part.told is not None]
    is_run = all(part.is_run for part in parts) and all(
        (one.pids[0], one.seqs[-1] + 1) == (other.pids[0], other.seqs[0])
        for one, other in pairwise(parts)
    )
    return Columns(
        np.concatenate([part.pids for part in parts]),
        np.concatenate([part.seqs for part in parts]),
        np.concatenate([part.crcs for part in parts]),
        [payload for part in parts for payload in part.payloads],
        _told_together(told) if told else None,
        is_run,
    )


def _told_together(told: Sequence[Told]) -> Told:
    return Told(
        told[0].queue,
        np.concatenate([each.importances for each in told]),
        np.concatenate([each.enqueued_at_ms for each in told]),
        np.concatenate([each.dead_at_ms for each in told]),
        np.concatenate([each.decay_rates for each in told]),
        np.concatenate([each.headers_bytes for each in told]),
    )


def by_queue(copies: Sequence[Copy]) -> list[Columns]:
    """Copies of one store as columns, those of each queue together."""
    if isinstance(copies, Batch):
        parts: dict[str | None, list[Columns]] = {}
        for part in copies.parts:
            parts.setdefault(part.told.queue if part.told is not None else None, []).append(part)
        return [joined(some) for some in parts.values()]
    queues: dict[str | None, list[Copy]] = {}
    for copy in copies:
        queue = None if copy.properties is None else copy.properties.queue
        queues.setdefault(queue, []).append(copy)
    return list(map(columns_of, queues.values()))


def columns_of(copies: Sequence[Copy]) -> Columns:
    """Copies of one store and queue as columns."""
    count = len(copies)
    known = [copy.properties for copy in copies if copy.properties is not None]
    told = None
    if known:
        assert len(known) == count
        told = Told(
            known[0].queue,
            np.fromiter((each.importance for each in known), np.int32, count),
            np.fromiter((each.enqueued_at_ms for each in known), np.int64, count),
            np.fromiter((each.dead_at_ms or 0 for each in known), np.int64, count),
            np.fromiter((each.decay_rate for each in known), np.float64, count),
            np.fromiter((each.headers_bytes for each in known), np.int64, count),
        )
    return Columns(
        np.fromiter((copy.key.pid for copy in copies), np.int64, count),
        np.fromiter((copy.key.seq for copy in copies), np.int64, count),
        np.fromiter((copy.crc for copy in copies), np.int64, count),
        [copy.payload for copy in copies],
        told,
    )
