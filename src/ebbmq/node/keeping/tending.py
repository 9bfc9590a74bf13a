"""Applying what the pipeline's upkeep offers for an archive: packs written anew, messages too old.

The device takes new packs by itself, a pack at a time, so that reads come in between, and marks in
its own objects which rows count; where copies are does not change for the node. What concerns
messages is done here, as any other removal: journaled, and on the record. How old a message is,
queue time says: whatever the clock of the pipeline, what is younger here than it is to be kept
stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ebbmq.core.copies import name_of
from ebbmq.core.row import DYING, LEASED, LOW48
from ebbmq.errors import InvalidSpec
from ebbmq.holding.contract import Key, Lack
from ebbmq.model import Reason, Upkept
from ebbmq.node.devices.describing import unknown
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.partition import Row
    from ebbmq.holding.contract import Adopted
    from ebbmq.node.devices.port import Port
    from ebbmq.node.engine import Engine

_AT_ONCE: Final = 512
_Keys = tuple[tuple[int, int], ...]


def tend(engine: Engine, device: str) -> Upkept:
    """Apply what is offered for a device's archive (the lock is free).

    Raises:
        UnknownDevice: there is none of that name.
        InvalidSpec: it is no object store.
        StorageFailed: it fails; what was applied holds, and the rest is tried again.
    """
    with engine.lock:
        engine.check_open()
        ports = {} if engine.devices is None else engine.devices.ports
    if device not in ports:
        raise unknown(device, ports)
    port = ports[device]
    if port.kind != "object":
        raise InvalidSpec(
            f"device {device!r} is of kind {port.kind}, which keeps no packs",
            "name a device of kind object",
        )
    return _tend(engine, port)


def _tend(engine: Engine, port: Port) -> Upkept:
    store = engine.directory.identity.uuid
    told = Upkept(device=port.name)
    while (step := port.adopt(store).result()) is not None:
        told = _added(told, step)
        if step.expired and step.keep_ms is not None:
            expired = _let_go(engine, step.expired, step.keep_ms)
            told = replace(told, expired=told.expired + expired)
        if step.damaged:
            damaged = _give_up_damaged(engine, port, step.damaged)
            told = replace(told, damaged=told.damaged + damaged)
        if not step.left:
            break
    if told.run is not None:
        counts = (told.packs, told.packs_refused, told.messages, told.stale, told.expired)
        log.info("upkeep_applied", device=port.name, run=told.run, counts=counts)
    return told


def _added(told: Upkept, step: Adopted) -> Upkept:
    return replace(
        told,
        run=step.run,
        packs=told.packs + step.packs,
        packs_refused=told.packs_refused + step.refused,
        messages=told.messages + step.messages,
        stale=told.stale + step.stale,
    )


def _let_go(engine: Engine, keys: _Keys, keep_ms: int) -> int:
    """Remove messages that are too old for the archive, unless somebody works on them."""
    removed = position = 0
    for at in range(0, len(keys), _AT_ONCE):
        with engine.lock:
            engine.check_open()
            if engine.clock_doubt is None:
                removed += _let_some_go(engine, keys[at : at + _AT_ONCE], keep_ms)
            position = engine.journal.position
        engine.let_others_in()
    if removed:
        engine.journal.wait("synced", position)
    return removed


def _let_some_go(engine: Engine, keys: Sequence[tuple[int, int]], keep_ms: int) -> int:
    before_ms = engine.now_ms() - keep_ms
    rows: dict[int, list[tuple[int, Row]]] = {}
    for pid, seq in keys:
        shard = engine.catalog.shards.get(pid)
        row = None if shard is None or shard.faulty else shard.partition.index.read(seq)
        if row is not None and row[0] not in (LEASED, DYING) and row[5] & LOW48 < before_ms:
            rows.setdefault(pid, []).append((seq, row))
    for pid, gone in rows.items():
        shard = engine.catalog.shards[pid]
        shard.partition.remove(gone, Reason.RETENTION, engine.now_ms())
        engine.settle(shard)
    return sum(map(len, rows.values()))


def _give_up_damaged(engine: Engine, port: Port, keys: _Keys) -> int:
    """Read what a run found damaged; copies that are get others instead, where there are any."""
    store, found = engine.directory.identity.uuid, 0
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        bodies = port.get([Key(store, pid, seq) for pid, seq in some]).result()
        names = [
            name_of(pid, seq)
            for (pid, seq), body in zip(some, bodies, strict=True)
            if body is Lack.DAMAGED
        ]
        with engine.lock:
            engine.check_open()
            wrong = [name for name in names if port.name in engine.holdings.of(name).copies]
            if wrong:
                engine.keeping.copies_lost(port.name, wrong, damaged=set(wrong))
        found += len(wrong)
    return found
