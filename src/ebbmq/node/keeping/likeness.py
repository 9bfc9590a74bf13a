"""Stored messages for which placement has one answer, found together.

A review may be about a whole backlog at once, so rows are looked at many at a time; only of a
message that has headers these are read. Messages that somebody reads are each looked at alone:
their score depends on when they were read.
"""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ebbmq import limits
from ebbmq.core.block import (
    BYTE,
    DUE,
    ENQUEUED,
    FLAGS_BIT,
    IMPORTANCE_BIT,
    KIND,
    LOW32,
    REASON_BIT,
    SIZE,
    STATE,
    Block,
)
from ebbmq.core.copies import names_of
from ebbmq.core.row import DURABLE, DYING, ELSEWHERE, FREE, HIGH, LEASED, LOW48, ORIGIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.placing import Stored
    from ebbmq.policy.rules.choose import View

_HEADERS: Final = ((1 << 64) - 1) & ~LOW48
#: What of a row's first word placement is told.
_TOLD: Final = DURABLE << FLAGS_BIT | BYTE << IMPORTANCE_BIT | ORIGIN << REASON_BIT


class Alike(NamedTuple):
    """Messages of a partition for which placement has one answer, and what is known of one."""

    shard: Shard
    stored: Stored
    seqs: Sequence[int]


class Looked(NamedTuple):
    """What was found of some messages."""

    alike: list[Alike]
    #: Leased, or its headers are on a device that is away.
    later: list[int]


class Looking:
    """One look at messages of a partition, under the engine's lock."""

    def __init__(
        self, engine: Engine, shard: Shard, view: View, fetched: Mapping[int, bytes]
    ) -> None:
        """Makes one.

        Args:
            engine: the engine.
            shard: the partition.
            view: the rules and the devices.
            fetched: headers that had to be read from devices.
        """
        self._engine, self._shard, self._fetched = engine, shard, fetched
        self._told = view.chooser.alike
        self._score = engine.keeping.placing.terms(shard.queue.spec).score

    def at(self, seqs: Sequence[int], now_ms: int) -> Looked:
        """Messages by what placement makes of them at an instant; the leased ones come later."""
        there, block = self._rows(seqs, but=LEASED)
        gone = set(there)
        later = [
            seq
            for seq in (seqs if len(there) < len(seqs) else ())
            if seq not in gone and self._shard.partition.index.state_of(seq) == LEASED
        ]
        if not there:
            return Looked([], later)
        if self._are_alike(there, block, now_ms):
            return Looked([self._alike(there)], later)
        return self._grouped(there, block, self._ages(there, block, now_ms), later)

    def _ages(self, seqs: Sequence[int], block: Block, now_ms: int) -> list[object]:
        """What is seen of the age of each; of one that somebody reads nothing else is like it."""
        ages = [now_ms - each for each in block.values(ENQUEUED, LOW48)]
        seen = {age_ms: self._seen(age_ms) for age_ms in set(ages)}
        keys: list[object] = [seen[age_ms] for age_ms in ages]
        rates = self._shard.partition.accesses.rates
        if rates:
            keys = [seq if seq in rates else key for seq, key in zip(seqs, keys, strict=True)]
        return keys

    def _are_alike(self, seqs: Sequence[int], block: Block, now_ms: int) -> bool:
        """Whether messages are plainly of one kind, as a backlog mostly is."""
        if (
            self._shard.partition.accesses.rates
            or len(self._engine.pins)
            or block.some[DUE] & _HEADERS
            or not block.is_same(KIND, _TOLD)
            or not block.is_same(SIZE, LOW32)
        ):
            return False
        instants = set(block.values(ENQUEUED, LOW48))
        if len({self._seen(now_ms - each) for each in instants}) > 1:
            return False
        return self._engine.holdings.are_alike(names_of(self._shard.partition.pid, seqs))

    def whenever(self, seqs: Sequence[int], now_ms: int) -> Looked:
        """Messages by what placement makes of them at an instant, the leased ones as others."""
        there, block = self._rows(seqs, but=FREE)
        if not there:
            return Looked([], [])
        return self._grouped(there, block, self._ages(there, block, now_ms), [])

    def _rows(self, seqs: Sequence[int], but: int) -> tuple[Sequence[int], Block]:
        """Those that are there, neither dying nor in doubt, and not in a state."""
        words = self._shard.partition.index.words_at(seqs)
        states = words[:, KIND] & np.uint64(STATE)
        there = (states != FREE) & (states < DYING) & (states != but)
        if there.all():
            return seqs, Block(words)
        kept = [seq for seq, is_there in zip(seqs, there.tolist(), strict=True) if is_there]
        return kept, Block(words[there])

    def _seen(self, age_ms: int) -> tuple[object, ...]:
        """What the rules and people see of an age; a tenth of a point is what people are told."""
        value, told = self._score.at(age_ms, 0.0), self._told
        return (
            self._score.phase(value),
            self._score.way_back().phase(value),
            round(value, 1),
            told.number("decay_score", value),
            told.number("age", age_ms / limits.DAY_MS),
        )

    def _grouped(
        self, seqs: Sequence[int], block: Block, ages: list[object], later: list[int]
    ) -> Looked:
        shard = self._shard
        # The headers block in front of a body is not part of it.
        headers = block.values(DUE, _HEADERS, HIGH)
        sizes = list(map(sub, block.values(SIZE, LOW32), headers))
        buckets = {size: self._told.number("size", size / limits.KIB) for size in set(sizes)}
        names = names_of(shard.partition.pid, seqs)
        columns: list[list[Any]] = [
            self._headers(seqs, block),
            self._engine.holdings.of_many(names),
            block.values(KIND, _TOLD),
            [buckets[size] for size in sizes],
            ages,
            self._engine.pins.of_many(names),
        ]
        # Mostly a backlog is of one kind, and only what differs has to be compared.
        differing = [each for each in columns if each.count(each[0]) < len(each)]
        groups: dict[object, Sequence[int]] = {}
        if not differing:
            groups[None] = seqs
        else:
            found: dict[object, list[int]] = {}
            for seq, key in zip(seqs, zip(*differing, strict=True), strict=True):
                found.setdefault(key, []).append(seq)
            groups.update(found)
        if None in columns[0]:
            unknown = {seq for seq, told in zip(seqs, columns[0], strict=True) if told is None}
            later += unknown
            groups = {key: some for key, some in groups.items() if some[0] not in unknown}
        return Looked([self._alike(each) for each in groups.values()], later)

    def _headers(self, seqs: Sequence[int], block: Block) -> list[bytes | None]:
        sizes = block.values(DUE, _HEADERS, HIGH)
        if not any(sizes):
            return [b""] * len(seqs)
        return [
            self._stored(seq).headers if size else b""
            for seq, size in zip(seqs, sizes, strict=True)
        ]

    def _alike(self, seqs: Sequence[int]) -> Alike:
        return Alike(self._shard, self._stored(seqs[0]), seqs)

    def _stored(self, seq: int) -> Stored:
        row = self._shard.partition.index.read(seq)
        assert row is not None
        return self._engine.keeping.stored(self._shard, seq, row, self._fetched.get(seq))


def away_with_headers(shard: Shard, seqs: Sequence[int]) -> list[int]:
    """Those whose body is not in the log, and has headers in front (the lock is held)."""
    words = shard.partition.index.words_at(seqs)
    away = (words[:, KIND] & np.uint64(ELSEWHERE << FLAGS_BIT)) != 0
    with_headers = words[:, DUE] > np.uint64(LOW48)
    return [seqs[at] for at in np.flatnonzero(away & with_headers).tolist()]
