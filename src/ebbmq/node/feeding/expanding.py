"""Batches of what happened, taken apart: one record an event, all of a kind at a time.

Everything is done on arrays. A loop over events would keep the interpreter busy, and with it the
threads that publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core import facts as fact
from ebbmq.core import happened as core
from ebbmq.core import row as rows
from ebbmq.core.happened import Happened
from ebbmq.model import REASON_TEXT, Reason
from ebbmq.node.feeding.buffer import Decided, Gap, Numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.core.happened import Rows

    Records = npt.NDArray[np.void]
    Ints = npt.NDArray[np.int64]

#: An event before it has texts. Absent: 0 in texts and times, below 0 in counts, NaN in shares.
EVENT: Final = np.dtype(
    [
        ("number", "<i8"),
        ("at_ms", "<i8"),
        ("pid", "<u4"),
        ("seq", "<u8"),
        ("generation", "<i4"),
        ("event", "<u4"),
        ("reason", "<u4"),
        ("importance", "<i4"),
        ("rate", "<f8"),
        ("ttl_ms", "<i8"),
        ("delay_ms", "<i8"),
        ("bytes", "<i8"),
        ("failures", "<i4"),
        ("enqueued_at_ms", "<i8"),
        ("latency_ms", "<i8"),
        ("consumer", "<u4"),
        ("device", "<u4"),
        ("score", "<f8"),
    ]
)
_NAMES: Final = {
    core.PUBLISHED: "published",
    core.SCHEDULED: "scheduled",
    core.LEASED: "leased",
    core.ACKED: "acked",
    core.RETRIED: "retried",
    core.RELEASED: "released",
    core.LEASE_EXPIRED: "lease_expired",
    core.PEEKED: "peeked",
}
_ENDS: Final = (core.ACKED, core.RETRIED, core.RELEASED, core.LEASE_EXPIRED)
#: Reasons that are events themselves; the others are reasons of `removed`.
_BY_AGE: Final = (Reason.STALE, Reason.EXPIRED)
_PIECE_EVENTS: Final = 32 * 1024
_LOW48: Final = np.uint64(rows.LOW48)
_HIGH: Final = np.uint64(rows.HIGH)


class Texts:
    """Texts of some events, each once, by code; code 0 is none."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {"": 0}

    def code(self, text: str) -> int:
        """The code of a text."""
        return self._codes.setdefault(text, len(self._codes))

    def all(self) -> list[str]:
        """Every text at the place of its code."""
        return list(self._codes)


def in_pieces(told: Sequence[Numbered]) -> Iterator[list[Numbered]]:
    """Batches a few at a time: what is made of them at once stays near the processor."""
    piece: list[Numbered] = []
    count = 0
    for each in told:
        piece.append(each)
        count += each.told.messages
        if count >= _PIECE_EVENTS:
            yield piece
            piece, count = [], 0
    if piece:
        yield piece


def expand(told: Sequence[Numbered], texts: Texts) -> Records:
    """One record for each event, by number."""
    kinds: dict[int | str, list[Numbered]] = {}
    for each in told:
        kind = each.told.event if isinstance(each.told, Happened) else type(each.told).__name__
        kinds.setdefault(kind, []).append(each)
    parts: list[Records] = []
    for kind, some in kinds.items():
        if kind == core.REMOVED:
            parts.append(_removed(some, texts))
        elif kind == Gap.__name__:
            parts.append(_gaps(some, texts))
        elif kind == Decided.__name__:
            parts.append(_decided(some, texts))
        else:
            parts.append(_happened(some, texts))
    if len(parts) == 1:
        return parts[0]
    whole = np.concatenate(parts)
    return whole[np.argsort(whole["number"], kind="stable")]


def _begin(told: Sequence[Numbered]) -> tuple[Records, Ints, Ints]:
    """Records with what every batch says of all its events; their counts and places."""
    counts = np.array([each.told.messages for each in told], dtype=np.int64)
    out = np.zeros(int(counts.sum()), dtype=EVENT)
    places = np.arange(len(out)) - np.repeat(np.cumsum(counts) - counts, counts)
    out["number"] = places + np.repeat([each.number for each in told], counts)
    out["at_ms"] = np.repeat([each.told.at_ms for each in told], counts)
    out["rate"] = out["score"] = np.nan
    out["failures"] = out["bytes"] = out["latency_ms"] = -1
    return out, counts, places


def _happened(told: Sequence[Numbered], texts: Texts) -> Records:
    """Events of one kind whose rows are known."""
    out, counts, places = _begin(told)
    batches = [each.told for each in told if isinstance(each.told, Happened)]
    kind = batches[0].event
    if kind == core.SCHEDULED:
        batches = [_only_scheduled(batch) for batch in batches]
    known = np.frombuffer(b"".join([packed(batch.rows) for batch in batches]), dtype=rows.DTYPE)
    out["pid"] = np.repeat([batch.pid for batch in batches], counts)
    out["event"] = texts.code(_NAMES[kind])
    if batches[0].seqs is None:
        out["seq"] = places + np.repeat([batch.first for batch in batches], counts)
    else:
        out["seq"] = np.concatenate([np.asarray(batch.seqs, np.uint64) for batch in batches])
    _fill(out, known)
    if kind == core.LEASED:
        out["generation"] += 1
        out["consumer"] = np.repeat([texts.code(batch.name) for batch in batches], counts)
    elif kind in _ENDS:
        due_ms = (known["due"] & _LOW48).astype(np.int64)
        began_ms = due_ms - np.repeat([batch.lease_ms for batch in batches], counts)
        out["latency_ms"] = np.maximum(out["at_ms"] - began_ms, 0)
        out["delay_ms"] = np.repeat([batch.delay_ms for batch in batches], counts)
    elif kind != core.PEEKED:
        waits = known["state"] == rows.SCHEDULED
        due_ms = (known["due"] & _LOW48).astype(np.int64)
        out["delay_ms"] = np.where(waits, due_ms - out["at_ms"], 0)
    return out


def _only_scheduled(batch: Happened) -> Happened:
    """The rows of a publish that wait for their time."""
    known = np.frombuffer(packed(batch.rows), dtype=rows.DTYPE)
    waiting = np.flatnonzero(known["state"] == rows.SCHEDULED)
    seqs = (waiting + batch.first).astype(np.uint64)
    return batch._replace(seqs=seqs, rows=known[waiting].tobytes())


def packed(known: Rows) -> bytes:
    """Rows as they stand one after the other."""
    if isinstance(known, bytes):
        return known
    if isinstance(known, np.ndarray):
        return known.tobytes()
    return b"".join([rows.ROW.pack(*row) for row in known])


def _fill(out: Records, known: Records) -> None:
    """What a row tells."""
    enqueued = (known["enqueued"] & _LOW48).astype(np.int64)
    dead = (known["dead"] & _LOW48).astype(np.int64)
    out["generation"] = known["generation"]
    out["importance"] = known["importance"]
    out["rate"] = known["rate"] / rows.RATE_UNIT
    out["ttl_ms"] = np.where(dead > 0, dead - enqueued, 0)
    out["bytes"] = known["length"]
    out["failures"] = known["enqueued"] >> _HIGH
    out["enqueued_at_ms"] = enqueued


def _removed(told: Sequence[Numbered], texts: Texts) -> Records:
    """Messages that left other than by ack, by their removal records."""
    out, _, _ = _begin(told)
    batches = [each.told for each in told if isinstance(each.told, Happened)]
    known = np.frombuffer(
        b"".join([packed(batch.rows) for batch in batches]), dtype=fact.REMOVAL_DTYPE
    )
    out["at_ms"] = known["at_ms"]
    out["pid"] = known["pid"]
    out["seq"] = known["seq"]
    out["generation"] = known["attempts"]
    out["importance"] = known["importance"]
    out["bytes"] = known["bytes"]
    out["failures"] = known["failures"]
    out["enqueued_at_ms"] = known["enqueued_at_ms"]
    reasons = known["reason"]
    for reason, text in REASON_TEXT.items():
        of_it = reasons == int(reason)
        if of_it.any():
            out["reason"][of_it] = texts.code(text)
            event = text if reason in _BY_AGE else "removed"
            out["event"][of_it] = texts.code(event)
    dead = (known["moved_pid"] > 0) & (reasons != int(Reason.REDRIVEN))
    out["event"][dead] = texts.code("dead_lettered")
    return out


def _decided(told: Sequence[Numbered], texts: Texts) -> Records:
    """What became of copies; of a message that is gone only its number is known."""
    out, counts, _ = _begin(told)
    batches = [each.told for each in told if isinstance(each.told, Decided)]
    known = np.frombuffer(b"".join([packed(batch.rows) for batch in batches]), dtype=rows.DTYPE)
    _fill(out, known)
    gone = known["state"] == rows.FREE
    out["failures"][gone] = out["bytes"][gone] = -1
    out["rate"][gone] = np.nan
    out["pid"] = np.repeat([batch.pid for batch in batches], counts)
    out["seq"] = np.concatenate([batch.seqs for batch in batches])
    out["event"] = np.repeat([texts.code(batch.event) for batch in batches], counts)
    out["reason"] = np.repeat([texts.code(batch.reason) for batch in batches], counts)
    out["device"] = np.repeat([texts.code(batch.device) for batch in batches], counts)
    scores = [np.nan if batch.score is None else batch.score for batch in batches]
    out["score"] = np.repeat(scores, counts)
    return out


def _gaps(told: Sequence[Numbered], texts: Texts) -> Records:
    out, _, _ = _begin(told)
    out["event"] = texts.code("gap")
    missing = [each.told.missing for each in told if isinstance(each.told, Gap)]
    out["reason"] = [texts.code(f"{count} events before this are missing") for count in missing]
    return out
