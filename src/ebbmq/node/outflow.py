"""From rows and bodies to what a consumer gets: tokens, leases, peeks."""

from __future__ import annotations

import re
from itertools import repeat
from struct import pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec.structs import asdict

from ebbmq.checksum import crc32c
from ebbmq.core import envelope
from ebbmq.core import row as rows
from ebbmq.core.block import (
    ALL,
    BYTE,
    DEAD,
    DUE,
    ENQUEUED,
    IMPORTANCE_BIT,
    KIND,
    LEASE,
    LOW32,
    RATE_BIT,
)
from ebbmq.core.row import DYING, HIGH, LOW48, STATES
from ebbmq.core.tokens import TOKEN_CHARS, TOKEN_DTYPE, spell_token
from ebbmq.model import IN_LOG, NO_HEADERS, InLog, Kept, Lease, Peeked
from ebbmq.policy import importance as policy
from ebbmq.speedups import twin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ebbmq.core.block import Block
    from ebbmq.core.grants import Grants
    from ebbmq.core.partition import Partition, Row
    from ebbmq.model import QueueSpec, Timing

    #: Of all rows the same, or of each its own.
    Instants = int | npt.NDArray[np.int64]
    Bands = int | list[int] | None

#: No more digits than the fields have bits.
_ID: Final = re.compile("([0-9a-f]{1,8})-([0-9a-f]{1,12})")
_ONE: Final = np.uint64(1)
#: What is told of leases that are `alike`; the others have their defaults.
_TOLD: Final = tuple(name for name in Lease.__struct_fields__ if name not in {"type", "kept"})
#: A number as its eight bytes in hex.
_PADDED: Final = "%016x"
_NO_HISTORIES: Final[Mapping[int, tuple[Timing, ...]]] = {}
_RATE_UNIT: Final = rows.RATE_UNIT
_decayed: Final = policy.decayed
STATE_NAMES: Final = (
    "gone", "scheduled", "replicating", "ready", "leased", "dying",
    *("in_doubt",) * (STATES - DYING - 1),
)  # fmt: skip


@twin
def message_id(pid: int, seq: int) -> str:
    """The public id of a message."""
    return f"{pid:x}-{seq:x}"


def parse_id(text: str) -> tuple[int, int] | None:
    """(pid, seq) of a public id; None if it is not one."""
    found = _ID.fullmatch(text)
    return (int(found[1], 16), int(found[2], 16)) if found else None


def epoch_of(partition: Partition, grants: Grants) -> int:
    """The epoch that tokens of these leases carry: that of the boot which granted them."""
    return (partition.epoch if grants.epoch is None else grants.epoch) & 0xFFFF


class View(NamedTuple):
    """What leases show of their partition, copied with the lock held: it goes on changing."""

    pid: int
    epoch: int
    spelling: str
    spec: QueueSpec
    at_ms: int = 0
    #: The band of all leases, or of each; None: the importance of each.
    bands: Bands = None
    #: Of the messages that failed before.
    histories: Mapping[int, tuple[Timing, ...]] = _NO_HISTORIES

    @classmethod
    def for_tokens(cls, partition: Partition, grants: Grants) -> View:
        """As much of it as tokens need (the lock is held)."""
        return cls(partition.pid, epoch_of(partition, grants), partition.spelling, partition.spec)

    @classmethod
    def of(cls, partition: Partition, grants: Grants, now_ms: int) -> View:
        """All of it (the lock is held)."""
        at_ms, plain, histories = grants.at_ms or now_ms, _plain(grants), _NO_HISTORIES
        if plain is None and (grants.block is None or grants.block.some[ENQUEUED] > LOW48):
            pairs = zip(grants.seqs, grants.rows, strict=True)
            histories = partition.histories.of([seq for seq, row in pairs if row[5] >> HIGH])
        bands, epoch = _bands(partition, grants, plain, at_ms), epoch_of(partition, grants)
        pid, spelling, spec = partition.pid, partition.spelling, partition.spec
        return cls(pid, epoch, spelling, spec, at_ms, bands, histories)

    def chosen(self, numbers: Sequence[int]) -> View:
        """That of some leases, by their numbers among these."""
        bands = self.bands
        return self._replace(bands=[bands[i] for i in numbers] if type(bands) is list else bands)


def tokens_of(view: View, grants: Grants) -> list[str]:
    """One opaque token per lease."""
    pid, epoch, nonce = view.pid, view.epoch, grants.nonce
    if len(grants.seqs) == 1:
        return [spell_token(pid, grants.seqs[0], grants.rows[0][13] + 1, epoch, nonce)]
    tokens = np.empty(len(grants.seqs), dtype=TOKEN_DTYPE)
    generations = grants.column("generation")
    tokens[:] = (pid, 0, generations[0] + 1, epoch, nonce)
    tokens["seq"] = grants.seqs
    if generations.count(generations[0]) != len(generations):
        tokens["generation"] = [before + 1 for before in generations]
    packed = tokens.tobytes().hex()
    return [packed[at : at + TOKEN_CHARS] for at in range(0, len(packed), TOKEN_CHARS)]


def is_intact(payload: bytes, row: Row) -> bool:
    """Whether bytes read from a device are the ones that were published."""
    return len(payload) == row[11] and crc32c(payload) == row[12]


class Alike(NamedTuple):
    """Leases of a batch by field, without their bodies."""

    #: What is the same for all of them.
    shared: dict[str, Any]
    #: What each of them has for itself.
    own: dict[str, list[Any]]
    #: What is a text with the number of the row in it: how that is formatted.
    spelled: dict[str, str]


class Delivery(NamedTuple):
    """Leases of one partition with their bodies, on their way to who asked for them."""

    view: View
    grants: Grants
    #: None for one that is still to be read.
    payloads: list[bytes]
    #: How each is kept, or all of them are.
    kept: Sequence[Kept] | InLog = ()

    def chosen(self, numbers: Sequence[int]) -> Delivery:
        """Some of them, by their numbers here."""
        kept = self.kept if isinstance(self.kept, InLog) else [self.kept[i] for i in numbers]
        payloads = [self.payloads[i] for i in numbers]
        return Delivery(self.view.chosen(numbers), self.grants.chosen(numbers), payloads, kept)

    def tokens(self) -> list[str]:
        """What settles them."""
        return tokens_of(self.view, self.grants)

    def leases(self) -> list[Lease]:
        """Them as a caller in this process gets them."""
        return leases(self.view, self.grants, self.payloads, self.kept)

    def alike(self) -> Alike | None:
        """Them by field, without their bodies; None if there is more to each than its row."""
        if not isinstance(self.kept, InLog):
            return None
        found = alike(self.view, self.grants)
        if found is not None:
            _fill_kept(found, self.kept)
        return found


def _fill_kept(into: Alike, kept: InLog) -> None:
    """Fill in how leases are kept."""
    shared, own, _ = into
    enqueued, attempts = own.get("enqueued_at_ms", []), own.get("attempt", [])
    first_ms = shared["enqueued_at_ms"] if "enqueued_at_ms" in shared else enqueued[0]
    shared.update(asdict(kept.of(shared.get("attempt", 1) - 1, first_ms)))
    if attempts:
        own["access_count"] = [attempt - 1 for attempt in attempts]
    if enqueued:
        own["decay_score"] = [kept.score.at(kept.at_ms - each_ms, 0.0) for each_ms in enqueued]


def leases(
    view: View, grants: Grants, payloads: Sequence[bytes], kept: Sequence[Kept] | InLog
) -> list[Lease]:
    """What a lease call returns."""
    seqs = grants.seqs
    if not seqs:
        return []
    each_kept = repeat(kept, len(seqs)) if isinstance(kept, InLog) else kept
    found = alike(view, grants)
    if found is None:
        bands = grants.column("importance") if view.bands is None else view.bands
        each = [bands] * len(seqs) if isinstance(bands, int) else bands
        tokens = tokens_of(view, grants)
        columns = zip(
            seqs,
            grants.rows,
            payloads,
            tokens,
            each,
            repeat(grants.deadline_ms, len(seqs)),
            each_kept,
            strict=True,
        )
        return [_lease(view, *one) for one in columns]
    own: dict[str, Sequence[Any]] = {**found.own, "body": payloads}
    for name, spelling in found.spelled.items():
        own[name] = spell_each(spelling, seqs)
    fields = [own.get(name) or repeat(found.shared[name]) for name in _TOLD]
    return list(map(Lease, *fields, repeat("BYTE"), each_kept))


@twin
def spell_each(spelling: str, seqs: list[int]) -> list[str]:
    """The spelling with each of many numbers: all are written as one text, for half the price."""
    if not seqs:
        return []
    before, is_padded, after = spelling.partition(_PADDED)
    if is_padded:
        lines = pack(f">{len(seqs)}Q", *seqs).hex("\n", 8).replace("\n", f"{after}\n{before}")
        text = before + lines + after
    else:
        text = "\n".join([spelling] * len(seqs)) % tuple(seqs)
    return text.split("\n")


def _plain(grants: Grants) -> Block | None:
    """The rows of a batch; None if there is more to some message than its row."""
    block = grants.block
    # Ready rows have no due instant, so a word above 48 bits is a headers block or a failure.
    if block is None or block.some[DUE] or block.some[ENQUEUED] > LOW48:
        return None
    return block


def alike(view: View, grants: Grants) -> Alike | None:
    """The leases of a batch without their bodies; None if there is more to each than its row."""
    block = _plain(grants)
    if block is None:
        return None
    pid, tail = view.pid, f"{view.epoch:08x}{grants.nonce:08x}"
    shared: dict[str, Any] = {
        "headers": NO_HEADERS,
        "failures": 0,
        "deadline_ms": grants.deadline_ms,
        "latency_history": (),
        "type": "BYTE",
    }
    own: dict[str, list[Any]] = {}
    spelled = {"id": view.spelling}
    if block.is_same(LEASE, LOW32):
        shared["attempt"] = attempt = (block.some[LEASE] & LOW32) + 1
        spelled["token"] = f"{pid:08x}{_PADDED}{attempt:08x}{tail}"
    else:
        own["attempt"] = (block.column(LEASE, LOW32) + _ONE).tolist()
        own["token"] = tokens_of(view, grants)
    # None of the words has its highest bit set, so they are the same numbers with a sign.
    words = block.words.view(np.int64)
    enqueued: Instants = block.some[ENQUEUED]
    if block.is_same(ENQUEUED):
        shared["enqueued_at_ms"] = enqueued
    else:
        enqueued = words[:, ENQUEUED]
        own["enqueued_at_ms"] = enqueued.tolist()
    found = Alike(shared, own, spelled)
    spans: Instants | None = None
    if block.some[DEAD] & LOW48:
        spans = (words[:, DEAD] & LOW48) - enqueued
        own["ttl_ms"] = spans.tolist()
        if spans.min() <= 0:
            own["ttl_ms"] = [span if span > 0 else None for span in own["ttl_ms"]]
            spans = np.where(spans > 0, spans, view.spec.decay_unit_ms)
    else:
        shared["ttl_ms"] = None
    _worth(view, block, (view.at_ms - enqueued, spans), found)
    return found


def _worth(view: View, block: Block, times: tuple[Instants, Instants | None], into: Alike) -> None:
    """Fill in importance, rate, current importance and band of rows that never failed.

    Their ages and spans are given; None where no row has a TTL.
    """
    shared, own, _ = into
    importance: Any = block.some[KIND] >> IMPORTANCE_BIT & BYTE
    if block.is_same(KIND, BYTE << IMPORTANCE_BIT):
        shared["importance"] = importance
    else:
        importance = block.column(KIND, BYTE << IMPORTANCE_BIT, IMPORTANCE_BIT)
        own["importance"] = importance.tolist()
        importance = importance.astype(np.float64)
    fading = block.some[KIND] >> RATE_BIT
    share: Any = fading / _RATE_UNIT
    if block.is_same(KIND, LOW32 << RATE_BIT):
        shared["decay_rate"] = share
    else:
        share = block.column(KIND, LOW32 << RATE_BIT, RATE_BIT) / _RATE_UNIT
        own["decay_rate"] = share.tolist()
    ages, spans = times
    if fading:
        spans = view.spec.decay_unit_ms if spans is None else spans
        left = policy.decayed(importance, share, ages, spans)
        _fill(into, "current_importance", np.maximum(left, 0.0))
    else:
        _fill(into, "current_importance", importance * 1.0)
    if view.bands is None:
        values = own if "importance" in own else shared
        values["band"] = values["importance"]
    elif isinstance(view.bands, int):
        shared["band"] = view.bands
    else:
        own["band"] = view.bands


def _fill(into: Alike, name: str, value: Any) -> None:
    """Fill in what is one number, or one of each row."""
    if isinstance(value, np.ndarray):
        into.own[name] = value.tolist()
    else:
        into.shared[name] = value.item() if isinstance(value, np.generic) else value


def _bands(partition: Partition, grants: Grants, block: Block | None, now_ms: int) -> Bands:
    """The band of all of these, or of each; None: it is their importance (the lock is held)."""
    width = partition.spec.band_width
    fading = 0 if block is None else block.some[KIND] >> RATE_BIT
    if block is not None and not fading and width == 1.0:
        return None
    band = _band(partition, grants, now_ms) if fading else None
    if band is not None:
        return band
    if block is None or not width or not block.column(KIND, LOW32 << RATE_BIT).all():
        return [partition.band(row, now_ms) for row in grants.rows]
    classes = block.column(DEAD, ALL, HIGH).astype(np.int64)
    ages = now_ms - block.words[:, ENQUEUED].view(np.int64)
    bands: list[int] = partition.classes.bands_at(classes, ages).tolist()
    return bands


def _band(partition: Partition, grants: Grants, now_ms: int) -> int | None:
    """The band of all of these; None if that is not sure.

    They were delivered highest band first: what is between two rows of a band is of it, too.
    """
    if grants.at_ms != now_ms or not partition.spec.band_width:
        return None
    assert grants.block is not None
    words, classes = grants.block.words, partition.classes.all
    first, last = (
        classes[int(row[DEAD]) >> HIGH].band_at(now_ms - int(row[ENQUEUED]))
        for row in (words[0], words[-1])
    )
    return first if first == last else None


def lease_of(  # noqa: PLR0913, PLR0917  # one row and all that is known of its lease
    partition: Partition,
    seq: int,
    row: Row,
    payload: bytes,
    deadline_ms: int,
    nonce: int,
    now_ms: int,
    kept: Kept | InLog = IN_LOG,
) -> Lease:
    """What a lease call for one message returns; it was popped last."""
    _, _, importance, _, rate, enqueued_at_ms, dead, due, _, _, _, _, _, attempt, _ = row
    attempt += 1
    spec, pid = partition.spec, partition.pid
    token = spell_token(pid, seq, attempt, partition.epoch & 0xFFFF, nonce)
    # Ready rows have no due instant, so a word above 48 bits is a headers block or a failure.
    if due or enqueued_at_ms > LOW48 or spec.band_width != 1.0:
        since = {seq: partition.history(seq)} if enqueued_at_ms > LOW48 else {}
        view = View(pid, partition.epoch & 0xFFFF, partition.spelling, spec, now_ms, None, since)
        return _lease(
            view, seq, row, payload, token, partition.band(row, now_ms), deadline_ms, kept
        )
    ttl_ms, current, band, share = None, float(importance), importance, 0.0
    if dead:
        end_ms = dead & LOW48
        if end_ms:
            ttl_ms = end_ms - enqueued_at_ms
    if rate:
        age_ms, share = now_ms - enqueued_at_ms, rate / _RATE_UNIT
        left = _decayed(importance, share, age_ms, ttl_ms or spec.decay_unit_ms)
        current = left if left > 0 else 0.0
        band = partition.order.popped_band
        if band < 0:
            band = partition.classes.all[dead >> HIGH].band_at(age_ms)
    return Lease(
        message_id(pid, seq),
        payload,
        NO_HEADERS,
        token,
        attempt,
        0,
        importance,
        current,
        band,
        ttl_ms,
        share,
        enqueued_at_ms,
        deadline_ms,
        (),
        "BYTE",
        kept,
    )


def _lease(  # noqa: PLR0913, PLR0917  # one row and all that is known of its lease
    view: View,
    seq: int,
    row: Row,
    payload: bytes,
    token: str,
    band: int,
    deadline_ms: int,
    kept: Kept | InLog,
) -> Lease:
    enqueued_at_ms = row[5] & LOW48
    dead = row[6] & LOW48
    rate, ttl_ms = row[4] / rows.RATE_UNIT, dead - enqueued_at_ms if dead else None
    current = float(row[2])
    if rate:
        span_ms = view.spec.decay_unit_ms if ttl_ms is None else ttl_ms
        current = policy.current_importance(row[2], rate, view.at_ms - enqueued_at_ms, span_ms)
    headers, body, kind = NO_HEADERS, payload, "BYTE"
    history: tuple[Timing, ...] = ()
    header_size = row[7] >> HIGH
    if header_size:
        read = envelope.unpack(payload[:header_size])
        headers, history, body = envelope.headers_of(read), read.history, payload[header_size:]
        kind = read.type
    failures = row[5] >> HIGH
    if failures:
        history = envelope.last_timings(history, view.histories.get(seq, ()))
    return Lease(
        f"{view.pid:x}-{seq:x}",
        body,
        headers,
        token,
        row[13] + 1,
        failures,
        row[2],
        current,
        band,
        ttl_ms,
        rate,
        enqueued_at_ms,
        deadline_ms,
        history,
        kind,
        kept,
    )


def peeked(partition: Partition, seq: int, row: Row, payload: bytes, now_ms: int) -> Peeked:
    """A message as `peek` shows it."""
    enqueued_at_ms = row[5] & LOW48
    dead = row[6] & LOW48
    current = partition.current_importance(row, now_ms)
    header_size = row[7] >> HIGH
    read = envelope.unpack(payload[:header_size]) if header_size else envelope.EMPTY
    due_ms = row[7] & LOW48
    return Peeked(
        message_id(partition.pid, seq),
        payload[header_size:],
        envelope.headers_of(read),
        STATE_NAMES[row[0]],
        row[13],
        row[5] >> HIGH,
        row[2],
        current,
        partition.band(row, now_ms),
        dead - enqueued_at_ms if dead else None,
        row[4] / rows.RATE_UNIT,
        enqueued_at_ms,
        due_ms or None,
        envelope.last_timings(read.history, partition.history(seq)),
        read.type,
    )
