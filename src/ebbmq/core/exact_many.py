"""Many rows of an exact order at once, as columns; `exact` says what the order is.

Theory of operation. From every source some rows are looked at, those delivered first, and all of
them are sorted together. A source with more rows than were looked at hides some, which come after
the last one of it that was; so what comes no later than any of those last ones comes next for sure.
It is taken, and if that was not enough, more is looked at.

Keys that `exact` keeps of its sources stay true: taking rows only makes a source's head worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from ebbmq.core.row import HIGH, LOW48, READY
from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.core.classes import OrderClass
    from ebbmq.core.index import Index

    Seqs = npt.NDArray[np.uint64]

_LOW48: Final = np.uint64(LOW48)
_HIGH: Final = np.uint64(HIGH)
_READY: Final = np.uint64(READY)
#: Rows looked at in each source beyond its share of what is wanted.
_MORE: Final = 16


class Seen(NamedTuple):
    """The rows of a source that are delivered first, and whether it has more."""

    known: OrderClass
    #: The first one first.
    seqs: Seqs
    has_more: bool


class Source(Protocol):
    """What is asked of a source; `exact` has two kinds."""

    def look(self, count: int) -> Seen:
        """The rows delivered first, ghosts among them."""

    def drop(self, count: int) -> None:
        """Let go of the rows delivered first."""


def take(index: Index, sources: Sequence[Source], count: int, now_ms: int) -> list[int]:
    """Take up to `count` rows in delivery order, none of them a ghost."""
    out: list[int] = []
    share = 2 * count // max(1, len(sources)) + _MORE
    while len(out) < count:
        seen = [(source, found) for source in sources if len((found := source.look(share)).seqs)]
        if not seen:
            break
        chosen = _first(index, [found for _, found in seen], count - len(out), now_ms)
        for (source, _), used in zip(seen, chosen.used, strict=True):
            if used:
                source.drop(used)
        out += chosen.seqs
        share *= 2
    return out


class _Chosen(NamedTuple):
    seqs: list[int]
    #: By source: how many of its first rows are used up, ghosts among them.
    used: list[int]


def _first(index: Index, seen: list[Seen], count: int, now_ms: int) -> _Chosen:
    """The rows that come next for sure, at most `count`."""
    sizes = np.array([len(each.seqs) for each in seen])
    ends = np.cumsum(sizes)
    owner = np.repeat(np.arange(len(seen)), sizes)
    seqs = np.concatenate([each.seqs for each in seen])
    by_seq = np.argsort(seqs)
    rows = seqs[by_seq]
    alive = np.empty(len(seqs), dtype=np.bool_)
    alive[by_seq] = index.column(rows, "state") == _READY
    enqueued = np.empty(len(seqs), dtype=np.uint64)
    enqueued[by_seq] = index.column(rows, "enqueued")
    there = np.flatnonzero(alive)
    # Where no row of a source is alive, its ghosts are used up, and what it hides is not known.
    last = np.full(len(seen), -1)
    last[owner[there]] = there
    unknown = any(each.has_more and at < 0 for each, at in zip(seen, last.tolist(), strict=True))
    used = np.where(last < 0, sizes, 0)
    if unknown or not len(there):
        return _Chosen([], used.tolist())
    order = there[_sorted(seen, owner[there], seqs[there], enqueued[there], now_ms)]
    hiding = np.array([each.has_more for each in seen])
    if hiding.any():
        place = np.empty(len(seqs), dtype=np.int64)
        place[order] = np.arange(len(order))
        order = order[: int(place[last[hiding]].min()) + 1]
    order = order[:count]
    starts = ends - sizes
    np.maximum.at(used, owner[order], order - starts[owner[order]] + 1)
    return _Chosen(seqs[order].tolist(), used.tolist())


def _sorted(
    seen: list[Seen],
    owner: npt.NDArray[np.int64],
    seqs: Seqs,
    enqueued: Seqs,
    now_ms: int,
) -> npt.NDArray[np.intp]:
    """Rows by value, then by when they were published, failures and number, as `exact` has it."""
    importance, rate, span = (
        np.array(column, dtype=np.float64)[owner]
        for column in zip(
            *((each.known.importance, each.known.rate, each.known.span_ms) for each in seen),
            strict=True,
        )
    )
    at_ms = (enqueued & _LOW48).astype(np.int64)
    left = policy.decayed(importance, rate, (now_ms - at_ms).astype(np.float64), span)
    value = np.maximum(left, 0.0)
    failures = enqueued >> _HIGH
    latest = np.argsort(seqs)[::-1]
    # Mostly nobody failed and numbers rise with the instants, so that a number tells all the rest.
    if failures.any() or (np.diff(at_ms[latest]) > 0).any():
        return np.lexsort((-seqs.astype(np.int64), failures, -at_ms, -value))
    return latest[np.argsort(-value[latest], kind="stable")]
