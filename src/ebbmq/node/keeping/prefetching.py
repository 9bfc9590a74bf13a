"""Bringing bodies from devices before somebody needs them, by a thread of its own.

Two wishes are served: bodies that are delivered next are brought into RAM, so that a consumer does
not wait for a slow device (pre-fetch), and the body of a message that must be moved to another
queue is kept until the move comes for it. Neither holds up anything else: the timer goes on, and an
archived message at the head is waited for by the one call that leased it, not by those behind it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.core import lifecycle
from ebbmq.core.block import BYTE, IMPORTANCE_BIT, KIND, STATE, Block
from ebbmq.core.copies import name_of
from ebbmq.core.row import FREE, READY
from ebbmq.errors import Overloaded
from ebbmq.node import fetching
from ebbmq.node.keeping import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.copies import Name
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

_AT_ONCE: Final = 1_024
#: Bodies kept for moves; the oldest goes when there are more, and is fetched again.
_BROUGHT_MAX: Final = 256
_WISHES_MAX: Final = 1_024
#: With so many open wishes left, more is looked for: the consumer is not to catch up.
_AHEAD_FEW: Final = 2


class BodyElsewhere(Overloaded):
    """The body is on another device and is being fetched; try again."""

    code = "body_elsewhere"


class _Wish(NamedTuple):
    shard: Shard
    seqs: Sequence[int]
    #: For RAM, else for a move.
    ahead: bool


class Prefetcher:
    """One thread that reads from devices; wishes are left with the engine's lock held."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wishes: deque[_Wish] = deque()
        self._wished: set[Name] = set()
        #: By partition: how many wishes for RAM are open.
        self._ahead: Counter[Shard] = Counter()
        self._brought: dict[Name, bytes] = {}
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=engine.guarded(self._run), name="ebbmq-fetcher", daemon=True
        )

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def stop(self) -> None:
        """Fetch no more."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def ahead(self, shard: Shard, seqs: Sequence[int]) -> None:
        """Have bodies brought into RAM, in this order, unless they are on their way."""
        base, wished = name_of(shard.partition.pid, 0), self._wished
        fresh = [seq for seq in seqs if base | seq not in wished]
        if fresh and len(self._wishes) < _WISHES_MAX:
            wished.update([base | seq for seq in fresh])
            for at in range(0, len(fresh), _AT_ONCE):
                self._wishes.append(_Wish(shard, fresh[at : at + _AT_ONCE], ahead=True))
                self._ahead[shard] += 1
            self._wake.set()

    def is_busy_with(self, shard: Shard) -> bool:
        """Whether so much is being brought that there is no need to look for more."""
        return self._ahead[shard] > _AHEAD_FEW

    def brought(self, shard: Shard, seq: int) -> bytes:
        """The body of a message that is to be moved.

        Raises:
            BodyElsewhere: it is not here yet.
        """
        name = name_of(shard.partition.pid, seq)
        payload = self._brought.pop(name, None)
        if payload is not None:
            return payload
        if name not in self._wished and len(self._wishes) < _WISHES_MAX:
            self._wished.add(name)
            self._wishes.append(_Wish(shard, [seq], ahead=False))
            self._wake.set()
        raise BodyElsewhere(
            f"the body of message {shard.partition.pid:x}-{seq:x} is being fetched from its device",
            "try again in a moment; `ebbmq devices` shows how the devices are",
        )

    def keep(self, shard: Shard, seq: int, payload: bytes) -> None:
        """Keep a body for a move that is about to come."""
        if len(self._brought) >= _BROUGHT_MAX:
            del self._brought[next(iter(self._brought))]
        self._brought[name_of(shard.partition.pid, seq)] = payload

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._wishes and not self._stop.is_set():
                self._fetch(self._next())

    def _next(self) -> _Wish:
        """The next wish; bodies of one partition that are to be moved are one."""
        wish, seqs = self._wishes.popleft(), list[int]()
        if wish.ahead:
            return wish
        seqs += wish.seqs
        with self._engine.lock:
            while self._wishes and len(seqs) < _BROUGHT_MAX // 2:
                other = self._wishes[0]
                if other.ahead or other.shard is not wish.shard:
                    break
                seqs += self._wishes.popleft().seqs
        return wish._replace(seqs=seqs)

    def _fetch(self, wish: _Wish) -> None:
        engine, shard = self._engine, wish.shard
        with engine.lock:
            # Whoever was faster has read it, and nobody waits for it any more.
            wanted = _ready(shard, wish.seqs) if wish.ahead else [(seq, 0) for seq in wish.seqs]
        seqs = [seq for seq, _ in wanted]
        bodies = reading.read(engine, shard, seqs)
        base = name_of(shard.partition.pid, 0)
        with engine.lock:
            self._wished.difference_update([base | seq for seq in wish.seqs])
            if wish.ahead:
                self._ahead -= Counter({shard: 1})
            if engine.closed is not None:
                return
            if wish.ahead:
                if wanted:
                    fetching.admit(shard, wanted, bodies)
                if self._ahead[shard] in (0, _AHEAD_FEW):
                    engine.ask_ahead_if_short(shard)
                return
            for seq, body in zip(seqs, bodies, strict=True):
                if isinstance(body, bytes) and shard.partition.index.state_of(seq) != FREE:
                    self.keep(shard, seq, body)
                    # It waited for nothing else.
                    lifecycle.postpone_move(shard.partition, seq, engine.now_ms(), 0)
            engine.settle(shard)


def _ready(shard: Shard, seqs: Sequence[int]) -> list[tuple[int, int]]:
    """(seq, importance) of those that wait to be delivered (the lock is held)."""
    block = Block(shard.partition.index.words_of(np.array(seqs, dtype=np.uint64)))
    states = block.values(KIND, STATE)
    importances = block.values(KIND, BYTE << IMPORTANCE_BIT, IMPORTANCE_BIT)
    return [
        (seq, importance)
        for seq, state, importance in zip(seqs, states, importances, strict=True)
        if state == READY
    ]
