"""Packed rows as columns of numbers, many rows at a time.

A feed does this to every message that comes and goes, beside the threads that publish. Each step on
arrays that lets the interpreter go takes it from them once more when it is done, so there should be
few: in C all of it is one, which does not need the interpreter meanwhile (ADR 0034).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ebbmq.core import block
from ebbmq.core import row as rows
from ebbmq.speedups import twin

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

#: What `unpack_rows` tells of each row, by numbers of 64 bits and of 32, in this order; its rate
#: beside.
ROW_WIDE: Final = ("enqueued_at_ms", "ttl_ms", "bytes")
ROW_NARROW: Final = ("state", "flags", "importance", "failures", "generation")
#: What `unpack_batches` is told of a batch: how many events it is, the number of the first, when,
#: the first message (-1 where the messages are named), how long leases that ended were to be, how
#: long messages cannot be leased, its kind (-1 where no rows tell of it), who leased them (by
#: code), and a bit for each word in which its rows differ.
BATCH: Final = (
    "messages",
    "number",
    "at_ms",
    "first",
    "lease_ms",
    "delay_ms",
    "kind",
    "consumer",
    "differ",
)
#: Of a kind: the partition, that one's queue (by code) and its place there, the event (by code),
#: leases granted by each, whether leases end by it, and whether rows tell how long messages wait.
KIND: Final = (
    "pid",
    "queue",
    "partition",
    "event",
    "granted",
    "ends",
    "arrives",
)
#: Words of 64 bits that are kept of a row, what no event tells masked out: state, importance and
#: rate; when it was enqueued, and failures; its end; when it is due; length and generation.
WORD_KIND, WORD_ENQUEUED, WORD_DEAD, WORD_DUE, WORD_SIZE = range(5)
TOLD_WORDS: Final = 5
#: What `unpack_batches` tells of each event, likewise.
TOLD_WIDE: Final = (
    "number",
    "at_ms",
    "pid",
    "seq",
    "bytes",
    "enqueued_at_ms",
    "ttl_ms",
    "latency_ms",
    "delay_ms",
)
TOLD_NARROW: Final = (
    "queue",
    "partition",
    "event",
    "generation",
    "importance",
    "failures",
    "consumer",
    "given",
)
#: Those that not every event has, and what stands for nothing there.
SOME: Final = {"ttl_ms": 0, "latency_ms": -1, "delay_ms": 0, "consumer": 0, "given": 0}
#: The longest id: partition, dash, number.
ID_BYTES: Final = 8 + 1 + 16
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_LOW48: Final = np.uint64(rows.LOW48)
_HIGH: Final = np.uint64(rows.HIGH)
_LOW32: Final = np.uint64(block.LOW32)
_HALF: Final = np.uint64(32)
_BYTE: Final = np.uint64(block.BYTE)
_IMPORTANCE: Final = np.uint64(block.IMPORTANCE_BIT)
_TOLD_KIND: Final = np.uint64(
    block.LOW32 << block.RATE_BIT | block.BYTE << block.IMPORTANCE_BIT | block.STATE
)


class Unpacked(NamedTuple):
    """What is told of some rows or events, a line for each field."""

    wide: Ints
    narrow: npt.NDArray[np.int32]
    rates: npt.NDArray[np.float64]

    def columns(self, wide: Sequence[str], narrow: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """The columns by their names."""
        return {
            **dict(zip(wide, self.wide, strict=True)),
            **dict(zip(narrow, self.narrow, strict=True)),
            "rate": self.rates,
        }


class Room:
    """Room for columns, which can be used again: memory that is mapped anew takes time."""

    def __init__(self) -> None:
        self._numbers = np.empty(0, dtype=np.int64)

    def of(self, count: int, wide: Sequence[str], narrow: Sequence[str]) -> Unpacked:
        """Room for so many rows, for columns by their names; what was there before is gone."""
        small = (len(narrow) * count + 1) // 2
        numbers = len(wide) * count, small, count
        if len(self._numbers) < sum(numbers):
            self._numbers = np.empty(sum(numbers), dtype=np.int64)
        first, second, end = accumulate(numbers)
        return Unpacked(
            self._numbers[:first].reshape(len(wide), count),
            self._numbers[first:second]
            .view(np.int32)[: len(narrow) * count]
            .reshape(len(narrow), count),
            self._numbers[second:end].view(np.float64),
        )


@twin
def keep_live(words: npt.NDArray[np.uint64], seqs: Ints) -> int:
    """Move the rows of messages, and their numbers, before those of none; returns how many."""
    if len(words) != len(seqs):
        raise ValueError("each row has a number")
    live = np.flatnonzero(words[:, block.KIND] & np.uint64(block.STATE))
    seqs[: len(live)] = seqs[live]
    words[: len(live)] = words[live]
    return len(live)


def row_columns(packed: bytes | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """What rows tell, by its name."""
    room = Room().of(len(_rows(packed)), ROW_WIDE, ROW_NARROW)
    unpack_rows(packed, *room)
    return room.columns(ROW_WIDE, ROW_NARROW)


@twin
def unpack_rows(
    packed: bytes | npt.NDArray[Any],
    wide: Ints,
    narrow: npt.NDArray[np.int32],
    rates: npt.NDArray[np.float64],
) -> None:
    """Fill a line with each of ROW_WIDE and ROW_NARROW, and one with rates."""
    known = _rows(packed)
    count = len(known)
    shapes = (len(ROW_WIDE), count), (len(ROW_NARROW), count), (count,)
    if (wide.shape, narrow.shape, rates.shape) != shapes:
        raise ValueError("each field of each row needs its place")
    enqueued, dead = known["enqueued"] & _LOW48, known["dead"] & _LOW48
    wide[0] = enqueued
    wide[1] = np.where(dead > 0, dead - enqueued, 0)
    wide[2] = known["length"]
    narrow[0] = known["state"]
    narrow[1] = known["flags"]
    narrow[2] = known["importance"]
    narrow[3] = known["enqueued"] >> _HIGH
    narrow[4] = known["generation"]
    rates[:] = known["rate"] / rows.RATE_UNIT


def told_words(packed: bytes) -> npt.NDArray[np.uint64]:
    """What is kept of rows, a line for each word."""
    known = block.as_words(packed)
    out = np.empty((TOLD_WORDS, len(known)), dtype=np.uint64)
    out[WORD_KIND] = known[:, block.KIND] & _TOLD_KIND
    out[WORD_ENQUEUED] = known[:, block.ENQUEUED]
    out[WORD_DEAD] = known[:, block.DEAD] & _LOW48
    out[WORD_DUE] = known[:, block.DUE] & _LOW48
    out[WORD_SIZE] = known[:, block.SIZE] & _LOW32 | known[:, block.LEASE] << _HALF
    return out


@twin
def unpack_batches(  # noqa: PLR0913, PLR0917  # as many as there are kinds of numbers
    words: npt.NDArray[np.uint64],
    batches: Ints,
    kinds: Ints,
    seqs: npt.NDArray[np.uint64],
    given: Ints,
    wide: Ints,
    narrow: npt.NDArray[np.int32],
    rates: npt.NDArray[np.float64],
    present: npt.NDArray[np.uint8],
) -> tuple[int, ...]:
    """Fill a line with each of TOLD_WIDE and TOLD_NARROW, and one with rates.

    The places of events of which no rows tell are left as they are.

    Args:
        words: of each other batch those of its first row, then all of each word that differs.
        batches: a line of BATCH for each.
        kinds: a line of KIND for each.
        seqs: the messages of the batches that name theirs, one after the other.
        given: of each stretch of a batch's messages what a publisher gave (by code), and how many
            they are.
        wide: as long as there are events, like the others.
        narrow: numbers that are small.
        rates: the rate of each.
        present: for each of SOME a bit for each event, set where it has a value.

    Returns:
        How many events have a value of each of SOME.
    """
    told = dict(zip(BATCH, batches.T, strict=True))
    if (told["kind"] < -1).any() or (told["kind"] >= len(kinds)).any():
        raise ValueError("a batch is of a kind that there is not")
    events = wide.shape[1] if len(wide.shape) > 1 else -1
    by_rows = batches[told["kind"] >= 0]
    shapes = (len(TOLD_WIDE), events), (len(TOLD_NARROW), events), (events,)
    if (
        (wide.shape, narrow.shape, rates.shape) != shapes
        or present.shape != (len(SOME), (events + 7) // 8)
        or (told["messages"] < 0).any()
        or told["messages"].sum() != events
        or (by_rows[:, -1] >> TOLD_WORDS != 0).any()
        or sum(map(_words_of, by_rows)) != len(words)
        or by_rows[by_rows[:, 3] < 0, 0].sum() != len(seqs)
        or not _is_given(by_rows[:, 0], given[:, 1])
    ):
        raise ValueError("each batch has as many words as its messages, and each event its place")
    at = np.flatnonzero(np.repeat(told["kind"] >= 0, told["messages"]))
    each = _of_rows(_lines(words, by_rows), by_rows, kinds, seqs, given)
    for names, out in ((TOLD_WIDE, wide), (TOLD_NARROW, narrow)):
        for name, line in zip(names, out, strict=True):
            line[at] = each[name]
    rates[at] = each["rate"]
    has = np.zeros((len(SOME), events), dtype=bool)
    has[:, at] = [each[name] != absent for name, absent in SOME.items()]
    present[:] = np.packbits(has, axis=1, bitorder="little")
    return tuple(int(count) for count in np.count_nonzero(has, axis=1))


def _words_of(batch: Ints) -> int:
    """How many words a batch has."""
    messages, differ = int(batch[0]), int(batch[-1])
    return TOLD_WORDS + differ.bit_count() * messages if messages else 0


def _lines(words: npt.NDArray[np.uint64], batches: Ints) -> npt.NDArray[np.uint64]:
    """The words of all rows, a line for each word."""
    out = np.empty((TOLD_WORDS, int(batches[:, 0].sum())), dtype=np.uint64)
    at = place = 0
    for messages, differ in batches[:, (0, -1)].tolist():
        if not messages:
            continue
        mine = out[:, place : place + messages]
        mine[:] = words[at : at + TOLD_WORDS, None]
        at += TOLD_WORDS
        for word in range(TOLD_WORDS):
            if differ >> word & 1:
                mine[word] = words[at : at + messages]
                at += messages
        place += messages
    return out


def _is_given(messages: Ints, lengths: Ints) -> bool:
    """Whether stretches end where batches do."""
    ends = {0, *np.cumsum(lengths).tolist()}
    is_covered = lengths.sum() == messages.sum()
    return bool((lengths >= 0).all() and is_covered and ends >= set(np.cumsum(messages).tolist()))


def _of_rows(
    words: npt.NDArray[np.uint64],
    batches: Ints,
    kinds: Ints,
    seqs: npt.NDArray[np.uint64],
    given: Ints,
) -> dict[str, npt.NDArray[Any]]:
    """What is told of events by rows, by its name."""
    told = dict(zip(BATCH, batches.T, strict=True))
    told.update(zip(KIND, kinds[told["kind"]].T, strict=True))
    counts = told["messages"]
    each = {name: np.repeat(values, counts) for name, values in told.items()}
    places = np.arange(words.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)
    named = each["first"] < 0
    kind, enqueued, dead, due, size = words
    enqueued_ms, due_ms = (enqueued & _LOW48).astype(np.int64), due.astype(np.int64)
    each["number"] += places
    each["seq"] = each["first"] + places
    each["seq"][named] = seqs.astype(np.int64)
    each["bytes"] = size & _LOW32
    each["generation"] = (size >> _HALF).astype(np.int64) + each["granted"]
    each["enqueued_at_ms"] = enqueued_ms
    each["failures"] = enqueued >> _HIGH
    each["ttl_ms"] = np.where(dead > 0, dead.astype(np.int64) - enqueued_ms, 0)
    each["importance"] = kind >> _IMPORTANCE & _BYTE
    each["rate"] = (kind >> _HALF) / rows.RATE_UNIT
    latency_ms = np.maximum(each["at_ms"] - due_ms + each["lease_ms"], 0)
    each["latency_ms"] = np.where(each["ends"] != 0, latency_ms, -1)
    waits = np.where(kind & _BYTE == rows.SCHEDULED, due_ms - each["at_ms"], 0)
    each["delay_ms"] = np.where(each["arrives"] != 0, waits, each["delay_ms"])
    each["given"] = np.repeat(given[:, 0], given[:, 1])
    return each


@twin
def spell_ids(
    pids: Ints, seqs: Ints, ends: npt.NDArray[np.int32], text: npt.NDArray[np.uint8]
) -> int:
    """Write ids as `message_id` spells them, one after the other; nothing for partition 0.

    Args:
        pids: the partition of each message.
        seqs: its number there.
        ends: where each of them begins, and where the last one ends.
        text: room for ID_BYTES each.

    Returns:
        How many bytes they take.
    """
    count = len(pids)
    if len(seqs) != count or len(ends) != count + 1 or len(text) < count * ID_BYTES:
        raise ValueError("each message needs its number and room for its id")
    shown = np.empty((count, ID_BYTES), dtype=np.uint8)
    is_there = np.zeros((count, ID_BYTES), dtype=bool)
    for values, first, digits in ((pids, 0, 8), (seqs, 9, 16)):
        for at in range(digits):
            left = values.astype(np.uint64) >> np.uint64(4 * (digits - 1 - at))
            shown[:, first + at] = _DIGITS[left & np.uint64(15)]
            is_there[:, first + at] = (left > 0) | (at == digits - 1)
    shown[:, 8], is_there[:, 8] = ord("-"), True
    is_there[pids == 0] = False
    ends[0] = 0
    np.cumsum(is_there.sum(1), out=ends[1:])
    spelled = shown[is_there]
    text[: len(spelled)] = spelled
    return len(spelled)


def _rows(packed: bytes | npt.NDArray[Any]) -> npt.NDArray[np.void]:
    return np.frombuffer(packed, dtype=np.uint8).view(rows.DTYPE)
