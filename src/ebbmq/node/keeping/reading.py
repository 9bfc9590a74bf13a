"""Reading bodies from devices: those that the log does not have, or that a faster device has too.

The fastest device that can be used is asked first (`policy.reads`), with all that it has in one
call; what it does not give is asked of the next. Bytes are compared with the checksum of intake, so
wrong ones are as good as none. A device that answers and has not what it confirmed has lost a copy,
which is put on record and mended; one that does not answer is only away, and its bodies with it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard, cast

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core.block import KIND, LOW32, SIZE, STATE, Block
from ebbmq.core.copies import LOG, name_of
from ebbmq.core.row import FREE
from ebbmq.errors import EbbError
from ebbmq.holding.columns import Keys
from ebbmq.holding.contract import Lack
from ebbmq.node.log import log
from ebbmq.policy.reads import before_log, fastest_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from ebbmq.core.copies import Devices
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.keeper import Keeper
    from ebbmq.policy.rules.properties import States

    #: Which devices to ask of those that have a copy, in which order.
    _Ordered = Callable[[Devices, States], list[str]]


class Away(enum.Enum):
    """No device that has the body can be reached now."""

    AWAY = "away"


AWAY: Final = Away.AWAY
Body = bytes | Away | None


class _Sought(NamedTuple):
    """Bodies that the same devices have."""

    seqs: list[int]
    lengths: list[int]
    crcs: list[int]
    #: The best one first.
    devices: list[str]

    def only(self, places: list[int], devices: list[str]) -> _Sought:
        """Some of them, to be asked of other devices."""
        seqs, lengths, crcs = ([column[at] for at in places] for column in self[:3])
        return _Sought(seqs, lengths, crcs, devices)


def read(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[Body]:
    """Bodies of messages that the log does not have; None for one that is gone (lock is free)."""
    found: dict[int, Body] = dict.fromkeys(seqs)
    if not seqs:
        return []
    readers = engine.keeping.readers
    with engine.lock:
        sought = _seek(engine, shard, seqs)
        # From here on none of these copies is deleted until all have been read.
        number = readers.begin({device for each in sought for device in each.devices})
    try:
        for each in sought:
            found.update(dict.fromkeys(each.seqs, AWAY))
        while sought:
            sought = _ask(engine, shard, sought, found)
    finally:
        readers.end(number)
    return [found[seq] for seq in seqs]


def read_faster(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[bytes | None]:
    """Bodies that devices have which are faster than the log now (the lock is free).

    None where there is no such copy, or it could not be read: the log has another.
    """
    devices, readers = engine.devices, engine.keeping.readers
    out: list[bytes | None] = [None] * len(seqs)
    if devices is None or not readers.is_log_beaten(devices.states):
        return out
    found: dict[int, Body] = {}
    with engine.lock:
        sought = [each for each in _seek(engine, shard, seqs, _before_log) if each.devices]
        number = readers.begin({device for each in sought for device in each.devices})
    try:
        while sought:
            sought = _ask(engine, shard, sought, found)
    finally:
        readers.end(number)
    if not found:
        return out
    bodies = map(found.get, seqs)
    return [body if isinstance(body, bytes) else None for body in bodies]


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


def _seek(
    engine: Engine, shard: Shard, seqs: Sequence[int], ordered: _Ordered | None = None
) -> list[_Sought]:
    """Where bodies are, of messages that are there (the lock is held)."""
    ordered = _beside_log if ordered is None else ordered
    words = shard.partition.index.words_of(np.array(seqs, dtype=np.uint64))
    block, base = Block(words), name_of(shard.partition.pid, 0)
    states = engine.devices.states if engine.devices is not None else {}
    holdings = engine.holdings.of_many([base | seq for seq in seqs])
    every = _Sought(list(seqs), block.values(SIZE, LOW32), block.values(SIZE, LOW32 << 32, 32), [])
    places: dict[Devices, list[int]] = {}
    for at, (state, holding) in enumerate(zip(block.values(KIND, STATE), holdings, strict=True)):
        if state != FREE:
            places.setdefault(holding.copies, []).append(at)
    return [
        every.only(some, ordered(copies, states))
        if len(some) < len(seqs)
        else every._replace(devices=ordered(copies, states))
        for copies, some in places.items()
    ]


def _beside_log(copies: Devices, states: States) -> list[str]:
    return fastest_first(copies - {LOG}, states, LOG)


def _before_log(copies: Devices, states: States) -> list[str]:
    # Where the log has no copy, whoever asks for it finds out and reads from the others.
    return before_log(copies, states, LOG) if LOG in copies and len(copies) > 1 else []


def _ask(
    engine: Engine, shard: Shard, sought: list[_Sought], found: dict[int, Body]
) -> list[_Sought]:
    """Ask each message's best device; returns those to ask of their next one."""
    asked: list[tuple[_Sought, Future[list[bytes | Lack]]]] = []
    for each in sought:
        if each.devices:
            assert engine.devices is not None
            port = engine.devices.ports[each.devices[0]]
            asked.append((each, port.get(keys_of(engine, shard, each.seqs))))
    left: list[_Sought] = []
    for each, future in asked:
        device, *others = each.devices
        try:
            bodies = future.result()
        except EbbError as error:
            log.warning("copy_not_read", device=device, code=error.code, count=len(each.seqs))
            left.append(each._replace(devices=others))
            continue
        if _are_whole(bodies, each):
            found.update(zip(each.seqs, bodies, strict=True))
            engine.keeping.readers.count(device, len(bodies))
        else:
            left.append(each.only(_sort_out(engine, shard, each, bodies, found), others))
        if engine.keeping.doubts:
            _end_doubts(engine, shard, each.seqs, found)
    return left


def _are_whole(bodies: list[bytes | Lack], sought: _Sought) -> TypeGuard[list[bytes]]:
    """Whether all came as they were at intake, as they nearly always do."""
    if Lack in map(type, bodies):
        return False
    given = cast("list[bytes]", bodies)
    return list(map(len, given)) == sought.lengths and list(map(crc32c, given)) == sought.crcs


def _sort_out(
    engine: Engine,
    shard: Shard,
    sought: _Sought,
    bodies: list[bytes | Lack],
    found: dict[int, Body],
) -> list[int]:
    """Take what is whole, put on record what a device has lost; returns where the others stand."""
    left: list[int] = []
    lost: dict[int, bool] = {}
    columns = zip(sought.seqs, sought.lengths, sought.crcs, bodies, strict=True)
    for at, (seq, length, crc, body) in enumerate(columns):
        if isinstance(body, bytes) and len(body) == length and crc32c(body) == crc:
            found[seq] = body
            continue
        left.append(at)
        if body is not Lack.UNREADABLE:
            lost[seq] = body is not Lack.MISSING
    engine.keeping.readers.count(sought.devices[0], len(bodies) - len(left))
    unreadable = bodies.count(Lack.UNREADABLE)
    if unreadable:
        engine.keeping.erred(sought.devices[0], f"{unreadable} of its copies could not be read")
    if lost:
        with engine.lock:
            _leave_doubtful(engine, shard, sought.devices[0], lost)
            _mark_lost(engine.keeping, shard, sought.devices[0], lost, found)
    return left


def _leave_doubtful(engine: Engine, shard: Shard, device: str, lost: dict[int, bool]) -> None:
    """Take those out whose only copy came wrong, as long as it may come right yet."""
    keeper, holdings, now_ms = engine.keeping, engine.holdings, engine.now_ms()
    pid, doubtful = shard.partition.pid, 0
    for seq in [seq for seq, damaged in lost.items() if damaged]:
        name = name_of(pid, seq)
        if holdings.of(name).copies == {device} and not keeper.doubts.are_over(name, now_ms):
            del lost[seq]
            doubtful += 1
    if doubtful:
        log.error("only_copy_wrong", device=device, count=doubtful)
        keeper.erred(device, f"{doubtful} of its copies were not as they were put")


def _end_doubts(engine: Engine, shard: Shard, seqs: Sequence[int], found: dict[int, Body]) -> None:
    """Copies that were read as they should be are doubted no more."""
    pid = shard.partition.pid
    names = [name_of(pid, seq) for seq in seqs if isinstance(found.get(seq), bytes)]
    with engine.lock:
        engine.keeping.doubts.end(names)


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


def keys_of(engine: Engine, shard: Shard, seqs: Sequence[int]) -> Keys:
    """The names of messages' copies on every device."""
    numbers = np.array(seqs, dtype=np.int64)
    return Keys(engine.directory.identity.uuid, [(shard.partition.pid, numbers)])
