"""Catalog snapshots: every message that is there, page by page, the lock free in between.

A page is copied under the engine's lock and made into columns without it. So a snapshot is of an
instant only as far as pages are: a message that leaves while it is taken may be in it or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq import limits
from ebbmq.core import row as rows
from ebbmq.core.block import FLAGS_BIT, KIND, STATE, WORDS
from ebbmq.core.copies import NORMAL, name_of
from ebbmq.core.reviews import ages_of
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.snapshots import CATALOG, STATES
from ebbmq.node.feeding import arrays, judging
from ebbmq.node.feeding.judging import Judged
from ebbmq.node.feeding.unpacking import row_columns
from ebbmq.node.keeping import telling
from ebbmq.policy.advice import Kept
from ebbmq.policy.decay import Access, Score, decay_score, next_crossing_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.core.copies import Holding
    from ebbmq.model import QueueSpec
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.policy.placement import Terms
    from ebbmq.policy.rules.properties import States

    Ints = npt.NDArray[np.int64]

_PAGES_AT_ONCE: Final = 4
#: Texts that are the same for many messages, and stand there by their codes.
_CODED: Final = ("node", "queue")
_SCHEMA: Final = schema_of(CATALOG)
_STATES: Final = pa.array(STATES)
#: By the state in a row: its place in STATES.
_STATE_CODES: Final = np.array([0, *range(len(STATES))], dtype=np.int32)
assert STATES == ("scheduled", "replicating", "ready", "leased", "dying")


class _Copied(NamedTuple):
    """Messages of a partition as they were, with what is known of them beside their rows."""

    shard: Shard
    spec: QueueSpec
    terms: Terms
    seqs: Ints
    words: Words
    #: Which of the distinct holdings each message has.
    holdings: npt.NDArray[np.int32]
    accesses: dict[int, Access]
    held: list[tuple[int, int]]


class Snapshot:
    """One snapshot in the making."""

    def __init__(self, engine: Engine, boot: int) -> None:
        self._engine = engine
        self._boot = boot
        self._node = engine.config.node
        #: Distinct ones, the usual one first.
        self._holdings: dict[Holding, int] = {NORMAL: 0}
        #: Where rows are copied to.
        self._room = np.empty((_PAGES_AT_ONCE * limits.PAGE_ROWS, WORDS), dtype=np.uint64)
        #: By column, one value for as many messages as are copied at once.
        self._made: dict[str, tuple[object, pa.Array]] = {}
        with engine.lock:
            self.at_ms = engine.now_ms()
            self._pages = [
                (shard, sorted(shard.partition.index.pages))
                for shard in engine.catalog.shards.values()
                if shard.faulty is None
            ]

    def tables(self) -> Iterator[pa.Table]:
        """The messages of a few pages at a time."""
        for shard, numbers in self._pages:
            for start in range(0, len(numbers), _PAGES_AT_ONCE):
                copied = self._copy(shard, numbers[start : start + _PAGES_AT_ONCE])
                if copied is not None:
                    yield self._table(copied)

    def _copy(self, shard: Shard, numbers: Sequence[int]) -> _Copied | None:
        """The live messages of some pages.

        Only bytes are copied with the lock held, a page at a time; what is in them is looked at
        without it.
        """
        pid, index = shard.partition.pid, shard.partition.index
        slots: list[Ints] = []
        taken = 0
        for number in numbers:
            with self._engine.lock:
                page = index.pages.get(number)
                if page is None or not page.live or pid not in self._engine.catalog.shards:
                    continue
                self._room[taken : taken + len(page.words)] = page.words
                thin = None if page.thin is None else list(page.thin)
            slots.append(_slots(number, thin))
            taken += len(slots[-1])
        live = np.flatnonzero(self._room[:taken, KIND] & np.uint64(STATE))
        if not len(live):
            return None
        seqs, words = np.concatenate(slots), self._room[:taken]
        if len(live) < taken:
            seqs, words = seqs[live], words.take(live, 0)
        with self._engine.lock:
            spec = shard.queue.spec
            terms = self._engine.keeping.placing.terms(spec)
            held = [(run.first, run.length) for _, _, runs in shard.partition.held for run in runs]
        which = self._which(pid, seqs, words)
        return _Copied(shard, spec, terms, seqs, words, which, _accesses(shard, seqs), held)

    def _which(self, pid: int, seqs: Ints, words: Words) -> npt.NDArray[np.int32]:
        out = np.zeros(len(seqs), dtype=np.int32)
        places = np.flatnonzero(words[:, KIND] & np.uint64(rows.HELD << FLAGS_BIT))
        known = self._holdings
        for start in range(0, len(places), limits.PAGE_ROWS):
            some = places[start : start + limits.PAGE_ROWS]
            names = [name_of(pid, seq) for seq in seqs[some].tolist()]
            with self._engine.lock:
                found = self._engine.holdings.of_many(names)
            out[some] = [known.setdefault(each, len(known)) for each in found]
        return out

    # Columns

    def _table(self, page: _Copied) -> pa.Table:
        count, partition = len(page.seqs), page.shard.partition
        known = row_columns(page.words)
        generation, enqueued = arrays.plain(known["generation"]), known["enqueued_at_ms"]
        columns = {
            "node": self._same(self._node, "node", count),
            "boot": self._same(self._boot, "boot", count),
            "at_ms": self._same(self.at_ms, "at_ms", count),
            "queue": self._same(page.spec.name, "queue", count),
            "partition": self._same(page.shard.queue.shards.index(page.shard), "partition", count),
            "message_id": arrays.message_ids(np.full(count, partition.pid), page.seqs),
            "generation": generation,
            "state": arrays.coded(_states(page, known["state"]), _STATES),
            "importance": arrays.plain(known["importance"]),
            "decay_rate": arrays.plain(known["rate"]),
            "ttl_ms": arrays.plain(known["ttl_ms"], known["ttl_ms"] == 0),
            "bytes": arrays.plain(known["bytes"]),
            "attempts": generation,
            "failures": arrays.plain(known["failures"]),
            "enqueued_at_ms": arrays.plain(enqueued),
            "durable": arrays.plain((known["flags"] & rows.DURABLE) > 0),
            "policy_version": self._same(page.terms.version, "policy_version", count),
        }
        columns |= self._reads(page, enqueued) | self._copies(page)
        return arrays.table_of(columns, _SCHEMA)

    def _reads(self, page: _Copied, enqueued: Ints) -> dict[str, pa.Array]:
        """What depends on how often messages are read: rate, score, when to look again."""
        rate, read_at = np.zeros(len(enqueued)), np.zeros(len(enqueued), dtype=np.int64)
        present = rate.copy()
        review_at = _review_at(enqueued, ages_of(page.terms), self.at_ms)
        score = Score.of(page.spec)
        for at, access in _placed(page):
            rate[at], read_at[at] = access
            present[at] = access.rate_at(self.at_ms)
            crossing_ms = next_crossing_ms(score, int(enqueued[at]), access, self.at_ms)
            review_at[at] = crossing_ms or 0
        days = (self.at_ms - enqueued) / limits.DAY_MS
        faded = decay_score(days, present, score.base, score.per_day, score.access_bonus)
        judged = Judged(page.terms, self._kept(), page.holdings, faded, enqueued)
        review_at = judging.review_at(judged, review_at, self.at_ms)
        return {
            "access_rate": arrays.plain(rate),
            "access_at_ms": arrays.plain(read_at),
            "decay_score": arrays.plain(faded),
            "review_at_ms": arrays.plain(review_at, review_at == 0),
        }

    def _kept(self) -> list[Kept]:
        """The distinct ways messages are kept."""
        states = self._states()
        return [
            Kept(each.replicas, each.target, len(each.copies), telling.tier_of(each.copies, states))
            for each in self._holdings
        ]

    def _states(self) -> States:
        devices = self._engine.devices
        return {} if devices is None else devices.states

    def _copies(self, page: _Copied) -> dict[str, pa.Array]:
        """Where messages are; most are as all the others."""
        states = self._states()
        known, which = list(self._holdings), page.holdings
        there = [
            sorted(each.copies, key=lambda name: states[name].latency_ms if name in states else 0)
            for each in known
        ]
        values: dict[str, list[Any]] = {
            "replicas": [each.replicas for each in known],
            "replica_target": [each.target for each in known],
            "copies": [len(each.copies) for each in known],
            "tier": [telling.tier_of(each.copies, states) or None for each in known],
            "devices": there,
        }
        if not which.any():
            return {name: self._same(each[0], name, len(which)) for name, each in values.items()}
        places = arrays.plain(which)
        return {
            name: pa.array(each, _SCHEMA.field(name).type).take(places)
            for name, each in values.items()
        }

    def _same(self, value: object, column: str, count: int) -> pa.Array:
        """One value for so many messages: made once, as most pages have the same."""
        made, whole = self._made.get(column, (None, None))
        if whole is None or made != value:
            one = pa.array([value], _SCHEMA.field(column).type)
            zeros = np.zeros(len(self._room), dtype=np.int32)
            is_coded = column in _CODED
            whole = arrays.coded(zeros, one) if is_coded else one.take(arrays.plain(zeros))
            self._made[column] = value, whole
        return whole.slice(0, count)


def _slots(number: int, thin: list[int] | None) -> Ints:
    """The numbers of the messages whose rows a page has."""
    first = number * limits.PAGE_ROWS
    if thin is None:
        return np.arange(first, first + limits.PAGE_ROWS)
    return first + np.array(thin, dtype=np.int64) // rows.ROW.size


def _accesses(shard: Shard, seqs: Ints) -> dict[int, Access]:
    """How often messages are read, of those that are."""
    rates = shard.partition.accesses.rates
    if not rates:
        return {}
    found = ((seq, rates.get(seq)) for seq in seqs.tolist())
    return {seq: access for seq, access in found if access is not None}


def _states(page: _Copied, states: Ints) -> npt.NDArray[np.int32]:
    """What people call the state; what waits for its level is ready only by its row."""
    codes: npt.NDArray[np.int32] = _STATE_CODES[states]
    for first, length in page.held:
        waits = (page.seqs >= first) & (page.seqs < first + length)
        codes[waits] = _STATE_CODES[rows.REPLICATING]
    return codes


def _review_at(enqueued: Ints, ages: list[int], now_ms: int) -> Ints:
    """When messages that nobody reads are looked at again; 0 for never."""
    out = np.zeros(len(enqueued), dtype=np.int64)
    for age in sorted(ages, reverse=True):
        out = np.where(enqueued + age > now_ms, enqueued + age, out)
    return out


def _placed(page: _Copied) -> Iterator[tuple[int, Access]]:
    """Reads of messages, by where these are in the page."""
    if page.accesses:
        at = {seq: number for number, seq in enumerate(page.seqs.tolist())}
        for seq, access in page.accesses.items():
            yield at[seq], access
