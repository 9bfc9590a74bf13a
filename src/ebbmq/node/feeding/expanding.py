"""Batches of what happened, taken apart into columns, many batches at a time.

Everything is done on arrays. A loop over events would keep the interpreter busy, and with it the
threads that publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from ebbmq.core import facts as fact
from ebbmq.core import happened as core
from ebbmq.core import row as rows
from ebbmq.core.happened import Happened
from ebbmq.feed.events import GIVEN, NOTHING
from ebbmq.model import REASON_TEXT, Reason
from ebbmq.node.feeding.buffer import Decided, Gap
from ebbmq.node.feeding.joining import NO_KIND, packed
from ebbmq.node.feeding.unpacking import (
    BATCH,
    KIND,
    SOME,
    TOLD_NARROW,
    TOLD_WIDE,
    Room,
    row_columns,
    unpack_batches,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from ebbmq.node.feeding.joining import Joined

    Batch = TypeVar("Batch", Happened, Decided, Gap)
    #: A batch, after the place of its first event and that one's number.
    Placed = tuple[int, int, Batch]
    Ints = npt.NDArray[np.int64]
    #: By name, all of one length.
    Columns = dict[str, npt.NDArray[Any]]
    #: By partition: its queue, and which partition of it.
    Places = Mapping[int, tuple[str, int]]

#: What stands for nothing in each column of events, where some have it and others do not.
ABSENT: Final[dict[str, float]] = {
    "reason": 0,
    "importance": 0,
    "rate": float("nan"),
    "bytes": -1,
    "failures": -1,
    "enqueued_at_ms": -1,
    "device": 0,
    "score": float("nan"),
    "given_rate": float("nan"),
    **SOME,
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
_ARRIVE: Final = (core.PUBLISHED, core.SCHEDULED)
#: Reasons that are events themselves; the others are reasons of `removed`.
_BY_AGE: Final = (Reason.STALE, Reason.EXPIRED)
#: What rows tell of all events.
_WHOLE: Final = frozenset((*TOLD_WIDE, *TOLD_NARROW, "rate")) - SOME.keys()
#: What the row of a message tells of it whose copies are told of.
_KNOWN: Final = (
    "generation",
    "importance",
    "ttl_ms",
    "bytes",
    "failures",
    "enqueued_at_ms",
)
_CONSUMER: Final = BATCH.index("consumer")
#: Which values a publisher gave, where that is not known.
_NOTHING_KNOWN: Final = -1
#: The queue and the partition of what is about no message.
_NOWHERE: Final = ("", -1)


class Expanded(NamedTuple):
    """Events by columns."""

    #: Always there: number, at_ms, pid, queue, partition, seq, event, generation. What no event has
    #: is left out; texts are codes.
    columns: Columns
    #: Those in which no event lacks a value.
    whole: Collection[str] = ()
    #: Of some a bit for each event, set where it has a value.
    present: Mapping[str, npt.NDArray[np.uint8]] = {}


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


def expand(joined: Joined, texts: Texts, places: Places, room: Room | None = None) -> Expanded:
    """The columns of some events.

    With a room they are there until it is used again.
    """
    out = (room or Room()).of(joined.events, TOLD_WIDE, TOLD_NARROW)
    present = np.empty((len(SOME), (joined.events + 7) // 8), dtype=np.uint8)
    batches, stretches = joined.batches, joined.stretches.copy()
    if len(joined.names) > 1:
        batches = batches.copy()
        batches[:, _CONSUMER] = _codes(joined.names, texts)[batches[:, _CONSUMER]]
    rates = _rates(joined, stretches)
    given = [_NOTHING_KNOWN if each is None else each[0] for each in joined.given]
    named = {which: texts.code(_named(which)) for which in set(given)}
    stretches[:, 0] = np.array([named[which] for which in given])[stretches[:, 0]]
    counts = unpack_batches(
        joined.words,
        batches,
        _kinds(joined, texts, places),
        joined.seqs,
        stretches,
        *out,
        present,
    )
    columns = out.columns(TOLD_WIDE, TOLD_NARROW)
    if rates is not None:
        columns["given_rate"] = rates
    if joined.others:
        _fill(columns, joined, texts, places)
        return Expanded(columns)
    whole, some = set(_WHOLE), {}
    for name, has, bits in zip(SOME, counts, present, strict=True):
        if not has:
            del columns[name]
        elif has == joined.events:
            whole.add(name)
        else:
            some[name] = bits
    return Expanded(columns, whole, some)


def _fill(columns: Columns, joined: Joined, texts: Texts, places: Places) -> None:
    """Put what is not told by rows where rows left a place for it."""
    removed, decided, gaps = _apart(joined)
    parts = []
    if removed:
        parts.append(_removed(removed, texts))
    if decided:
        parts.append(_decided(decided, texts))
    if gaps:
        parts.append(_gaps(gaps, texts))
    for part in parts:
        at = part.pop("place")
        for name, values in _placed(part, texts, places).items():
            if name not in columns:
                columns[name] = np.full(joined.events, ABSENT[name], dtype=values.dtype)
            columns[name][at] = values
        for name in columns.keys() - part.keys():
            columns[name][at] = ABSENT[name]


def _apart(
    joined: Joined,
) -> tuple[list[Placed[Happened]], list[Placed[Decided]], list[Placed[Gap]]]:
    """What is not told by rows, by its kind."""
    told = dict(zip(BATCH, joined.batches.T, strict=True))
    begins = (np.cumsum(told["messages"]) - told["messages"])[told["kind"] == NO_KIND]
    removed: list[Placed[Happened]] = []
    decided: list[Placed[Decided]] = []
    gaps: list[Placed[Gap]] = []
    for place, (number, each) in zip(begins.tolist(), joined.others, strict=True):
        if isinstance(each, Happened):
            removed.append((place, number, each))
        elif isinstance(each, Decided):
            decided.append((place, number, each))
        else:
            gaps.append((place, number, each))
    return removed, decided, gaps


def _placed(columns: Columns, texts: Texts, places: Places) -> Columns:
    """The same, with the queue of each message and its partition there."""
    known, which = np.unique(columns["pid"], return_inverse=True)
    found = [places.get(int(pid), _NOWHERE) for pid in known]
    columns["queue"] = np.array([texts.code(name) for name, _ in found])[which]
    columns["partition"] = np.array([number for _, number in found])[which]
    return columns


def _begin(told: Sequence[Placed[Any]]) -> tuple[Columns, Ints]:
    """What every batch says of all its events, and their counts."""
    counts = np.array([batch.messages for _, _, batch in told], dtype=np.int64)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    out = {
        "place": within + np.repeat([place for place, _, _ in told], counts),
        "number": within + np.repeat([number for _, number, _ in told], counts),
        "at_ms": np.repeat(np.array([batch.at_ms for _, _, batch in told]), counts),
    }
    return out, counts


def _rates(joined: Joined, stretches: Ints) -> npt.NDArray[np.float64] | None:
    """The decay rates that publishers gave themselves; None where nobody did."""
    rates = np.array(
        [np.nan if each is None or each[1] is None else each[1] for each in joined.given]
    )
    if np.isnan(rates).all():
        return None
    out = np.full(joined.events, np.nan)
    told = dict(zip(BATCH, joined.batches.T, strict=True))
    is_by_rows = np.repeat(told["kind"] != NO_KIND, told["messages"])
    out[is_by_rows] = np.repeat(rates[stretches[:, 0]], stretches[:, 1])
    return out


def _kinds(joined: Joined, texts: Texts, places: Places) -> Ints:
    """What is the same for all batches of a kind: KIND."""
    known = []
    for event, pid in joined.kinds:
        queue, partition = places.get(pid, _NOWHERE)
        known.append(
            (
                pid,
                texts.code(queue),
                partition,
                texts.code(_NAMES[event]),
                event == core.LEASED,
                event in _ENDS,
                event in _ARRIVE,
            )
        )
    return np.array(known, dtype=np.int64).reshape(-1, len(KIND))


def _codes(names: Iterable[str], texts: Texts) -> Ints:
    """The codes of texts."""
    return np.fromiter((texts.code(name) for name in names), dtype=np.int64)


def _named(which: int) -> str:
    """Which values a publisher gave."""
    if which == _NOTHING_KNOWN:
        return ""
    return " ".join(name for bit, name in enumerate(GIVEN) if which >> bit & 1) or NOTHING


def _removed(told: Sequence[Placed[Happened]], texts: Texts) -> Columns:
    """Messages that left other than by ack, by their removal records."""
    out, _ = _begin(told)
    known = np.frombuffer(
        b"".join([packed(batch.rows) for _, _, batch in told]), dtype=fact.REMOVAL_DTYPE
    )
    reasons = known["reason"]
    out |= {
        "at_ms": known["at_ms"].astype(np.int64),
        "pid": known["pid"].astype(np.int64),
        "seq": known["seq"].astype(np.int64),
        "generation": known["attempts"].astype(np.int32),
        "importance": known["importance"].astype(np.int32),
        "bytes": known["bytes"].astype(np.int64),
        "failures": known["failures"].astype(np.int32),
        "enqueued_at_ms": known["enqueued_at_ms"].astype(np.int64),
        "reason": np.zeros(len(known), dtype=np.int64),
        "event": np.zeros(len(known), dtype=np.int64),
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


def _decided(told: Sequence[Placed[Decided]], texts: Texts) -> Columns:
    """What became of copies; of a message that is gone only its number is known."""
    begun, counts = _begin(told)
    batches = [batch for _, _, batch in told]
    known = np.concatenate([batch.rows for batch in batches])
    fields = row_columns(known.tobytes())
    gone = fields["state"] == rows.FREE
    for name in ("bytes", "failures", "enqueued_at_ms"):
        fields[name][gone] = ABSENT[name]
    scores = [np.nan if batch.score is None else batch.score for batch in batches]
    return {
        **begun,
        **{name: fields[name] for name in _KNOWN},
        "rate": np.where(gone, np.nan, fields["rate"]),
        "pid": np.repeat([batch.pid for batch in batches], counts),
        "seq": np.concatenate([batch.seqs for batch in batches]).astype(np.int64),
        "event": np.repeat([texts.code(batch.event) for batch in batches], counts),
        "reason": np.repeat([texts.code(batch.reason) for batch in batches], counts),
        "device": np.repeat([texts.code(batch.device) for batch in batches], counts),
        "score": np.repeat(scores, counts),
    }


def _gaps(told: Sequence[Placed[Gap]], texts: Texts) -> Columns:
    """Of no message: there is no partition 0."""
    out, counts = _begin(told)
    for name in ("pid", "seq", "generation"):
        out[name] = np.zeros(len(counts), dtype=np.int64)
    out["event"] = np.full(len(counts), texts.code("gap"))
    reasons = [texts.code(f"{gap.missing} events before this are missing") for _, _, gap in told]
    out["reason"] = np.array(reasons, dtype=np.int64)
    return out
