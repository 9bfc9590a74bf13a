"""Rows of a publish whose messages are of few kinds: made as columns, not one by one.

What comes of it is what comes of the same messages given one by one; it pays from some ten messages
of a kind on. Who replays recorded traffic has them so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.block import (
    DEAD,
    DUE,
    ENQUEUED,
    FLAGS_BIT,
    IMPORTANCE_BIT,
    KIND,
    PLACE,
    RATE_BIT,
    REASON_BIT,
    SIZE,
    WHERE,
    WORDS,
)
from ebbmq.core.index import SLOT_MASK
from ebbmq.core.origin import origin
from ebbmq.core.row import DURABLE, HIGH, READY, SCHEDULED

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.arrivals import Batch, Runs
    from ebbmq.core.block import Words
    from ebbmq.core.index import Index

    Shared = tuple[int, int, int]

#: The words that all rows of a stretch share.
_SHARED: Final = (KIND, DEAD, DUE)


def rows_of(batch: Batch, runs: Runs, which: npt.NDArray[np.intp], place: int, flags: int) -> Words:
    """The rows of a batch, in which message `i` says what `batch.messages[which[i]]` says."""
    count = len(which)
    starts: list[int] = [0, *(np.flatnonzero(which[1:] != which[:-1]) + 1).tolist()]
    lengths = [end - start for start, end in zip(starts, [*starts[1:], count], strict=True)]
    shared = [
        _begin(batch, runs, kind, (start, length), flags)
        for kind, start, length in zip(which[starts].tolist(), starts, lengths, strict=True)
    ]
    runs.end(runs.first + count)
    kinds = np.zeros((len(starts), WORDS), dtype=np.uint64)
    kinds[:, _SHARED] = shared
    kinds[:, ENQUEUED] = runs.now_ms
    words = kinds.repeat(lengths, axis=0)
    words[:, PLACE] = np.arange(place, place + count, dtype=np.uint64)
    return words


def _begin(batch: Batch, runs: Runs, kind: int, stretch: tuple[int, int], flags: int) -> Shared:
    """A stretch of rows of one kind begins; what they share."""
    message = batch.messages[kind]
    first = runs.first + stretch[0]
    importance, rate, dead = runs.begin(
        (message.importance, message.ttl_ms, message.decay_rate), first
    )
    state, due = READY, 0
    if message.delay_ms:
        state, due = SCHEDULED, runs.now_ms + message.delay_ms
        for seq in range(first, first + stretch[1]):
            runs.schedule(seq, due)
    flags = flags | DURABLE if message.durable else flags
    word = state | flags << FLAGS_BIT | importance << IMPORTANCE_BIT | rate << RATE_BIT
    return word | origin(batch.qos, topic=batch.topic) << REASON_BIT, dead, due


def add_bodies(words: Words, batch: Batch, segment: int, offset: int) -> None:
    """Have rows say where their bodies are, and what is checked of them."""
    words[:, WHERE] = segment | offset << 32
    if batch.body_bytes:
        sizes = np.array([len(payload) for payload in batch.payloads], dtype=np.uint64)
        words[1:, WHERE] += np.cumsum(sizes[:-1]) << np.uint64(32)
        words[:, SIZE] = sizes
    if any(batch.crcs):
        words[:, SIZE] |= np.array(batch.crcs, dtype=np.uint64) << np.uint64(32)
    if any(batch.header_sizes):
        words[:, DUE] |= np.array(batch.header_sizes, dtype=np.uint64) << np.uint64(HIGH)


def put(index: Index, first: int, words: Words) -> None:
    """Put rows into their pages."""
    at = 0
    while at < len(words):
        page = index.page_for(first + at)
        slot = (first + at) & SLOT_MASK
        part = words[at : at + limits.PAGE_ROWS - slot]
        page.words[slot : slot + len(part)] = part
        page.live += len(part)
        page.dirty = True
        at += len(part)
