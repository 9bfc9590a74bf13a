"""Batches of what happened, taken apart into columns: all events of a kind at a time.

Everything is done on arrays. A loop over events would keep the interpreter busy, and with it the
threads that publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq.core import facts as fact
from ebbmq.core import happened as core
from ebbmq.core import row as rows
from ebbmq.core.block import (
    BYTE,
    DEAD,
    DUE,
    ENQUEUED,
    IMPORTANCE_BIT,
    KIND,
    LEASE,
    LOW32,
    RATE_BIT,
    SIZE,
    STATE,
    as_words,
)
from ebbmq.core.happened import Happened
from ebbmq.feed.events import GIVEN, NOTHING
from ebbmq.model import REASON_TEXT, Reason
from ebbmq.node.feeding.buffer import Decided, Gap, Numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.core.arrivals import ProfileKey
    from ebbmq.core.block import Words
    from ebbmq.core.happened import Rows

    Ints = npt.NDArray[np.int64]
    #: By name, all of one length.
    Columns = dict[str, npt.NDArray[Any]]

#: What stands for nothing in each column of events, where some have it and others do not.
ABSENT: Final[dict[str, float]] = {
    "reason": 0,
    "importance": 0,
    "rate": float("nan"),
    "ttl_ms": 0,
    "delay_ms": 0,
    "bytes": -1,
    "failures": -1,
    "enqueued_at_ms": 0,
    "latency_ms": -1,
    "consumer": 0,
    "device": 0,
    "score": float("nan"),
    "given": 0,
    "given_rate": float("nan"),
}
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
_PIECE_EVENTS: Final = 64 * 1024
_LOW48: Final = np.uint64(rows.LOW48)
_HIGH: Final = np.uint64(rows.HIGH)
_LOW32: Final = np.uint64(LOW32)


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


def expand(told: Sequence[Numbered], texts: Texts) -> Columns:
    """The columns of some events, by number; what none of them has is left out.

    Always there: number, at_ms, pid, seq, generation, event. Texts are codes.
    """
    kinds: dict[int | str, list[Numbered]] = {}
    for each in told:
        kind = each.told.event if isinstance(each.told, Happened) else type(each.told).__name__
        kinds.setdefault(kind, []).append(each)
    parts: list[Columns] = []
    for kind, some in kinds.items():
        if kind == core.REMOVED:
            parts.append(_removed(some, texts))
        elif kind == Gap.__name__:
            parts.append(_gaps(some, texts))
        elif kind == Decided.__name__:
            parts.append(_decided(some, texts))
        else:
            parts.append(_happened(some, texts))
    return parts[0] if len(parts) == 1 else _in_order(parts)


def _in_order(parts: Sequence[Columns]) -> Columns:
    """Events of several kinds, by number."""
    order = np.argsort(np.concatenate([part["number"] for part in parts]), kind="stable")
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: np.concatenate(
            [
                part[name] if name in part else np.full(len(part["number"]), ABSENT[name])
                for part in parts
            ]
        ).take(order)
        for name in names
    }


def _begin(told: Sequence[Numbered]) -> tuple[Columns, Ints, Ints]:
    """What every batch says of all its events; their counts and places."""
    counts = np.array([each.told.messages for each in told], dtype=np.int64)
    total = int(counts.sum())
    places = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    out = {
        "number": places + np.repeat([each.number for each in told], counts),
        "at_ms": np.repeat(np.array([each.told.at_ms for each in told]), counts),
    }
    return out, counts, places


def _happened(told: Sequence[Numbered], texts: Texts) -> Columns:
    """Events of one kind whose rows are known."""
    out, counts, places = _begin(told)
    batches = [each.told for each in told if isinstance(each.told, Happened)]
    kind = batches[0].event
    if kind == core.SCHEDULED:
        batches = [_only_scheduled(batch) for batch in batches]
    known = _by_word([batch.rows for batch in batches])
    out["pid"] = np.repeat(np.array([batch.pid for batch in batches]), counts)
    out["event"] = np.full(len(places), texts.code(_NAMES[kind]))
    if batches[0].seqs is None:
        firsts = np.repeat([batch.first for batch in batches], counts)
        out["seq"] = (places + firsts).astype(np.uint64)
    else:
        out["seq"] = np.concatenate([np.asarray(batch.seqs, np.uint64) for batch in batches])
    _fill(out, known)
    if kind == core.LEASED:
        out["generation"] += 1
        if any(batch.name for batch in batches):
            out["consumer"] = np.repeat([texts.code(batch.name) for batch in batches], counts)
    elif kind in _ENDS:
        due_ms = (known[DUE] & _LOW48).astype(np.int64)
        began_ms = due_ms - np.repeat([batch.lease_ms for batch in batches], counts)
        out["latency_ms"] = np.maximum(out["at_ms"] - began_ms, 0)
        if any(batch.delay_ms for batch in batches):
            out["delay_ms"] = np.repeat([batch.delay_ms for batch in batches], counts)
    elif kind != core.PEEKED:
        _delay(out, known)
    if kind == core.PUBLISHED:
        _given(out, batches, texts)
    return out


def _given(out: Columns, batches: Sequence[Happened], texts: Texts) -> None:
    """What publishers gave themselves, where that is known."""
    known: dict[ProfileKey | None, int] = {}
    codes: list[int] = []
    starts: list[int] = []
    first = 0
    for batch in batches:
        codes += [known.setdefault(each, len(known)) for each in batch.given or (None,)]
        starts += [first + each for each in batch.given_from]
        first += batch.messages
    which = np.repeat(np.array(codes, dtype=np.intp), np.diff([*starts, first]))
    out["given"] = np.array([texts.code(_named(each)) for each in known])[which]
    rates = [np.nan if each is None or each[2] is None else each[2] for each in known]
    if not np.isnan(rates).all():
        out["given_rate"] = np.array(rates)[which]


def _named(given: ProfileKey | None) -> str:
    """Which values a publisher gave."""
    if given is None:
        return ""
    told = (name for name, value in zip(GIVEN, given, strict=True) if value is not None)
    return " ".join(told) or NOTHING


def _delay(out: Columns, known: Words) -> None:
    """How long messages wait before they can be leased, where any do."""
    waits = (known[KIND] & np.uint64(STATE)) == rows.SCHEDULED
    if waits.any():
        due_ms = (known[DUE] & _LOW48).astype(np.int64)
        out["delay_ms"] = np.where(waits, due_ms - out["at_ms"], 0)


def _only_scheduled(batch: Happened) -> Happened:
    """The rows of a publish that wait for their time."""
    known = np.frombuffer(packed(batch.rows), dtype=rows.DTYPE)
    waiting = np.flatnonzero(known["state"] == rows.SCHEDULED)
    seqs = (waiting + batch.first).astype(np.uint64)
    return batch._replace(seqs=seqs, rows=known[waiting].tobytes())


def _by_word(known: Sequence[Rows]) -> Words:
    """Each word of all rows, one after the other: fields are looked at one by one."""
    return np.ascontiguousarray(as_words(b"".join([packed(each) for each in known])).T)


def packed(known: Rows) -> bytes:
    """Rows as they stand one after the other."""
    if isinstance(known, bytes):
        return known
    if isinstance(known, np.ndarray):
        return known.tobytes()
    return b"".join([rows.ROW.pack(*row) for row in known])


def _fill(out: Columns, known: Words) -> None:
    """What rows tell."""
    kind, enqueued, dead = known[KIND], known[ENQUEUED], known[DEAD] & _LOW48
    out["generation"] = (known[LEASE] & _LOW32).astype(np.int32)
    out["importance"] = (kind >> np.uint64(IMPORTANCE_BIT) & np.uint64(BYTE)).astype(np.int32)
    out["rate"] = (kind >> np.uint64(RATE_BIT)) / rows.RATE_UNIT
    out["bytes"] = (known[SIZE] & _LOW32).astype(np.int64)
    out["failures"] = (enqueued >> _HIGH).astype(np.int32)
    out["enqueued_at_ms"] = (enqueued & _LOW48).astype(np.int64)
    if dead.any():
        out["ttl_ms"] = np.where(dead > 0, dead.astype(np.int64) - out["enqueued_at_ms"], 0)


def _removed(told: Sequence[Numbered], texts: Texts) -> Columns:
    """Messages that left other than by ack, by their removal records."""
    out, _, places = _begin(told)
    batches = [each.told for each in told if isinstance(each.told, Happened)]
    known = np.frombuffer(
        b"".join([packed(batch.rows) for batch in batches]), dtype=fact.REMOVAL_DTYPE
    )
    reasons = known["reason"]
    out |= {
        "at_ms": known["at_ms"].astype(np.int64),
        "pid": known["pid"].astype(np.int64),
        "seq": known["seq"].copy(),
        "generation": known["attempts"].astype(np.int32),
        "importance": known["importance"].astype(np.int32),
        "bytes": known["bytes"].astype(np.int64),
        "failures": known["failures"].astype(np.int32),
        "enqueued_at_ms": known["enqueued_at_ms"].astype(np.int64),
        "reason": np.zeros(len(places), dtype=np.int64),
        "event": np.zeros(len(places), dtype=np.int64),
    }
    for reason, text in REASON_TEXT.items():
        of_it = reasons == int(reason)
        if of_it.any():
            out["reason"][of_it] = texts.code(text)
            event = text if reason in _BY_AGE else "removed"
            out["event"][of_it] = texts.code(event)
    dead = (known["moved_pid"] > 0) & (reasons != int(Reason.REDRIVEN))
    out["event"][dead] = texts.code("dead_lettered")
    return out


def _decided(told: Sequence[Numbered], texts: Texts) -> Columns:
    """What became of copies; of a message that is gone only its number is known."""
    out, counts, _ = _begin(told)
    batches = [each.told for each in told if isinstance(each.told, Decided)]
    known = _by_word([batch.rows for batch in batches])
    _fill(out, known)
    gone = (known[KIND] & np.uint64(STATE)) == rows.FREE
    for name in ("bytes", "failures", "rate"):
        out[name][gone] = ABSENT[name]
    out["pid"] = np.repeat([batch.pid for batch in batches], counts)
    out["seq"] = np.concatenate([batch.seqs for batch in batches])
    out["event"] = np.repeat([texts.code(batch.event) for batch in batches], counts)
    out["reason"] = np.repeat([texts.code(batch.reason) for batch in batches], counts)
    out["device"] = np.repeat([texts.code(batch.device) for batch in batches], counts)
    scores = [np.nan if batch.score is None else batch.score for batch in batches]
    out["score"] = np.repeat(scores, counts)
    return out


def _gaps(told: Sequence[Numbered], texts: Texts) -> Columns:
    """Of no message: there is no partition 0."""
    out, counts, _ = _begin(told)
    for name in ("pid", "generation"):
        out[name] = np.zeros(len(counts), dtype=np.int64)
    out["seq"] = np.zeros(len(counts), dtype=np.uint64)
    out["event"] = np.full(len(counts), texts.code("gap"))
    missing = [each.told.missing for each in told if isinstance(each.told, Gap)]
    reasons = [texts.code(f"{count} events before this are missing") for count in missing]
    out["reason"] = np.array(reasons, dtype=np.int64)
    return out
