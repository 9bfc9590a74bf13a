"""Packed rows as columns of numbers, many rows at a time.

A feed does this to every message that comes and goes, beside the threads that publish. Each step on
arrays that lets the interpreter go takes it from them once more when it is done, so there should be
few: in C all of it is one, which does not need the interpreter meanwhile (ADR 0034).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq.core import row as rows
from ebbmq.speedups import twin

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

#: What `unpack_rows` tells of each row, in this order.
FIELDS: Final = (
    "state",
    "flags",
    "importance",
    "rate",  # in billionths
    "enqueued_at_ms",
    "failures",
    "ttl_ms",  # 0 for none
    "bytes",
    "generation",
)
#: What `unpack_batches` is told of a batch: how many events it is, the number of the first, when,
#: of which partition, that one's queue (by code) and its place there, the first message (-1 where
#: the messages are named), the event (by code), leases granted by it, how long leases that ended
#: were to be (-1 where none did), how long messages cannot be leased (-1 where their rows tell),
#: and who leased them (by code).
ABOUT: Final = (
    "messages",
    "number",
    "at_ms",
    "pid",
    "queue",
    "partition",
    "first",
    "event",
    "granted",
    "lease_ms",
    "delay_ms",
    "consumer",
)
#: What `unpack_batches` tells of each event, in this order.
TOLD: Final = (
    "number",
    "at_ms",
    "pid",
    "queue",
    "partition",
    "seq",
    "event",
    "generation",
    "importance",
    "rate",  # in billionths
    "bytes",
    "failures",
    "enqueued_at_ms",
    "ttl_ms",  # 0 for none
    "latency_ms",  # -1 for none
    "delay_ms",  # 0 for none
    "consumer",
)
#: The longest id: partition, dash, number.
ID_BYTES: Final = 8 + 1 + 16
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_LOW48: Final = np.uint64(rows.LOW48)
_HIGH: Final = np.uint64(rows.HIGH)


@twin
def unpack_rows(packed: bytes | npt.NDArray[Any], out: Ints) -> None:
    """Fill a line of `out` with each of FIELDS."""
    known = _rows(packed)
    if out.shape != (len(FIELDS), len(known)):
        raise ValueError("each field of each row needs its place")
    enqueued, dead = known["enqueued"] & _LOW48, known["dead"] & _LOW48
    out[0] = known["state"]
    out[1] = known["flags"]
    out[2] = known["importance"]
    out[3] = known["rate"]
    out[4] = enqueued
    out[5] = known["enqueued"] >> _HIGH
    out[6] = np.where(dead > 0, dead - enqueued, 0)
    out[7] = known["length"]
    out[8] = known["generation"]


@twin
def unpack_batches(
    packed: bytes | npt.NDArray[Any], about: Ints, seqs: npt.NDArray[np.uint64], out: Ints
) -> None:
    """Fill a line of `out` with each of TOLD.

    Args:
        packed: the rows of all batches, one after the other.
        about: a line of ABOUT for each batch.
        seqs: the messages of the batches that name theirs, one after the other.
        out: as many columns as there are rows.
    """
    known = _rows(packed)
    told = dict(zip(ABOUT, about.T, strict=True))
    counts = told["messages"]
    named = np.repeat(told["first"] < 0, counts)
    if (
        out.shape != (len(TOLD), len(known))
        or (counts < 0).any()
        or len(named) != len(known)
        or np.count_nonzero(named) != len(seqs)
    ):
        raise ValueError("each batch has as many rows as messages, and each row its place")
    each = {name: np.repeat(values, counts) for name, values in told.items()}
    places = np.arange(len(known)) - np.repeat(np.cumsum(counts) - counts, counts)
    fields = np.empty((len(FIELDS), len(known)), dtype=np.int64)
    unpack_rows(known, fields)
    field = dict(zip(FIELDS, fields, strict=True))
    due_ms = (known["due"] & _LOW48).astype(np.int64)
    each["number"] += places
    each["seq"] = each["first"] + places
    each["seq"][named] = seqs.astype(np.int64)
    each["generation"] = field["generation"] + each["granted"]
    latency_ms = np.maximum(each["at_ms"] - due_ms + each["lease_ms"], 0)
    each["latency_ms"] = np.where(each["lease_ms"] >= 0, latency_ms, -1)
    waits = np.where(field["state"] == rows.SCHEDULED, due_ms - each["at_ms"], 0)
    each["delay_ms"] = np.where(each["delay_ms"] >= 0, each["delay_ms"], waits)
    for line, name in zip(out, TOLD, strict=True):
        line[:] = each[name] if name in each else field[name]


@twin
def spell_ids(pids: Ints, seqs: Ints, ends: npt.NDArray[np.int32], text: bytearray) -> int:
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
    spelled = shown[is_there].tobytes()
    text[: len(spelled)] = spelled
    return len(spelled)


def _rows(packed: bytes | npt.NDArray[Any]) -> npt.NDArray[np.void]:
    return np.frombuffer(packed, dtype=np.uint8).view(rows.DTYPE)
