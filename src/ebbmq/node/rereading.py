"""Leases read again: by the name they were asked for under, or by their tokens.

Both find the leases that are held, as they were granted, and grant nothing. A name and a token
outlive a restart of the node as the lease does. Of a faulty partition nobody knows what is held:
who reads by tokens, and may ack all of them, is refused.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.core.block import DUE, KIND, LEASE, LOW32, PLACE, SIZE, STATE, Block
from ebbmq.core.grants import Grants
from ebbmq.core.row import HIGH, LEASED, LOW48
from ebbmq.core.tokens import TOKEN_DTYPE, pack_tokens
from ebbmq.errors import InvalidMessage
from ebbmq.node import publishing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.core.block import Words
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine

_STATE: Final = np.uint64(STATE)
_LEASED: Final = np.uint64(LEASED)
_LOW32: Final = np.uint64(LOW32)
_LOW48: Final = np.uint64(LOW48)
_HIGH: Final = np.uint64(HIGH)
_HALF: Final = np.uint64(32)
_ONE: Final = np.uint64(1)


class Held(NamedTuple):
    """Leases that are held, as they were granted."""

    granted: list[tuple[Shard, Grants]]
    #: The number of the first one asked for that did not fit; None: all there are.
    following: int | None


class _Part(NamedTuple):
    """Rows of one partition that are asked for."""

    shard: Shard
    #: The number of the first of them among all that are asked for.
    first: int
    seqs: Words
    #: The rows as they are, and which of them are held by who asks.
    words: Words
    is_held: npt.NDArray[np.bool_]


def by_name(
    queue: Queue,
    name: str,
    first: int = 0,
    last: int | None = None,
    bytes_max: int | None = None,
) -> Held:
    """The leases held under a name (the lock is held).

    Args:
        queue: the queue.
        name: the name they were leased under.
        first: the number of the first to return; numbers stay what they were at the grant.
        last: the number after the last to return; None returns all that follow.
        bytes_max: most bytes of bodies to return together, but always one message.
    """
    return _within(_named(queue, name, first, last), bytes_max)


def _named(queue: Queue, name: str, first: int, last: int | None) -> Iterator[_Part]:
    number = 0
    for shard in queue.shards:
        partition = shard.partition
        entries = partition.names.get(name, [])
        begin = max(0, first - number)
        asked = entries[begin : None if last is None else max(begin, last - number)]
        start, number = number + begin, number + len(entries)
        if not asked:
            continue
        table = np.array(asked, dtype=np.uint64)
        words = partition.index.words_of(table[:, 0])
        is_held = _are_leased(words) & (words[:, LEASE] & _LOW32 == table[:, 1])
        if len(asked) == len(entries) and not is_held.any():
            partition.names.pop(name, None)
        yield _Part(shard, start, table[:, 0], words, is_held)


def by_tokens(queue: Queue, packed: bytes, now_ms: int, bytes_max: int | None = None) -> Held:
    """The leases that tokens hold, in their order (the lock is held).

    Raises:
        StorageFailed: a token is of a partition that is faulty.
    """
    return _within(_tokens(queue, np.frombuffer(packed, dtype=TOKEN_DTYPE), now_ms), bytes_max)


def _tokens(queue: Queue, tokens: npt.NDArray[np.void], now_ms: int) -> Iterator[_Part]:
    for begin, end in _runs(tokens["pid"]):
        shard = queue.by_pid.get(int(tokens["pid"][begin]))
        if shard is None:
            continue
        publishing.usable(queue, shard)
        mine = tokens[begin:end]
        seqs = mine["seq"].astype(np.uint64)
        words = shard.partition.index.words_of(seqs)
        leases = mine["nonce"].astype(np.uint64) << _HALF | mine["generation"].astype(np.uint64)
        is_held = (
            _are_leased(words)
            & (words[:, LEASE] == leases)
            & (words[:, PLACE] >> _HIGH == mine["epoch"].astype(np.uint64))
            & (words[:, DUE] & _LOW48 > np.uint64(now_ms))
        )
        yield _Part(shard, begin, seqs, words, is_held)


def _are_leased(words: Words) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = words[:, KIND] & _STATE == _LEASED
    return found


def _within(parts: Iterable[_Part], bytes_max: int | None) -> Held:
    """As many as stay below a number of bytes."""
    out: list[tuple[Shard, Grants]] = []
    total = 0
    for part in parts:
        at = np.flatnonzero(part.is_held)
        if not len(at):
            continue
        words, seqs = part.words[at], part.seqs[at]
        ends = total + np.cumsum((words[:, SIZE] & _LOW32).astype(np.int64))
        count = len(ends)
        if bytes_max is not None:
            fits = int(np.searchsorted(ends, bytes_max, side="right"))
            count = fits if out else max(1, fits)
        if count:
            out += [(part.shard, each) for each in _grants(words[:count], seqs[:count])]
        if count < len(ends):
            return Held(out, part.first + int(at[count]))
        total = int(ends[-1])
    return Held(out, None)


def _grants(words: Words, seqs: Words) -> Iterator[Grants]:
    """The rows as they were before their grant, in runs of one deadline, nonce and boot."""
    deadlines, nonces = words[:, DUE] & _LOW48, words[:, LEASE] >> _HALF
    epochs = words[:, PLACE] >> _HIGH
    before = words.copy()
    # A message that waits has no deadline, and a generation less.
    before[:, DUE] &= ~_LOW48
    before[:, LEASE] -= _ONE
    for begin, end in _runs(deadlines, nonces, epochs):
        grants = Grants([], [], int(deadlines[begin]), int(nonces[begin]))
        grants.epoch = int(epochs[begin])
        grants.add_many(seqs[begin:end].tolist(), Block(before[begin:end]))
        yield grants


def _runs(*columns: npt.NDArray[np.void] | Words) -> Iterator[tuple[int, int]]:
    """Where rows that agree in all of these columns begin and end."""
    count = len(columns[0])
    changes = np.zeros(max(0, count - 1), dtype=np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
    return pairwise(bounds if count else [])


def read_name(
    engine: Engine,
    queue: str,
    name: str,
    first: int,
    last: int | None,
    bytes_max: int | None = None,
) -> Held:
    """What is still held under a name of a queue (the lock is held)."""
    for field, value in (("first", first), ("last", last or 0)):
        if type(value) is not int or value < 0:
            raise InvalidMessage(f"{field} is {value!r}", "use a whole number from 0 on")
    engine.check_open()
    return by_name(engine.catalog.queue(queue), name, first, last, bytes_max)


def read_tokens(engine: Engine, queue: str, tokens: Sequence[str], bytes_max: int | None) -> Held:
    """What is held by tokens, without those that hold no lease or are none (the lock is held).

    Raises:
        StorageFailed: a token is of a partition that is faulty.
    """
    packed = pack_tokens(list(tokens)) if tokens else b""
    numbers: Sequence[int] | None = None
    if packed is None:
        numbers = [n for n, token in enumerate(tokens) if pack_tokens([token]) is not None]
        packed = pack_tokens([tokens[n] for n in numbers]) or b"" if numbers else b""
    engine.check_open()
    found = by_tokens(engine.catalog.queue(queue), packed, engine.now_ms(), bytes_max)
    if numbers is None or found.following is None:
        return found
    return Held(found.granted, numbers[found.following])
