"""Batches of what happened, joined: what their rows tell, and what is said of each batch.

Of the rows of a batch only those words are kept that are told of, and words that are the same in
all of them once: of most batches, one row. They are joined as they are told. To keep each batch as
it is until it is written would keep its memory, too, so that whoever publishes next would have to
do with memory that no cache has, and would leave thousands of objects for the interpreter's
collector to look at. Whoever publishes one message at a time tells a batch each time; in C joining
one takes a tenth of the time (ADR 0034).
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeGuard

import numpy as np

from ebbmq.core import happened as core
from ebbmq.core import row as rows
from ebbmq.node.feeding.unpacking import TOLD_WORDS, told_words
from ebbmq.speedups import twin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    import numpy.typing as npt

    from ebbmq.core.arrivals import ProfileKey
    from ebbmq.core.happened import Happened, Numbers, Rows
    from ebbmq.node.feeding.buffer import Decided, Gap

    Other: TypeAlias = "Happened | Decided | Gap"
    #: Words of rows; BATCH for each batch; the messages of those that name theirs, as u64; STRETCH
    #: for all messages, in order. Each may be longer than what is used of it.
    Parts = tuple[bytearray, bytearray, bytearray, bytearray]
    #: Event and partition, by their codes.
    Kinds = dict[tuple[int, int], int]
    #: Names of leases, by their codes; 0 is none.
    Names = dict[str, int]
    #: Which values publishers gave (a bit for each of `ProfileKey`) and the rate they gave, by
    #: their codes; 0 is not known.
    Given = dict[tuple[int, float | None] | None, int]
    #: What batches are joined in; what is counted is below.
    Into = tuple[Parts, array[int], Kinds, Names, Given]

#: What `unpacking.BATCH` names.
BATCH: Final = Struct("<9q")
#: Of messages for which a publisher gave the same: the code of that, and how many they are.
STRETCH: Final = Struct("<2q")
#: The kind of a batch of which no rows tell.
NO_KIND: Final = -1
#: When so many events are joined, others go elsewhere: they are a group of rows of a file.
EVENTS_MAX: Final = 128 * 1024
#: And when there are so many keys of codes: each of them is a step in Python when it is written.
KEYS_MAX: Final = 16 * 1024
#: What a key takes, its place among the texts of a file included, and each character of a name.
KEY_BYTES: Final = 256
CHAR_BYTES: Final = 4
#: What a batch takes whose messages are all alike and follow each other, and what each of them may
#: take beside: all its words, its number, and a stretch of its own.
BATCH_BYTES: Final = BATCH.size + STRETCH.size + 8 * TOLD_WORDS
ROW_BYTES_MAX: Final = 8 * TOLD_WORDS + 8 + STRETCH.size
#: What is counted: how many bytes of each part are used; the number of the next event; how many
#: events there are, and bytes; and how many bytes more there may be.
_WORDS, _BATCHES, _SEQS, _STRETCHES, _NUMBER, _EVENTS, _BYTES, _BYTES_LEFT = range(8)


class Joined:
    """Batches in the order they were told; texts and what publishers gave are told by codes."""

    __slots__ = ("_counts", "_parts", "into", "others")

    def __init__(self) -> None:
        self._parts: Parts = (bytearray(), bytearray(), bytearray(), bytearray())
        self._counts = array("q", bytes(8 * 8))
        self.begin(1, 0)

    def begin(self, number: int, bytes_left: int) -> None:
        """Forget everything, but not the room it took; the next event has a number."""
        self._counts[:] = array("q", (0, 0, 0, 0, number, 0, 0, bytes_left))
        #: What `join_batch` takes.
        self.into: Into = self._parts, self._counts, {}, {"": 0}, {None: 0}
        #: What is told otherwise than by rows, with the number of its first event: removals,
        #: decisions, gaps.
        self.others: list[tuple[int, Other]] = []

    def add_other(self, told: Other, size: int, missing: int = 0) -> None:
        """Add what is told otherwise, after some numbers that are missing."""
        counts = self._counts
        counts[_NUMBER] += missing
        self.others.append((counts[_NUMBER], told))
        line = BATCH.pack(told.messages, counts[_NUMBER], told.at_ms, 0, 0, 0, NO_KIND, 0, 0)
        _put(self._parts, counts, _BATCHES, line)
        counts[_BATCHES] += len(line)
        counts[_NUMBER] += told.messages
        counts[_EVENTS] += told.messages
        counts[_BYTES] += size
        counts[_BYTES_LEFT] -= size

    def leave(self, bytes_left: int) -> None:
        """So much more may be added."""
        self._counts[_BYTES_LEFT] = bytes_left

    @property
    def kinds(self) -> Kinds:
        """What is the same for many batches."""
        return self.into[2]

    @property
    def names(self) -> Names:
        """The names of leases."""
        return self.into[3]

    @property
    def given(self) -> Given:
        """What publishers gave."""
        return self.into[4]

    @property
    def is_full(self) -> bool:
        """Whether what comes goes elsewhere, however much room there is."""
        return self.events >= EVENTS_MAX or _keys(self.into) >= KEYS_MAX

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return self._counts[_NUMBER]

    @property
    def events(self) -> int:
        """How many there are."""
        return self._counts[_EVENTS]

    @property
    def bytes(self) -> int:
        """What they take in RAM."""
        return self._counts[_BYTES]

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        """What the rows of all batches of which rows tell have."""
        return self._numbers(_WORDS, np.uint64)

    @property
    def batches(self) -> npt.NDArray[np.int64]:
        """BATCH for each batch."""
        return self._numbers(_BATCHES, np.int64).reshape(-1, BATCH.size // 8)

    @property
    def seqs(self) -> npt.NDArray[np.uint64]:
        """The messages of those that name theirs."""
        return self._numbers(_SEQS, np.uint64)

    @property
    def stretches(self) -> npt.NDArray[np.int64]:
        """STRETCH for all messages of which rows tell, in order."""
        return self._numbers(_STRETCHES, np.int64).reshape(-1, STRETCH.size // 8)

    def _numbers(self, part: int, kind: type[np.generic]) -> npt.NDArray[Any]:
        used = self._counts[part]
        if not used:
            return np.empty(0, dtype=kind)
        return np.frombuffer(self._parts[part], dtype=kind, count=used // np.dtype(kind).itemsize)


@twin
def join_batch(told: Happened | Decided, into: Into) -> bool:
    """Add a batch; not if rows do not tell of it, or if there is no room for it."""
    if not is_by_rows(told):
        return False
    counts = into[1]
    codes: tuple[dict[Any, int], ...] = into[2:]
    if counts[_BYTES_LEFT] < BATCH_BYTES or counts[_EVENTS] >= EVENTS_MAX:
        return False
    if _keys(into) >= KEYS_MAX:
        return False
    known = [len(each) for each in codes]
    is_joined = False
    try:
        is_joined = _is_joined(told, into)
    finally:
        if not is_joined:
            for each, count in zip(codes, known, strict=True):
                while len(each) > count:
                    each.popitem()
    return is_joined


def _keys(into: Into) -> int:
    """How many keys have codes."""
    _, _, kinds, names, given = into
    return len(kinds) + len(names) + len(given)


def _is_joined(told: Happened, into: Into) -> bool:
    """Add a batch that rows tell of; whether there was room for it, its keys included."""
    parts, counts, kinds, names, given = into
    keys, named_before = _keys(into), len(names)
    event, pid, at_ms, messages, seqs, known, first, lease_ms, delay_ms, name = told[:10]
    found = packed(known)
    if event == core.SCHEDULED:
        seqs, found = _only_scheduled(found, first)
    words, differ = _words(found, messages)
    named = b"" if seqs is None else _as_bytes(seqs)
    kind = kinds.setdefault((event, pid), len(kinds))
    consumer = names.setdefault(name, len(names))
    start = first if seqs is None else -1
    about = messages, counts[_NUMBER], at_ms, start, lease_ms, delay_ms, kind, consumer, differ
    batch = BATCH.pack(*about)
    stretches = _stretches(told, given)
    added = words, batch, named, stretches
    size = sum(map(len, added)) + KEY_BYTES * (_keys(into) - keys)
    if len(names) > named_before:
        size += CHAR_BYTES * len(name)
    if size > counts[_BYTES_LEFT]:
        return False
    for part, new in enumerate(added):
        _put(parts, counts, part, new)
    # Only now, so that a batch counts as a whole or not at all.
    for part, new in enumerate(added):
        counts[part] += len(new)
    counts[_NUMBER] += messages
    counts[_EVENTS] += messages
    counts[_BYTES] += size
    counts[_BYTES_LEFT] -= size
    return True


def is_by_rows(told: Happened | Decided) -> TypeGuard[Happened]:
    """Whether rows of messages tell what happened."""
    return len(told) == len(core.Happened._fields) and told.event != core.REMOVED


def _words(found: bytes, messages: int) -> tuple[bytes, int]:
    """The words of the first row, then all of those in which rows differ; and which these are."""
    told = told_words(found)
    if told.shape[1] != messages:
        raise ValueError("each batch has as many rows as messages")
    if not messages:
        return b"", 0
    differ = np.flatnonzero((told != told[:, :1]).any(axis=1))
    return told[:, 0].tobytes() + told[differ].tobytes(), sum(1 << int(word) for word in differ)


def _stretches(told: Happened, known: Given) -> bytes:
    """STRETCH for the messages of a batch."""
    given: Sequence[ProfileKey | None] = told.given if told.event == core.PUBLISHED else ()
    ends = [*told.given_from[1:], told.messages] if given else [told.messages]
    out, begin = [], 0
    for each, end in zip(given or (None,), ends, strict=True):
        key = None
        if each is not None:
            which = sum((value is not None) << bit for bit, value in enumerate(each))
            key = which, each[2]
        out.append(STRETCH.pack(known.setdefault(key, len(known)), end - begin))
        begin = end
    return b"".join(out)


def _put(parts: Parts, counts: array[int], part: int, new: bytes) -> None:
    """Put bytes behind those that are used."""
    at = counts[part]
    parts[part][at : at + len(new)] = new


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
