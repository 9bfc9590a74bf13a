"""Bodies of messages that are to be copied to a device: from RAM, the log, or another device.

Rows are looked at many at a time. An archive is given them as columns, with what it shows of a
message beside its body.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ebbmq import limits
from ebbmq.core.block import (
    BYTE,
    DEAD,
    DUE,
    ENQUEUED,
    IMPORTANCE_BIT,
    KIND,
    LOW32,
    RATE_BIT,
    SIZE,
    STATE,
    Block,
)
from ebbmq.core.copies import followed_by, name_of, names_of, parts_of, seqs_of
from ebbmq.core.row import FREE, HIGH, IN_DOUBT, LOW48, RATE_UNIT
from ebbmq.holding.columns import Batch, Columns, Told
from ebbmq.holding.contract import Copy, Key
from ebbmq.node import leasing
from ebbmq.node.keeping.decisions import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.core.arrivals import Batch as Published
    from ebbmq.core.copies import Name
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

_BYTES_MAX: Final = 2 * limits.MIB
#: Kinds of devices that are given columns, not an object a message.
_TAKE_COLUMNS: Final = ("file", "object")
_ARCHIVE_BYTES_MAX: Final = 18 * limits.MIB
#: So many rows are looked at before others get the lock.
_LOOKED_AT_ONCE: Final = 512
#: For every copy that is made: these take half the time of the classes themselves.
_KEY: Final[Callable[[tuple[bytes, int, int]], Key]] = partial(tuple.__new__, Key)
_COPY: Final[Callable[[tuple[Any, ...]], Copy]] = partial(tuple.__new__, Copy)


class Load(NamedTuple):
    """Messages whose bodies were read, on their way to a device."""

    names: Sequence[Name]
    copies: Sequence[Copy]

    @property
    def is_verified(self) -> bool:
        """Whether the device that took them has read them back itself."""
        return isinstance(self.copies, Batch) and self.copies.is_verified

    @property
    def nbytes(self) -> int:
        """What their bodies take."""
        if isinstance(self.copies, Batch):
            return self.copies.nbytes
        return sum([len(copy.payload) for copy in self.copies])

    def keys(self) -> Sequence[Key]:
        """Their names on every device."""
        if isinstance(self.copies, Batch):
            return self.copies.keys()
        return [copy.key for copy in self.copies]

    def payloads(self) -> list[bytes]:
        """Their bodies."""
        if isinstance(self.copies, Batch):
            return self.copies.payloads()
        return [copy.payload for copy in self.copies]


def published(store: bytes, names: Sequence[Name], first: Name, batch: Published) -> Load:
    """Messages of a batch that was just published, the first of which has this name."""
    pid, first_seq = parts_of(first)
    payloads, crcs = batch.payloads, batch.crcs
    seqs = np.arange(first_seq, first_seq + len(payloads))
    if len(names) < len(payloads):
        numbers = [name - first for name in names]
        payloads, crcs = [payloads[i] for i in numbers], [crcs[i] for i in numbers]
        seqs = seqs[numbers]
    columns = Columns(
        np.full(len(names), pid),
        seqs,
        np.array(crcs, dtype=np.int64),
        payloads,
        None,
        is_run=isinstance(names, range),
    )
    return Load(names, Batch(store, [columns]))


class _Part(NamedTuple):
    """Messages of one partition that are to be copied, with their bodies as far as in RAM."""

    shard: Shard
    queue: str
    seqs: Sequence[int]
    block: Block
    payloads: list[bytes | None]


def load(
    engine: Engine, names: Sequence[Name], device: str, kind: str, *, giving_way: bool = False
) -> tuple[Load, list[Name]]:
    """Bodies of messages still to be copied, and names for which there was no room (lock is free).

    For an archive they are more, and say what their messages are like. What cannot be read failed.
    Where nobody waits for it, those who serve clients may go first (`giving_way`).
    """
    archive, packed = kind == "object", kind in _TAKE_COLUMNS
    room = _ARCHIVE_BYTES_MAX if archive else _BYTES_MAX
    parts: list[_Part] = []
    rest: list[Name] = []
    for at in range(0, len(names), _LOOKED_AT_ONCE):
        if at and giving_way:
            engine.in_turn.give_way()
        with engine.in_turn:
            found, left = _wanted(engine, names[at : at + _LOOKED_AT_ONCE], device, room)
        parts += found
        rest += left
        room -= sum(part.block.total(SIZE, LOW32) for part in found)
    names_read: Sequence[Name] = ()
    copies: list[Copy] = []
    columns: list[Columns] = []
    unread: list[Name] = []
    for part in parts:
        _read(engine, part)
        pid = part.shard.partition.pid
        good = [i for i, payload in enumerate(part.payloads) if payload is not None]
        whole = len(good) == len(part.seqs)
        read = part.seqs if whole else [part.seqs[i] for i in good]
        names_read = followed_by(names_read, names_of(pid, read))
        if packed:
            columns.append(_columns(part, good, told=archive))
        else:
            copies.extend(_copies(engine, part, good))
        if not whole:
            unread += [
                name_of(pid, seq)
                for seq, payload in zip(part.seqs, part.payloads, strict=True)
                if payload is None
            ]
    if unread:
        with engine.in_turn:
            if engine.closed is None:
                engine.keeping.copies_failed(device, unread, UNREADABLE)
    if packed:
        uuid = engine.directory.identity.uuid
        return Load(names_read, Batch(uuid, columns, read_back=True)), rest
    return Load(names_read, copies), rest


def load_of(loaded: Load, names: Sequence[Name]) -> Load:
    """Some messages of a load, in their order there."""
    if len(names) == len(loaded.names):
        return loaded
    chosen = set(names)
    some = [
        (name, copy)
        for name, copy in zip(loaded.names, loaded.copies, strict=True)
        if name in chosen
    ]
    return Load([name for name, _ in some], [copy for _, copy in some])


def _wanted(
    engine: Engine, names: Sequence[Name], device: str, room: int
) -> tuple[list[_Part], list[Name]]:
    """Those still to be copied, as many as fit into one call, and the rest (lock is held)."""
    parts: list[_Part] = []
    rest: list[Name] = []
    for pid, seqs in seqs_of(engine.holdings.awaited(device, names)).items():
        shard = engine.catalog.shards.get(pid)
        if shard is None or shard.faulty is not None:
            continue
        part, left = _fitting(shard, seqs, room)
        rest += names_of(pid, left)
        if part is not None:
            room -= part.block.total(SIZE, LOW32)
            parts.append(part)
    return parts, rest


def _fitting(shard: Shard, seqs: Sequence[int], room: int) -> tuple[_Part | None, Sequence[int]]:
    """Messages of a partition that are there and fit, but always one, and those that do not fit."""
    words = shard.partition.index.words_at(seqs)
    states = words[:, KIND] & np.uint64(STATE)
    there = (states != FREE) & (states < IN_DOUBT)
    if not there.all():
        seqs = [seq for seq, is_there in zip(seqs, there.tolist(), strict=True) if is_there]
        words = words[there]
    left: Sequence[int] = ()
    ends = (words[:, SIZE] & np.uint64(LOW32)).astype(np.int64).cumsum()
    if len(ends) and ends[-1] > room:
        count = max(1, int(ends.searchsorted(room, "right"))) if room > 0 else 0
        seqs, left, words = seqs[:count], seqs[count:], words[:count]
    if not seqs:
        return None, left
    block = Block(words)
    importances = block.values(KIND, BYTE << IMPORTANCE_BIT, IMPORTANCE_BIT)
    payloads = list(map(shard.resident.get, seqs, importances))
    return _Part(shard, shard.queue.spec.name, seqs, block, payloads), left


def _read(engine: Engine, part: _Part) -> None:
    """Bring what is not in RAM (the lock is free)."""
    missing = [i for i, payload in enumerate(part.payloads) if payload is None]
    if not missing:
        return
    found = leasing.read_bodies(engine, part.shard, [part.seqs[i] for i in missing])
    for number, body in zip(missing, found, strict=True):
        if isinstance(body, bytes):
            part.payloads[number] = body


def _copies(engine: Engine, part: _Part, good: list[int]) -> list[Copy]:
    columns: list[Sequence[Any]] = [
        part.seqs,
        part.payloads,
        part.block.values(SIZE, LOW32 << 32, 32),
        [None] * len(part.seqs),
    ]
    if len(good) < len(part.seqs):
        columns = [[column[i] for i in good] for column in columns]
    seqs, *others = columns
    uuid, pid = engine.directory.identity.uuid, part.shard.partition.pid
    keys = map(_KEY, zip(repeat(uuid), repeat(pid), seqs, strict=False))
    return list(map(_COPY, zip(keys, *others, strict=True)))


def _columns(part: _Part, good: list[int], *, told: bool) -> Columns:
    block, seqs = part.block, np.array(part.seqs, dtype=np.int64)
    if len(good) < len(part.seqs):
        block, seqs = Block(block.words[good]), seqs[good]
    return Columns(
        np.full(len(seqs), part.shard.partition.pid),
        seqs,
        block.column(SIZE, LOW32 << 32, 32),
        [payload for payload in part.payloads if payload is not None],
        _told(part.queue, block) if told else None,
        is_run=isinstance(part.seqs, range) and len(good) == len(part.seqs),
    )


def _told(queue: str, block: Block) -> Told:
    return Told(
        queue,
        block.column(KIND, BYTE << IMPORTANCE_BIT, IMPORTANCE_BIT),
        block.column(ENQUEUED, LOW48),
        block.column(DEAD, LOW48),
        block.column(KIND, LOW32 << RATE_BIT, RATE_BIT) / RATE_UNIT,
        block.column(DUE, ~LOW48 & ((1 << 64) - 1), HIGH),
    )
