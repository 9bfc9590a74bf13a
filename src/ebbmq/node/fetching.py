"""Bodies that are not in RAM, many at a time: read from where their rows say, checked, kept.

A body that the kernel still has in memory is read without waiting for a device; so whoever must not
wait, such as an event loop, may read it itself, and with it those that are delivered next. Only
where that fails another thread reads, and reads ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.core.block import FLAGS_BIT, KIND, LOW32, SIZE, STATE, WHERE
from ebbmq.core.row import ELSEWHERE, READY
from ebbmq.errors import DamagedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.core.grants import Grants
    from ebbmq.journal.contract import Places
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.outflow import Delivery

    Read = Callable[[Places], list[bytes] | None]

#: How many bodies, and bytes, to read beside those that are asked for: what takes about 2 ms.
_MORE_ROWS: Final = 1_024
_MORE_BYTES: Final = limits.MIB
_STATE: Final = np.uint64(STATE)
_ELSEWHERE: Final = np.uint64(ELSEWHERE << FLAGS_BIT)
_LOW32: Final = np.uint64(LOW32)
_HALF: Final = np.uint64(32)


def read_rows(engine: Engine, shard: Shard, seqs: Sequence[int], read: Read) -> list[bytes | None]:
    """Bodies from where in the log their rows are now (the lock is free); None if not intact.

    None for all of them if one is gone, elsewhere, or not to be read: who wants the others reads
    them one by one.
    """
    with engine.lock:
        words = shard.partition.index.words_of(np.array(seqs, dtype=np.uint64))
    out: list[bytes | None] = [None] * len(seqs)
    kinds = words[:, KIND]
    if not (kinds & _STATE).all() or (kinds & _ELSEWHERE).any():
        return out
    where, size = words[:, WHERE], words[:, SIZE]
    places = np.column_stack((where & _LOW32, where >> _HALF, size & _LOW32)).astype(np.int64)
    try:
        found = read(places)
    except (DamagedRecord, OSError):
        return out
    if found is None:
        return out
    crcs = (size >> _HALF).tolist()
    if list(map(crc32c, found)) == crcs:
        return [*found]
    return [
        payload if crc32c(payload) == crc else None
        for payload, crc in zip(found, crcs, strict=True)
    ]


def admit(shard: Shard, keys: Sequence[tuple[int, int]], payloads: Sequence[object]) -> bool:
    """Keep bodies of messages that wait (the lock is held); False: no room for what follows.

    Args:
        shard: the partition.
        keys: (seq, importance) of each, in delivery order.
        payloads: what was read; what is no body is left out.
    """
    seqs = np.array([seq for seq, _ in keys], dtype=np.uint64)
    states = shard.partition.index.column(seqs, "state").tolist()
    kept = [
        number
        for number, (payload, state) in enumerate(zip(payloads, states, strict=True))
        if state == READY and type(payload) is bytes
    ]
    if len(kept) < len(keys):
        keys, payloads = [keys[at] for at in kept], [payloads[at] for at in kept]
    return shard.resident.admit_ahead(keys, cast("Sequence[bytes]", payloads))


def fill_at_once(
    engine: Engine, granted: list[tuple[Shard, Grants]], taken: list[Delivery]
) -> bool:
    """Read what is missing as far as nobody waits for a device; whether all is there now."""
    for (shard, grants), one in zip(granted, taken, strict=True):
        if None in one.payloads:
            _fill(engine, shard, grants, cast("list[bytes | None]", one.payloads))
    return not any(None in one.payloads for one in taken)


def _fill(engine: Engine, shard: Shard, grants: Grants, payloads: list[bytes | None]) -> None:
    missing = [number for number, payload in enumerate(payloads) if payload is None]
    seqs = [grants.seqs[i] for i in missing]
    mean = sum(grants.column("length")) // len(grants.seqs) + 1
    with engine.lock:
        more = _next(engine, shard, min(_MORE_ROWS, _MORE_BYTES // mean))
    read = engine.journal.read_cached
    found = read_rows(engine, shard, [*seqs, *(seq for seq, _ in more)], read)
    has_more = None not in found
    if None in found[: len(seqs)] and more:
        found = read_rows(engine, shard, seqs, read)
    for number, payload in zip(missing, found, strict=False):
        payloads[number] = payload
    with engine.lock:
        shard.reads_at_once = has_more
        if has_more:
            admit(shard, more, found[len(seqs) :])
        else:
            engine.ask_ahead(shard)


def _next(engine: Engine, shard: Shard, count: int) -> list[tuple[int, int]]:
    """(seq, importance) of messages delivered next whose bodies are wanted (the lock is held)."""
    partition, resident = shard.partition, shard.resident
    if shard.reading_ahead:
        return []
    depth = resident.wanted(partition.depth[READY], count)
    if not depth:
        return []
    seqs = partition.order.peek(depth, engine.now_ms())
    importances = partition.index.column(np.array(seqs, dtype=np.uint64), "importance")
    keys = zip(seqs, importances.tolist(), strict=True)
    return resident.missing([key for key in keys if key[1]])
