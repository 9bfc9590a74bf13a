"""Rows of a plan against the present: which of them still fit, and why the others do not.

Rows are looked at many at a time. A reason that comes first in `outdated` is the one that is told.
Everything here is called with the engine's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.block import ENQUEUED, KIND, LEASE, LOW32, STATE
from ebbmq.core.copies import name_of
from ebbmq.core.row import FREE, LOW48, READY
from ebbmq.policy.decay import Score, decay_score, has_crossed

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from ebbmq.core.pins import Advice
    from ebbmq.node.advising.rows import Ints, Rows
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

    Bools = npt.NDArray[np.bool_]

IN_FORCE: Final = "in_force"
FITS: Final = ""


def outdated(engine: Engine, shard: Shard, run: str, rows: Rows) -> list[str]:
    """Of rows about messages of one partition: why each does not fit; FITS if it does."""
    now_ms = engine.now_ms()
    words = shard.partition.index.words_of(rows["seq"].astype(np.uint64))
    states = words[:, KIND] & np.uint64(STATE)
    generations = (words[:, LEASE] & np.uint64(LOW32)).astype(np.int64)
    enqueued = (words[:, ENQUEUED] & np.uint64(LOW48)).astype(np.int64)
    name, terms = shard.queue.spec.name, engine.keeping.placing.terms(shard.queue.spec)
    other = np.array([queue != name for queue in rows["queue"]], dtype=bool)
    found = _first(
        len(rows),
        (
            ("gone", (states == FREE) | other),
            ("not_ready", states != READY),
            ("generation", generations != rows["generation"]),
            ("policy_version", rows["policy_version"] != terms.version),
            ("run_out", rows["until_ms"] <= now_ms),
            ("crossed", _crossed(terms.score, enqueued, rows["decided_at_ms"], now_ms)),
        ),
    )
    if shard.partition.accesses.rates:
        _note_read(shard, rows, enqueued, found, now_ms)
    _note_pinned(engine, shard, run, rows, found)
    late = _first(
        len(rows),
        (
            ("too_old", rows["decided_at_ms"] < now_ms - limits.ADVICE_AGE_MS_MAX),
            ("clock", rows["decided_at_ms"] > now_ms + limits.ADVICE_AHEAD_MS_MAX),
        ),
    )
    return [first or then for first, then in zip(found, late, strict=True)]


def _first(count: int, reasons: Iterable[tuple[str, Bools]]) -> list[str]:
    """Of each row the first reason that counts for it."""
    told = np.full(count, FITS, dtype=object)
    open_ = np.ones(count, dtype=bool)
    for reason, counts in reasons:
        told[open_ & counts] = reason
        open_ &= ~counts
    found: list[str] = told.tolist()
    return found


def _crossed(score: Score, enqueued: Ints, since: Ints, now_ms: int) -> Bools:
    """Whether messages that nobody reads are in another phase than they were."""
    before = _phases(score, np.maximum(0, since - enqueued))
    crossed: Bools = before != _phases(score, now_ms - enqueued)
    return crossed


def _phases(score: Score, ages_ms: Ints) -> Ints:
    """`Score.phase` of many that nobody reads."""
    days = ages_ms / limits.DAY_MS
    values = decay_score(days, 0.0, score.base, score.per_day, score.access_bonus)
    phases: Ints = np.where(values > score.high, 2, values > score.medium)
    return phases


def _note_read(shard: Shard, rows: Rows, enqueued: Ints, found: list[str], now_ms: int) -> None:
    """Messages that somebody reads are judged one by one."""
    rates, score = shard.partition.accesses.rates, Score.of(shard.queue.scored)
    for at, seq in enumerate(rows["seq"].tolist()):
        access = rates.get(seq)
        if access is None or found[at] not in (FITS, "crossed"):
            continue
        since_ms, enqueued_ms = int(rows["decided_at_ms"][at]), int(enqueued[at])
        crossed = has_crossed(score, enqueued_ms, access, since_ms, now_ms)
        found[at] = "crossed" if crossed else FITS


def _note_pinned(engine: Engine, shard: Shard, run: str, rows: Rows, found: list[str]) -> None:
    """Say of messages that are held to a plan whether it is this one, or a newer one."""
    if not len(engine.pins):
        return
    base, now_ms = name_of(shard.partition.pid, 0), engine.now_ms()
    pinned = engine.pins.of_many([base | seq for seq in rows["seq"].tolist()])
    for at, advice in enumerate(pinned):
        if advice is None or found[at] != FITS or not _holds(advice, rows, at, now_ms):
            continue
        if advice.run == run or advice.pin.decided_at_ms >= rows["decided_at_ms"][at]:
            found[at] = IN_FORCE if _is_same(advice, rows, at) else "superseded"


def _holds(advice: Advice, rows: Rows, at: int, now_ms: int) -> bool:
    """Whether a message, of which a row is right, is still held to earlier advice."""
    pin = advice.pin
    return bool(
        now_ms < pin.until_ms
        and pin.generation == rows["generation"][at]
        and pin.policy_version == rows["policy_version"][at]
    )


def _is_same(advice: Advice, rows: Rows, at: int) -> bool:
    """Whether a message is held to what a row asks for."""
    return bool(advice.pin.target == rows["target"][at] and advice.pin.tier == rows["to_tier"][at])
