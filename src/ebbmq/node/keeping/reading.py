"""Reading bodies that are not in the log from the devices that have them.

The fastest device that can be used is asked first, with all that it has in one call; what it does
not give is asked of the next. Bytes are compared with the checksum of intake, so wrong ones are as
good as none. A device that answers and has not what it confirmed has lost a copy, which is put on
record and mended; one that does not answer is only away, and its bodies with it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core.block import KIND, LOW32, SIZE, STATE, Block
from ebbmq.core.copies import LOG, name_of
from ebbmq.core.row import FREE
from ebbmq.errors import EbbError
from ebbmq.holding.contract import Key, Lack
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from ebbmq.core.copies import Devices
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.keeper import Keeper
    from ebbmq.policy.rules.properties import States


class Away(enum.Enum):
    """No device that has the body can be reached now."""

    AWAY = "away"


AWAY: Final = Away.AWAY
Body = bytes | Away | None


class _Sought(NamedTuple):
    seq: int
    length: int
    crc: int
    #: Devices that have it, the best one first.
    devices: list[str]


def read(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[Body]:
    """Bodies of messages that the log does not have; None for one that is gone (lock is free)."""
    found: dict[int, Body] = dict.fromkeys(seqs)
    with engine.lock:
        sought = _seek(engine, shard, seqs) if seqs else []
    for each in sought:
        found[each.seq] = AWAY
    while sought:
        sought = _ask(engine, shard, sought, found)
    return [found[seq] for seq in seqs]


def read_instead(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[Body]:
    """Bodies whose copy in the log is damaged, from devices that have another (lock is free).

    None where there is no other copy.
    """
    pid, holdings = shard.partition.pid, engine.holdings
    with engine.lock:
        others = [seq for seq in seqs if holdings.of(name_of(pid, seq)).copies - {LOG}]
        if others:
            for seq in others:
                log.error("copy_damaged", device=LOG, message=f"{pid:x}-{seq:x}")
            names = [name_of(pid, seq) for seq in others]
            engine.keeping.copies_lost(LOG, names, damaged=names)
    found = dict(zip(others, read(engine, shard, others), strict=True))
    return [found.get(seq) for seq in seqs]


def _seek(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[_Sought]:
    """Where bodies are, of messages that are there (the lock is held)."""
    words = shard.partition.index.words_of(np.array(seqs, dtype=np.uint64))
    block, base = Block(words), name_of(shard.partition.pid, 0)
    states = engine.devices.states if engine.devices is not None else {}
    ways: dict[Devices, list[str]] = {}
    out: list[_Sought] = []
    for seq, state, length, crc, holding in zip(
        seqs,
        block.values(KIND, STATE),
        block.values(SIZE, LOW32),
        block.values(SIZE, LOW32 << 32, 32),
        engine.holdings.of_many([base | seq for seq in seqs]),
        strict=True,
    ):
        if state == FREE:
            continue
        way = ways.get(holding.copies)
        if way is None:
            way = ways[holding.copies] = _fastest_first(holding.copies, states)
        out.append(_Sought(seq, length, crc, way))
    return out


def _fastest_first(copies: Devices, states: States) -> list[str]:
    usable = [each for each in copies if each != LOG and each in states and states[each].usable]
    return sorted(usable, key=lambda device: (states[device].latency_ms, device))


def _ask(
    engine: Engine, shard: Shard, sought: list[_Sought], found: dict[int, Body]
) -> list[_Sought]:
    """Ask each message's best device; returns those to ask of their next one."""
    by_device: dict[str, list[_Sought]] = {}
    for each in sought:
        if each.devices:
            by_device.setdefault(each.devices[0], []).append(each)
    devices = engine.devices
    assert devices is not None or not by_device
    asked: list[tuple[str, list[_Sought], Future[list[bytes | Lack]]]] = []
    for device, several in by_device.items():
        assert devices is not None
        keys = keys_of(engine, shard, [each.seq for each in several])
        asked.append((device, several, devices.ports[device].get(keys)))
    left: list[_Sought] = []
    for device, several, future in asked:
        try:
            bodies = future.result()
        except EbbError as error:
            log.warning("copy_not_read", device=device, code=error.code, count=len(several))
            left += [each._replace(devices=each.devices[1:]) for each in several]
            continue
        lost: dict[int, bool] = {}
        for each, body in zip(several, bodies, strict=True):
            if isinstance(body, bytes) and len(body) == each.length and crc32c(body) == each.crc:
                found[each.seq] = body
                continue
            left.append(each._replace(devices=each.devices[1:]))
            if body is not Lack.UNREADABLE:
                lost[each.seq] = body is not Lack.MISSING
        if lost:
            with engine.lock:
                _mark_lost(engine.keeping, shard, device, lost, found)
    return left


def _mark_lost(
    keeper: Keeper, shard: Shard, device: str, lost: dict[int, bool], found: dict[int, Body]
) -> None:
    """Have copies made anew that a device has lost, or damaged."""
    pid = shard.partition.pid
    for seq, damaged in lost.items():
        what = "copy_damaged" if damaged else "copy_missing"
        log.error(what, device=device, message=f"{pid:x}-{seq:x}")
    keeper.copies_lost(
        device,
        [name_of(pid, seq) for seq in lost],
        damaged={name_of(pid, seq) for seq, damaged in lost.items() if damaged},
    )
    for seq in lost:
        if shard.partition.index.read(seq) is None:
            found[seq] = None


def keys_of(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[Key]:
    """The names of messages' copies on every device."""
    uuid, pid = engine.directory.identity.uuid, shard.partition.pid
    return [Key(uuid, pid, seq) for seq in seqs]
