"""Catalog snapshots: every message that is there, page by page, the lock free in between.

A page is copied under the engine's lock, and many are made into columns without it: each step on
arrays takes the interpreter from whoever publishes once more, however long they are. So there is an
array only of what differs between messages (one look at their rows tells), and a snapshot is of an
instant only as far as pages are: a message that leaves while it is taken may be in it or
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq import limits
from ebbmq.core import block
from ebbmq.core import row as rows
from ebbmq.core.block import WORDS
from ebbmq.core.copies import NORMAL, name_of
from ebbmq.core.reviews import ages_of
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.settings import FaultyPartition
from ebbmq.feed.snapshots import CATALOG, STATES
from ebbmq.node.feeding import arrays, judging
from ebbmq.node.feeding.judging import Judged
from ebbmq.node.feeding.unpacking import keep_live
from ebbmq.node.keeping import telling
from ebbmq.policy.advice import Kept
from ebbmq.policy.decay import decay_score, next_crossing_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.core.copies import Holding
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.policy.decay import Access
    from ebbmq.policy.placement import Terms
    from ebbmq.policy.rules.properties import States

    Ints = npt.NDArray[np.int64]

#: Of one table, at most: a step of a snapshot takes some milliseconds.
_MESSAGES_AT_ONCE: Final = 16 * limits.PAGE_ROWS
_PAGES_AT_ONCE: Final = 64
_HELD: Final = rows.HELD << block.FLAGS_BIT
#: Texts that are the same for many messages, and stand there by their codes.
_CODED: Final = ("node", "queue", "state")
_SCHEMA: Final = schema_of(CATALOG)
_STATES: Final = pa.array(STATES)
#: By the state in a row, or the one it was in before it came to be in doubt: its place in STATES.
_STATE_CODES: Final = np.tile(
    np.pad(np.arange(len(STATES), dtype=np.int32), (1, rows.IN_DOUBT - len(STATES) - 1)), 2
)
assert STATES == ("scheduled", "replicating", "ready", "leased", "dying")
#: Where a field stands in a row: its word, from which bit on, and which bits.
_STATE: Final = block.KIND, 0, block.STATE
_DURABLE: Final = block.KIND, block.FLAGS_BIT, rows.DURABLE
_IMPORTANCE: Final = block.KIND, block.IMPORTANCE_BIT, block.BYTE
_RATE: Final = block.KIND, block.RATE_BIT, block.LOW32
_ENQUEUED: Final = block.ENQUEUED, 0, rows.LOW48
_FAILURES: Final = block.ENQUEUED, rows.HIGH, 0xFFFF
_DEAD: Final = block.DEAD, 0, rows.LOW48
_BYTES: Final = block.SIZE, 0, block.LOW32
_GENERATION: Final = block.LEASE, 0, block.LOW32


class _Run(NamedTuple):
    """So many messages of a partition."""

    queue: str
    partition: int
    pid: int
    #: Of the parameters they are judged by.
    version: int
    messages: int


class _Page(NamedTuple):
    """A page that was copied, but for its rows."""

    terms: Terms
    run: _Run
    seqs: Ints
    #: Runs of messages that wait for their level: the first, and how many.
    held: list[tuple[int, int]]
    #: How often messages are read, of those that are.
    accesses: dict[int, Access]


class _Copied(NamedTuple):
    """Messages as they were, with what is known of them beside their rows."""

    #: The same for all; their version is each run's own.
    terms: Terms
    runs: list[_Run]
    seqs: Ints
    fields: _Fields
    #: Which of the distinct holdings each message has; None where all have the usual one.
    holdings: npt.NDArray[np.int32] | None
    #: By their places here: reads of those that are read, and those that wait for their level.
    accesses: dict[int, Access]
    waiting: Ints


class _Fields:
    """What rows have in their fields."""

    def __init__(self, words: Words) -> None:
        self.words = words
        #: The bits that some row has, and those that every row has.
        self.some, self.every = block.fold_rows(words)

    def of(self, word: int, bit: int, bits: int) -> int | Ints:
        """A field: one number where it is the same in all rows."""
        same = self.every[word] >> bit & bits
        if self.some[word] >> bit & bits == same:
            return same
        return (self.words[:, word] >> np.uint64(bit) & np.uint64(bits)).astype(np.int64)


class Workroom:
    """What snapshots use one after the other: memory that is mapped anew takes time."""

    def __init__(self) -> None:
        #: Where the rows of pages are copied to, one after the other.
        self.rows = np.empty((_MESSAGES_AT_ONCE + limits.PAGE_ROWS, WORDS), dtype=np.uint64)
        self._zeros = np.zeros(_MESSAGES_AT_ONCE, dtype=np.int32)
        #: By column, one value for as many messages as a table has.
        self._made: dict[str, tuple[object, pa.Array]] = {}

    def same(self, value: object, column: str, count: int) -> pa.Array:
        """One value for so many messages: made once, as most pages have the same."""
        made, whole = self._made.get(column, (None, None))
        if whole is None or made != value:
            kind = _SCHEMA.field(column).type
            one = pa.array([value], kind)
            if value is None:
                whole = pa.nulls(_MESSAGES_AT_ONCE, kind)
            elif column in _CODED:
                whole = arrays.coded(self._zeros, one)
            else:
                whole = one.take(arrays.plain(self._zeros))
            self._made[column] = value, whole
        return whole.slice(0, count)


class Snapshot:
    """One snapshot in the making."""

    def __init__(self, engine: Engine, boot: int, workroom: Workroom | None = None) -> None:
        self._engine = engine
        self._boot = boot
        self._node = engine.config.node
        #: Distinct ones, the usual one first.
        self._holdings: dict[Holding, int] = {NORMAL: 0}
        workroom = workroom or Workroom()
        self._same = workroom.same
        self._room = workroom.rows
        self._bytes = self._room.data.cast("B")
        with engine.lock:
            self.at_ms = engine.now_ms()
            self._pages = self._in_order()
            #: About so many are there, of which those that leave meanwhile may be missing.
            self.messages = sum(
                shard.partition.index.pages[number].live for shard, number in self._pages
            )
            #: Partitions that cannot be read, of which it has nothing.
            self.faulty = tuple(
                FaultyPartition(
                    queue=shard.queue.spec.name, partition=shard.queue.shards.index(shard)
                )
                for shard in engine.catalog.shards.values()
                if shard.faulty is not None
            )

    def _in_order(self) -> list[tuple[Shard, int]]:
        """All pages; those of queues that ask the same of placement one after the other."""
        alike: dict[Terms, list[tuple[Shard, int]]] = {}
        for shard in self._engine.catalog.shards.values():
            if shard.faulty is None:
                numbers = sorted(shard.partition.index.pages)
                terms = _unversioned(self._engine.keeping.placing.terms(shard.queue.spec))
                alike.setdefault(terms, []).extend((shard, number) for number in numbers)
        return [page for pages in alike.values() for page in pages]

    def tables(self) -> Iterator[pa.Table]:
        """The messages of some pages at a time."""
        pages: list[_Page] = []
        count = looked_at = 0
        for shard, number in self._pages:
            page = self._copy(shard, number, count)
            looked_at += 1
            if pages and (looked_at > _PAGES_AT_ONCE or not _fits(page, pages[0], count)):
                yield from self._made_of(pages, count)
                if page is not None:
                    self._room[: len(page.seqs)] = self._room[count : count + len(page.seqs)]
                pages, count, looked_at = [], 0, 1
            if page is not None:
                pages.append(page)
                count += len(page.seqs)
        if pages:
            yield from self._made_of(pages, count)

    def _copy(self, shard: Shard, number: int, at: int) -> _Page | None:
        """Copy the rows of a page to a place of the room.

        Only bytes are copied with the lock held; what is in them is looked at without it.
        """
        engine, partition = self._engine, shard.partition
        with engine.lock:
            page = partition.index.pages.get(number)
            if page is None or not page.live or partition.pid not in engine.catalog.shards:
                return None
            begin, count = at * limits.ROW_BYTES, len(page.words)
            # As bytes, since numpy would let the interpreter go, and wait for it with the lock.
            self._bytes[begin : begin + count * limits.ROW_BYTES] = page.buffer
            thin = None if page.thin is None else list(page.thin)
            spec, place = shard.queue.spec, shard.queue.shards.index(shard)
            terms = engine.keeping.placing.terms(spec)
            held = [(run.first, run.length) for _, _, runs in partition.held for run in runs]
            is_whole = page.live == count
            rates, first = partition.accesses.rates, number * limits.PAGE_ROWS
            mine = range(first, first + limits.PAGE_ROWS) if rates else ()
            accesses = {seq: rates[seq] for seq in mine if seq in rates}
        seqs = _slots(number, thin)
        if not is_whole:
            seqs = seqs[: keep_live(self._room[at : at + count], seqs)]
        run = _Run(spec.name, place, partition.pid, terms.version, len(seqs))
        return _Page(_unversioned(terms), run, seqs, held, accesses)

    def _made_of(self, pages: list[_Page], count: int) -> Iterator[pa.Table]:
        """The messages of pages whose rows are in the room."""
        fields = _Fields(self._room[:count])
        seqs = np.concatenate([page.seqs for page in pages])
        holdings = None
        if fields.some[block.KIND] & _HELD:
            holdings = np.zeros(len(seqs), dtype=np.int32)
        accesses: dict[int, Access] = {}
        waiting: list[Ints] = []
        runs: list[_Run] = []
        end = 0
        for page in pages:
            begin, end = end, end + len(page.seqs)
            mine = page.seqs
            if holdings is not None:
                holdings[begin:end] = self._which(page.run.pid, mine, fields.words[begin:end])
            if page.accesses:
                found = ((place, page.accesses.get(seq)) for place, seq in enumerate(mine.tolist()))
                accesses |= {begin + place: each for place, each in found if each is not None}
            if page.held:
                waiting.append(begin + _waiting(mine, page.held))
            _add_run(runs, page.run)
        places = np.concatenate(waiting) if waiting else np.empty(0, dtype=np.int64)
        yield self._table(_Copied(pages[0].terms, runs, seqs, fields, holdings, accesses, places))

    def _which(self, pid: int, seqs: Ints, words: Words) -> npt.NDArray[np.int32]:
        out = np.zeros(len(seqs), dtype=np.int32)
        places = np.flatnonzero(words[:, block.KIND] & np.uint64(_HELD))
        if len(places):
            names = [name_of(pid, seq) for seq in seqs[places].tolist()]
            with self._engine.lock:
                found = self._engine.holdings.of_many(names)
            known = self._holdings
            out[places] = [known.setdefault(each, len(known)) for each in found]
        return out

    # Columns

    def _table(self, page: _Copied) -> pa.Table:
        count, of = len(page.seqs), page.fields.of
        generation, enqueued = of(*_GENERATION), of(*_ENQUEUED)
        known: dict[str, object] = {
            "node": self._node,
            "boot": self._boot,
            "at_ms": self.at_ms,
            "generation": generation,
            "importance": of(*_IMPORTANCE),
            "decay_rate": of(*_RATE) / rows.RATE_UNIT,
            "ttl_ms": _ttl(of(*_DEAD), enqueued),
            "bytes": of(*_BYTES),
            "attempts": generation,
            "failures": of(*_FAILURES),
            "enqueued_at_ms": enqueued,
            "durable": of(*_DURABLE) > 0,
            **self._reads(page, enqueued),
        }
        columns = {name: self._column(name, value, count) for name, value in known.items()}
        columns["message_id"] = arrays.message_ids(_of_runs(page, "pid", np.int64), page.seqs)
        columns["state"] = self._state(page)
        return arrays.table_of(columns | self._places(page) | self._copies(page), _SCHEMA)

    def _column(self, name: str, value: object, count: int) -> pa.Array:
        """A column of one value, or of an array; where that may be absent, 0 is nothing."""
        if not isinstance(value, np.ndarray):
            return self._same(value, name, count)
        field = _SCHEMA.field(name)
        values = value.astype(field.type.to_pandas_dtype(), copy=False)
        return arrays.plain(values, values == 0 if field.nullable else None)

    def _state(self, page: _Copied) -> pa.Array:
        """What people call the state; what waits for its level is ready only by its row."""
        found, count = page.fields.of(*_STATE), len(page.seqs)
        if not len(page.waiting) and not isinstance(found, np.ndarray):
            return self._same(STATES[_STATE_CODES[found]], "state", count)
        codes = np.broadcast_to(_STATE_CODES[found], count).copy()
        codes[page.waiting] = _STATE_CODES[rows.REPLICATING]
        return arrays.coded(codes, _STATES)

    def _places(self, page: _Copied) -> dict[str, pa.Array]:
        """Which queue and partition messages are of, and the version of what that one asks."""
        if len(page.runs) == 1:
            (run,), count = page.runs, len(page.seqs)
            return {
                "queue": self._same(run.queue, "queue", count),
                "partition": self._same(run.partition, "partition", count),
                "policy_version": self._same(run.version, "policy_version", count),
            }
        counts = [run.messages for run in page.runs]
        names = pa.array([run.queue for run in page.runs], pa.string())
        return {
            "queue": arrays.coded(np.repeat(np.arange(len(counts)), counts), names),
            "partition": arrays.plain(_of_runs(page, "partition", np.int32)),
            "policy_version": arrays.plain(_of_runs(page, "version", np.int64)),
        }

    def _reads(self, page: _Copied, since: int | Ints) -> dict[str, object]:
        """What depends on how often messages are read: rate, score, when to look again."""
        score, ages, kept = page.terms.score, ages_of(page.terms), self._kept(page.terms)
        if not (page.accesses or score.per_day or ages) and not judging.acts(kept, page.terms):
            faded = decay_score(0.0, 0.0, score.base, 0.0, 0.0)
            return {
                "access_rate": 0.0, "access_at_ms": 0, "decay_score": faded, "review_at_ms": None
            }  # fmt: skip
        enqueued = np.broadcast_to(since, len(page.seqs))
        rate, read_at = np.zeros(len(enqueued)), np.zeros(len(enqueued), dtype=np.int64)
        present = rate.copy()
        review_at = _review_at(enqueued, ages, self.at_ms)
        for at, access in page.accesses.items():
            rate[at], read_at[at] = access
            present[at] = access.rate_at(self.at_ms)
            crossing_ms = next_crossing_ms(score, int(enqueued[at]), access, self.at_ms)
            review_at[at] = crossing_ms or 0
        days = (self.at_ms - enqueued) / limits.DAY_MS
        faded = decay_score(days, present, score.base, score.per_day, score.access_bonus)
        which = np.zeros(1, dtype=np.int32) if page.holdings is None else page.holdings
        judged = Judged(page.terms, kept, which, faded, enqueued)
        return {
            "access_rate": rate,
            "access_at_ms": read_at,
            "decay_score": faded,
            "review_at_ms": judging.review_at(judged, review_at, self.at_ms),
        }

    def _kept(self, terms: Terms) -> list[Kept]:
        """The distinct ways messages are kept."""
        states = self._states()
        return [
            Kept(
                each.replicas,
                each.target,
                len(each.copies),
                telling.first_tier_of(each.copies, states, terms.tiers),
            )
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
            "tier": [
                telling.first_tier_of(each.copies, states, page.terms.tiers) or None
                for each in known
            ],
            "devices": there,
        }
        if which is None:
            count = len(page.seqs)
            return {name: self._same(each[0], name, count) for name, each in values.items()}
        places = arrays.plain(which)
        return {
            name: pa.array(each, _SCHEMA.field(name).type).take(places)
            for name, each in values.items()
        }


def _unversioned(terms: Terms) -> Terms:
    """What a queue asks of placement, whatever it asked before."""
    return msgspec.structs.replace(terms, version=0)


def _slots(number: int, thin: list[int] | None) -> Ints:
    """The numbers of the messages whose rows a page has."""
    first = number * limits.PAGE_ROWS
    if thin is None:
        return np.arange(first, first + limits.PAGE_ROWS)
    return first + np.array(thin, dtype=np.int64) // rows.ROW.size


def _waiting(seqs: Ints, held: list[tuple[int, int]]) -> Ints:
    """The places of messages of some runs."""
    if not held:
        return np.empty(0, dtype=np.int64)
    runs = [(seqs >= first) & (seqs < first + length) for first, length in held]
    return np.flatnonzero(np.logical_or.reduce(runs))


def _fits(page: _Page | None, first: _Page, count: int) -> bool:
    """Whether a page more goes into a table that has so many rows."""
    if page is None:
        return True
    return page.terms == first.terms and count + len(page.seqs) <= _MESSAGES_AT_ONCE


def _add_run(runs: list[_Run], run: _Run) -> None:
    """Add messages that may be of the same partition as those before."""
    if runs and runs[-1]._replace(messages=run.messages) == run:
        run = run._replace(messages=runs.pop().messages + run.messages)
    if run.messages:
        runs.append(run)


def _of_runs(page: _Copied, field: str, kind: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """What is the same for each run, for each message."""
    values = np.array([getattr(run, field) for run in page.runs], dtype=kind)
    return np.repeat(values, [run.messages for run in page.runs])


def _ttl(dead: int | Ints, enqueued: int | Ints) -> int | Ints | None:
    """For how long messages may wait; nothing, or 0, where that is for ever."""
    if isinstance(dead, np.ndarray) or (isinstance(enqueued, np.ndarray) and dead):
        return np.where(dead > 0, dead - enqueued, 0)
    return dead - enqueued if dead else None


def _review_at(enqueued: Ints, ages: list[int], now_ms: int) -> Ints:
    """When messages that nobody reads are looked at again; 0 for never."""
    out = np.zeros(len(enqueued), dtype=np.int64)
    for age in sorted(ages, reverse=True):
        out = np.where(enqueued + age > now_ms, enqueued + age, out)
    return out
