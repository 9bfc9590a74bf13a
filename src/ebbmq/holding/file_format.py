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

import crc32c

from ebbmq import limits
from ebbmq.holding.contract import Copy, Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PUT: Final = 1
DELETE: Final = 2
MARK: Final = 3

_HEAD: Final = Struct("<II")
_ENTRY: Final = Struct("<16sQIIII")
ENTRY_BYTES: Final = _ENTRY.size
_RUN: Final = Struct("<16sQII")
_RUNS_MAX: Final = limits.RECORD_BYTES_MAX // _RUN.size


class Placed(NamedTuple):
    """One entry of a PUT and where its payload starts, counted from the record's payload."""

    key: Key
    at: int
    payload_bytes: int
    crc: int


def put_bytes(copies: Sequence[Copy]) -> int:
    """The payload size of a PUT."""
    payloads = sum([len(copy.payload) for copy in copies])
    return _HEAD.size + len(copies) * _ENTRY.size + payloads


def put_parts(copies: Sequence[Copy]) -> list[bytes]:
    """The payload of a PUT."""
    pack = _ENTRY.pack
    entries = b"".join(
        [
            pack(store, seq, pid, len(payload), crc, 0)
            for (store, pid, seq), payload, crc, _ in copies
        ]
    )
    head = _HEAD.pack(crc32c.crc32c(entries), 0)
    return [head, entries, *[copy.payload for copy in copies]]


def payloads_at(count: int) -> int:
    """Where the first payload of a PUT starts; the others follow, in the order of the entries."""
    return _HEAD.size + count * _ENTRY.size


def read_put(payload: memoryview, count: int) -> list[Placed]:
    """The entries of a PUT, nothing if they do not verify; the payloads are not looked at."""
    at = _HEAD.size + count * _ENTRY.size
    if len(payload) < at:
        return []
    entries = payload[_HEAD.size : at]
    if crc32c.crc32c(entries) != _HEAD.unpack_from(payload)[0]:
        return []
    found = []
    for store, seq, pid, payload_bytes, crc, _ in _ENTRY.iter_unpack(entries):
        found.append(Placed(Key(store, pid, seq), at, payload_bytes, crc))
        at += payload_bytes
    return found


def records(copies: Sequence[Copy]) -> list[Sequence[Copy]]:
    """Cut a batch so that one bad sector never costs more than a record's worth."""
    if (
        len(copies) <= limits.RECORD_ROWS_MAX
        and put_bytes(copies) - _HEAD.size <= limits.RECORD_BYTES_MAX
    ):
        return [copies] if copies else []
    batches: list[Sequence[Copy]] = []
    batch: list[Copy] = []
    nbytes = 0
    for copy in copies:
        cost = _ENTRY.size + len(copy.payload)
        if batch and (
            nbytes + cost > limits.RECORD_BYTES_MAX or len(batch) == limits.RECORD_ROWS_MAX
        ):
            batches.append(batch)
            batch, nbytes = [], 0
        batch.append(copy)
        nbytes += cost
    batches.append(batch)
    return batches


def delete_payloads(keys: Sequence[Key]) -> Iterator[bytes]:
    """The payloads of as many DELETEs as it takes."""
    runs: list[list[int | bytes]] = []
    for store, pid, seq in sorted(set(keys)):
        if runs and runs[-1][0] == store and runs[-1][2] == pid:
            _, first, _, count = runs[-1]
            if seq == int(first) + int(count):
                runs[-1][3] = int(count) + 1
                continue
        runs.append([store, seq, pid, 1])
    packed = b"".join(_RUN.pack(*run) for run in runs)
    for start in range(0, len(packed), _RUNS_MAX * _RUN.size):
        yield packed[start : start + _RUNS_MAX * _RUN.size]


def read_delete(payload: memoryview) -> Iterator[Key]:
    """The keys of a DELETE."""
    for store, first, pid, count in _RUN.iter_unpack(payload):
        for seq in range(first, first + count):
            yield Key(store, pid, seq)
