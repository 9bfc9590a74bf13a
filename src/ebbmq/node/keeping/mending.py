"""Copies that are lacking are asked for, those of the most valuable messages first, of any number.

Messages that lack copies are counted by the band of their value (`policy.precedence`) in one pass,
and asked for in further ones: a band of many as they come, bands of few together and in order. So
what is remembered does not grow with the number of messages, and the lock is free between slices.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.core.block import BYTE, DEAD, ENQUEUED, IMPORTANCE_BIT, KIND, LOW32, RATE_BIT, STATE
from ebbmq.core.copies import names_of, parts_of, seqs_of
from ebbmq.core.row import LOW48, RATE_UNIT
from ebbmq.limits import DAY_MS
from ebbmq.node.keeping.keeper import lacks
from ebbmq.policy.decay import decay_score
from ebbmq.policy.importance import decayed
from ebbmq.policy.precedence import BANDS, bands_of, groups_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.core.copies import Devices, Holding, Name
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

    #: All messages that have copies, a few at a time, those that are alike together.
    Slices = Iterator[Mapping[Holding, Sequence[Name]]]

#: Messages of several bands that are put in order together.
_TOGETHER_MAX: Final = 262_144
#: To ask for a copy takes some tens of microseconds.
_ASKED_AT_ONCE: Final = 32
#: After so many that no device can take, others like them are not tried in this pass.
_IN_VAIN_MAX: Final = 1_024


class _Short(NamedTuple):
    """Messages that lack copies, with the bands of their value."""

    names: npt.NDArray[np.int64]
    bands: npt.NDArray[np.int16]


def mend(
    engine: Engine, slices: Callable[[], Slices], lost: Devices, is_stopped: Callable[[], bool]
) -> None:
    """Ask for every copy that is lacking while these devices are lost (the lock is free)."""
    now_ms = engine.now_ms()
    counts = np.zeros(BANDS, np.int64)
    for short in _short(engine, slices(), lost, now_ms):
        counts += np.bincount(short.bands, minlength=BANDS)
    asking = _Asking(engine, lost, is_stopped)
    for group in groups_of(counts.tolist(), _TOGETHER_MAX):
        found = _of(group, _short(engine, slices(), lost, now_ms))
        if len(group) == 1:
            for short in found:
                asking.ask(short.names.tolist())
            continue
        parts = list(found)
        if parts:
            bands = np.concatenate([part.bands for part in parts])
            order = np.argsort(-bands, kind="stable")
            asking.ask(np.concatenate([part.names for part in parts])[order].tolist())


def _of(group: range, every: Iterator[_Short]) -> Iterator[_Short]:
    """Those that are in a group of bands."""
    for short in every:
        mine = (short.bands >= group.start) & (short.bands < group.stop)
        if mine.any():
            yield _Short(short.names[mine], short.bands[mine])


class _Asking:
    """Asks for copies in slices; where none can be had of many alike, the others are left out."""

    def __init__(self, engine: Engine, lost: Devices, is_stopped: Callable[[], bool]) -> None:
        self._engine = engine
        self._lost = lost
        self._is_stopped = is_stopped
        #: By partition and what is known of copies: messages for which there was no device.
        self._in_vain: Counter[tuple[int, Holding]] = Counter()

    def ask(self, names: Sequence[Name]) -> None:
        for at in range(0, len(names), _ASKED_AT_ONCE):
            if self._is_stopped():
                return
            with self._engine.in_turn:
                if self._engine.closed is not None:
                    return
                self._ask(names[at : at + _ASKED_AT_ONCE])

    def _ask(self, names: Sequence[Name]) -> None:
        kinds = [
            (parts_of(name)[0], holding)
            for name, holding in zip(names, self._engine.holdings.of_many(names), strict=True)
        ]
        if self._in_vain:
            hopeful = [self._in_vain[kind] < _IN_VAIN_MAX for kind in kinds]
            names, kinds = list(compress(names, hopeful)), list(compress(kinds, hopeful))
        if names and not self._engine.keeping.mend(names, self._lost):
            self._in_vain.update(kinds)


def _short(engine: Engine, slices: Slices, lost: Devices, now_ms: int) -> Iterator[_Short]:
    for alike in slices:
        for holding, names in alike.items():
            if not lacks(holding, lost):
                continue
            for pid, seqs in seqs_of(names).items():
                with engine.lock:
                    shard = engine.catalog.shards.get(pid)
                    if shard is None or shard.faulty is not None:
                        continue
                    words = shard.partition.index.words_at(seqs)
                there = words[:, KIND] & np.uint64(STATE) != 0
                if there.any():
                    bands = _bands(engine, shard, words[there], now_ms)
                    yield _Short(np.array(names_of(pid, seqs), np.int64)[there], bands)


def _bands(engine: Engine, shard: Shard, words: Words, now_ms: int) -> npt.NDArray[np.int16]:
    """By current importance, then decay score; how often a message was read is left out."""
    spec, kinds = shard.queue.spec, words[:, KIND]
    importances = (kinds >> np.uint64(IMPORTANCE_BIT) & np.uint64(BYTE)).astype(np.float64)
    rates = (kinds >> np.uint64(RATE_BIT) & np.uint64(LOW32)) / RATE_UNIT
    enqueued = (words[:, ENQUEUED] & np.uint64(LOW48)).astype(np.int64)
    dead = (words[:, DEAD] & np.uint64(LOW48)).astype(np.int64)
    spans = np.where(dead > enqueued, dead - enqueued, spec.decay_unit_ms)
    ages = now_ms - enqueued
    score = engine.keeping.placing.terms(spec).score
    scores = decay_score(ages / DAY_MS, 0.0, score.base, score.per_day, score.access_bonus)
    return bands_of(decayed(importances, rates, ages, spans), scores, score.high)
