"""The records a file device keeps in its segment log, little endian.

    PUT     [u32 crc of the entries][u32 0][entry 40]*count [payload]*count
            entry: store 16 bytes | u64 seq | u32 pid | u32 payload_bytes | u32 crc | u32 0
    DELETE  [run 32]*runs
            run: store 16 bytes | u64 first seq | u32 pid | u32 count
    MARK    nothing; its header tells that what is before it was synced

A later record wins over an earlier one. The entries have a checksum of their own, so that one bad
byte in a payload costs that payload and not its neighbours.

Changing it: add a kind, keep reading the old one, add a device directory of the old kind to
tests/upgrade, redraw docs/format.md.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.core.values import distinct_values
from ebbmq.holding.columns import Batch, Columns, Keys, columns_of, joined
from ebbmq.holding.contract import Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.holding.contract import Copy

    Numbers = npt.NDArray[np.int64]
    Owner = tuple[bytes, int]
    Where = slice | npt.NDArray[np.intp]

PUT: Final = 1
DELETE: Final = 2
MARK: Final = 3

_HEAD: Final = Struct("<II")
_ENTRY: Final = np.dtype(
    [
        ("store", "V16"),
        ("seq", "<u8"),
        ("pid", "<u4"),
        ("length", "<u4"),
        ("crc", "<u4"),
        ("zero", "<u4"),
    ]
)
ENTRY_BYTES: Final = _ENTRY.itemsize
_RUN: Final = np.dtype([("store", "V16"), ("seq", "<u8"), ("pid", "<u4"), ("count", "<u4")])
#: Nobody waits for what is moved, but others for the interpreter while a record is put together.
_MOVED_BYTES_MAX: Final = 256 * limits.KIB
_RUNS_MAX: Final = limits.RECORD_BYTES_MAX // _RUN.itemsize
_ALL: Final = slice(None)


class Put(NamedTuple):
    """Copies of one store for one record."""

    store: bytes
    pids: Numbers
    seqs: Numbers
    lengths: Numbers
    crcs: Numbers
    payloads: Sequence[bytes]
    #: They are of one partition, and their numbers consecutive.
    is_run: bool = False

    def nbytes(self) -> int:
        """The payload size of the PUT."""
        return payloads_at(len(self.seqs)) + int(self.lengths.sum())

    def names(self) -> list[Key]:
        """The keys of the copies."""
        return list(map(Key, [self.store] * len(self.seqs), self.pids.tolist(), self.seqs.tolist()))

    def parts(self) -> list[bytes]:
        """The payload of the PUT."""
        entries = np.zeros(len(self.seqs), dtype=_ENTRY)
        entries["store"] = np.void(self.store)
        entries["seq"], entries["pid"] = self.seqs, self.pids
        entries["length"], entries["crc"] = self.lengths, self.crcs
        packed = entries.tobytes()
        return [_HEAD.pack(crc32c(packed), 0), packed, *self.payloads]

    def starts(self) -> Numbers:
        """Where payloads start, counted from the first of them."""
        return self.lengths.cumsum() - self.lengths


class Placed(NamedTuple):
    """Copies of one partition in a PUT; offsets are counted from the record's payload."""

    owner: Owner
    seqs: Numbers
    offsets: Numbers
    lengths: Numbers
    crcs: Numbers


def payloads_at(count: int) -> int:
    """Where the first payload of a PUT starts; the others follow, in the order of the entries."""
    return _HEAD.size + count * ENTRY_BYTES


def puts_of(copies: Sequence[Copy]) -> list[Put]:
    """The records of copies, of one key the latest: a bad sector costs one record's worth."""
    is_moved = isinstance(copies, Batch) and copies.read_back
    bytes_max = _MOVED_BYTES_MAX if is_moved else limits.RECORD_BYTES_MAX
    return [put for store, columns in _by_store(copies) for put in _cut(store, columns, bytes_max)]


def _by_store(copies: Sequence[Copy]) -> list[tuple[bytes, Columns]]:
    if isinstance(copies, Batch):
        parts = [part for part in copies.parts if len(part.seqs)]
        return [(copies.store, joined(parts).in_order())] if parts else []
    stores: dict[bytes, list[Copy]] = {}
    for copy in copies:
        stores.setdefault(copy.key.store, []).append(copy._replace(properties=None))
    return [(store, columns_of(some).in_order()) for store, some in stores.items()]


def _cut(store: bytes, columns: Columns, bytes_max: int) -> Iterator[Put]:
    payloads, count = columns.payloads, len(columns.seqs)
    lengths = np.fromiter(map(len, payloads), np.int64, count)
    if count <= limits.RECORD_ROWS_MAX and (int(lengths.sum()) + count * ENTRY_BYTES <= bytes_max):
        pids, seqs, crcs = (
            each.astype(np.int64, copy=False) for each in (columns.pids, columns.seqs, columns.crcs)
        )
        yield Put(store, pids, seqs, lengths, crcs, payloads, columns.is_run)
        return
    ends, first = (lengths + ENTRY_BYTES).cumsum(), 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        room = int(ends.searchsorted(before + bytes_max, "right"))
        end = max(first + 1, min(room, first + limits.RECORD_ROWS_MAX))
        some = slice(first, end)
        pids, seqs, crcs = (
            each[some].astype(np.int64) for each in (columns.pids, columns.seqs, columns.crcs)
        )
        yield Put(store, pids, seqs, lengths[some], crcs, payloads[some], columns.is_run)
        first = end


def read_put(payload: memoryview, count: int) -> Iterator[Placed]:
    """The entries of a PUT, nothing if they do not verify; the payloads are not looked at."""
    at = payloads_at(count)
    packed = payload[_HEAD.size : at]
    if len(payload) < at or crc32c(packed) != _HEAD.unpack_from(payload)[0]:
        return
    entries = np.frombuffer(packed, dtype=_ENTRY)
    seqs, lengths, crcs = (entries[name].astype(np.int64) for name in ("seq", "length", "crc"))
    offsets = at + lengths.cumsum() - lengths
    owners = zip(entries["store"].tolist(), entries["pid"].tolist(), strict=True)
    for owner, where in _where(list(owners)):
        yield Placed(owner, seqs[where], offsets[where], lengths[where], crcs[where])


def by_owner(keys: Sequence[Key]) -> Iterator[tuple[Owner, Where, Numbers]]:
    """Keys by store and partition: where they stand, and their numbers."""
    if isinstance(keys, Keys):
        yield from _of_columns(keys)
        return
    seqs = np.array([key[2] for key in keys], dtype=np.int64)
    for owner, where in _where([key[:2] for key in keys]):
        yield owner, where, seqs[where]


def _of_columns(keys: Keys) -> Iterator[tuple[Owner, Where, Numbers]]:
    at = 0
    for pid, seqs in keys.parts:
        where = slice(at, at + len(seqs))
        at += len(seqs)
        yield (keys.store, pid), where, seqs.astype(np.int64, copy=False)


def _where(owners: list[Owner]) -> Iterator[tuple[Owner, Where]]:
    if owners and owners.count(owners[0]) == len(owners):
        yield owners[0], _ALL
        return
    places: dict[Owner, list[int]] = {}
    for at, owner in enumerate(owners):
        places.setdefault(owner, []).append(at)
    for owner, some in places.items():
        yield owner, np.array(some, dtype=np.intp)


def delete_payloads(keys: Sequence[Key]) -> Iterator[bytes]:
    """The payloads of as many DELETEs as it takes."""
    runs = [_runs(owner, unique(seqs)) for owner, _, seqs in by_owner(keys)]
    packed = b"".join(runs)
    for start in range(0, len(packed), _RUNS_MAX * _RUN.itemsize):
        yield packed[start : start + _RUNS_MAX * _RUN.itemsize]


def unique(seqs: Numbers) -> Numbers:
    """Numbers in ascending order, each once, as they mostly are."""
    return seqs if (seqs[1:] > seqs[:-1]).all() else distinct_values(seqs)


def _runs(owner: Owner, seqs: Numbers) -> bytes:
    cuts = np.flatnonzero(np.diff(seqs) != 1) + 1
    starts = np.concatenate(([0], cuts))
    out = np.zeros(len(starts), dtype=_RUN)
    out["store"], out["pid"] = np.void(owner[0]), owner[1]
    out["seq"] = seqs[starts]
    out["count"] = np.diff(np.append(starts, len(seqs)))
    return out.tobytes()


def read_delete(payload: memoryview) -> Iterator[tuple[Owner, Numbers]]:
    """The copies of a DELETE, by store and partition."""
    for store, first, pid, count in np.frombuffer(payload, dtype=_RUN).tolist():
        yield (store, pid), np.arange(first, first + count)
