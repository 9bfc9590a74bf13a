"""Batches of what happened, joined: their rows one after the other, and what is said of each.

Whoever publishes one message at a time tells a batch each time, so that this is done as often as
messages come; in C it takes a tenth of the time (ADR 0034).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.core import happened as core
from ebbmq.core import row as rows
from ebbmq.core.happened import Happened
from ebbmq.node.feeding.buffer import Decided, Gap
from ebbmq.speedups import twin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.arrivals import ProfileKey
    from ebbmq.core.happened import Numbers, Rows

    Told = Happened | Decided | Gap
    #: What `Joined` is made of.
    Parts = tuple[
        bytes,
        bytes,
        bytes,
        bytes,
        dict[tuple[int, int, str], int],
        dict[ProfileKey | None, int],
        list[tuple[int, Told]],
    ]

#: What `unpacking.BATCH` names.
BATCH: Final = Struct("<7q")
#: Of messages for which a publisher gave the same: the code of that, and how many they are.
STRETCH: Final = Struct("<2q")


class Joined(NamedTuple):
    """What `join_batches` makes of batches; texts and what publishers gave are told by codes."""

    #: The rows of all batches of which only rows tell.
    rows: bytes
    #: BATCH for each of them.
    batches: bytes
    #: The messages of those that name theirs, as u64.
    seqs: bytes
    #: STRETCH for all their messages, in order.
    stretches: bytes
    #: Event, partition and name of a lease, by their codes.
    kinds: dict[tuple[int, int, str], int]
    #: What publishers gave, by its code; 0 is not known.
    given: dict[ProfileKey | None, int]
    #: The others with their numbers: removals, decisions, gaps.
    others: list[tuple[int, Told]]


def join(told: Sequence[Told], number: int) -> Joined:
    """Join batches of which the first event has a number, and the others the next ones."""
    return Joined(*join_batches(list(told), number, Happened, Gap))


@twin
def join_batches(told: list[Told], number: int, happened: type[Happened], gap: type[Gap]) -> Parts:
    """What `Joined` is made of; the types are for its twin, which knows none."""
    joined = _Joining()
    for batch in told:
        if isinstance(batch, gap):
            # What was left out has its numbers.
            number += batch.missing
        if isinstance(batch, happened) and batch.event != core.REMOVED:
            joined.add(batch, number)
        else:
            joined.others.append((number, batch))
        number += batch.messages
    return joined.all()


class _Joining:
    """Batches on their way to be joined."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._batches: list[bytes] = []
        self._seqs: list[bytes] = []
        self._stretches: list[bytes] = []
        self._kinds: dict[tuple[int, int, str], int] = {}
        self._given: dict[ProfileKey | None, int] = {None: 0}
        self.others: list[tuple[int, Told]] = []

    def add(self, batch: Happened, number: int) -> None:
        """A batch more."""
        event, pid, at_ms, messages, seqs, known, first, lease_ms, delay_ms, name, *_ = batch
        found = packed(known)
        if event == core.SCHEDULED:
            seqs, found = _only_scheduled(found, first)
        kind = self._kinds.setdefault((event, pid, name), len(self._kinds))
        if seqs is not None:
            self._seqs.append(_as_bytes(seqs))
            first = -1
        self._rows.append(found)
        self._batches.append(BATCH.pack(messages, number, at_ms, first, lease_ms, delay_ms, kind))
        given = batch.given if event == core.PUBLISHED else ()
        ends = [*batch.given_from[1:], messages] if given else [messages]
        begin = 0
        for each, end in zip(given or (None,), ends, strict=True):
            code = self._given.setdefault(each, len(self._given))
            self._stretches.append(STRETCH.pack(code, end - begin))
            begin = end

    def all(self) -> Parts:
        """All of it."""
        joined = (self._rows, self._batches, self._seqs, self._stretches)
        found, batches, seqs, stretches = (b"".join(each) for each in joined)
        return found, batches, seqs, stretches, self._kinds, self._given, self.others


def packed(known: Rows) -> bytes:
    """Rows as they stand one after the other."""
    if isinstance(known, bytes):
        return known
    if isinstance(known, np.ndarray):
        return known.tobytes()
    return b"".join([rows.ROW.pack(*row) for row in known])


def _as_bytes(seqs: Numbers) -> bytes:
    return np.asarray(seqs, dtype=np.uint64).tobytes()


def _only_scheduled(known: bytes, first: int) -> tuple[Numbers, bytes]:
    """The rows of a publish that wait for their time, and which they are."""
    found = np.frombuffer(known, dtype=rows.DTYPE)
    waiting = np.flatnonzero(found["state"] == rows.SCHEDULED)
    return (waiting + first).astype(np.uint64), found[waiting].tobytes()
