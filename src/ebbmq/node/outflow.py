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
from ebbmq.core.row import HIGH, LOW48
from ebbmq.core.tokens import TOKEN_CHARS, TOKEN_DTYPE, spell_token
from ebbmq.model import IN_LOG, NO_HEADERS, InLog, Kept, Lease, Peeked
from ebbmq.policy import importance as policy
from ebbmq.speedups import twin

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.core.grants import Grants
    from ebbmq.core.partition import Partition, Row
    from ebbmq.model import Timing

    #: Of all rows the same, or of each its own.
    Instants = int | npt.NDArray[np.int64]

#: No more digits than the fields have bits.
_ID: Final = re.compile("([0-9a-f]{1,8})-([0-9a-f]{1,12})")
_ONE: Final = np.uint64(1)
#: What is told of leases that are `alike`; the others have their defaults.
_TOLD: Final = tuple(name for name in Lease.__struct_fields__ if name not in {"type", "kept"})
#: A number as its eight bytes in hex.
_PADDED: Final = "%016x"
_RATE_UNIT: Final = rows.RATE_UNIT
_decayed: Final = policy.decayed
STATE_NAMES: Final = ("gone", "scheduled", "replicating", "ready", "leased", "dying")


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


def tokens_of(partition: Partition, grants: Grants) -> list[str]:
    """One opaque token per lease."""
    pid, epoch, nonce = partition.pid, epoch_of(partition, grants), grants.nonce
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

    partition: Partition
    grants: Grants
    payloads: Sequence[bytes]
    at_ms: int
    #: How each is kept, or all of them are.
    kept: Sequence[Kept] | InLog | Kept = IN_LOG

    def tokens(self) -> list[str]:
        """What settles them."""
        return tokens_of(self.partition, self.grants)

    def leases(self) -> list[Lease]:
        """Them as a caller in this process gets them."""
        return leases(self.partition, self.grants, self.payloads, self.at_ms, self.kept)

    def alike(self) -> Alike | None:
        """Them by field, without their bodies; None if there is more to each than its row."""
        if not isinstance(self.kept, InLog):
            return None
        found = alike(self.partition, self.grants, self.at_ms)
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
    partition: Partition,
    grants: Grants,
    payloads: Sequence[bytes],
    now_ms: int,
    kept: Sequence[Kept] | InLog | Kept = IN_LOG,
) -> list[Lease]:
    """What a lease call returns."""
    seqs = grants.seqs
    if not seqs:
        return []
    each_kept = repeat(kept, len(seqs)) if isinstance(kept, InLog | Kept) else kept
    found = alike(partition, grants, now_ms)
    if found is None:
        tokens = tokens_of(partition, grants)
        return [
            _lease(partition, seq, row, payload, token, grants.deadline_ms, now_ms, how)
            for seq, row, payload, token, how in zip(
                seqs, grants.rows, payloads, tokens, each_kept, strict=True
            )
        ]
    own: dict[str, Sequence[Any]] = {**found.own, "body": payloads}
    for name, spelling in found.spelled.items():
        own[name] = spell_each(spelling, seqs)
    columns = [own.get(name) or repeat(found.shared[name]) for name in _TOLD]
    return list(map(Lease, *columns, repeat("BYTE"), each_kept))


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


def alike(partition: Partition, grants: Grants, now_ms: int) -> Alike | None:
    """The leases of a batch without their bodies; None if there is more to each than its row."""
    block = grants.block
    # Ready rows have no due instant, so a word above 48 bits is a headers block or a failure.
    if block is None or block.some[DUE] or block.some[ENQUEUED] > LOW48:
        return None
    pid, tail = partition.pid, f"{epoch_of(partition, grants):08x}{grants.nonce:08x}"
    shared: dict[str, Any] = {
        "headers": NO_HEADERS,
        "failures": 0,
        "deadline_ms": grants.deadline_ms,
        "latency_history": (),
        "type": "BYTE",
    }
    own: dict[str, list[Any]] = {}
    spelled = {"id": partition.spelling}
    if block.is_same(LEASE, LOW32):
        shared["attempt"] = attempt = (block.some[LEASE] & LOW32) + 1
        spelled["token"] = f"{pid:08x}{_PADDED}{attempt:08x}{tail}"
    else:
        own["attempt"] = (block.column(LEASE, LOW32) + _ONE).tolist()
        own["token"] = tokens_of(partition, grants)
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
            spans = np.where(spans > 0, spans, partition.spec.decay_unit_ms)
    else:
        shared["ttl_ms"] = None
    _worth(partition, grants, (now_ms - enqueued, spans), now_ms, found)
    return found


def _worth(
    partition: Partition,
    grants: Grants,
    times: tuple[Instants, Instants | None],
    now_ms: int,
    into: Alike,
) -> None:
    """Fill in importance, rate, current importance and band of rows that never failed.

    Their ages and spans are given; None where no row has a TTL.
    """
    block, spec = grants.block, partition.spec
    assert block is not None
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
        spans = spec.decay_unit_ms if spans is None else spans
        left = policy.decayed(importance, share, ages, spans)
        _fill(into, "current_importance", np.maximum(left, 0.0))
    else:
        _fill(into, "current_importance", importance * 1.0)
    band = _band(partition, grants, now_ms) if fading else None
    if band is not None:
        shared["band"] = band
    elif not fading and spec.band_width == 1.0:
        values = own if "importance" in own else shared
        values["band"] = values["importance"]
    elif not spec.band_width or not np.all(share):
        own["band"] = [partition.band(row, now_ms) for row in grants.rows]
    else:
        classes = block.column(DEAD, ALL, HIGH).astype(np.int64)
        all_ages = np.broadcast_to(np.asarray(ages), classes.shape)
        own["band"] = partition.classes.bands_at(classes, all_ages).tolist()


def _fill(into: Alike, name: str, value: Any) -> None:
    """Fill in what is one number, or one of each row."""
    if isinstance(value, np.ndarray):
        into.own[name] = value.tolist()
    else:
        into.shared[name] = value.item() if isinstance(value, np.generic) else value


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
        return _lease(partition, seq, row, payload, token, deadline_ms, now_ms, kept)
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
    partition: Partition,
    seq: int,
    row: Row,
    payload: bytes,
    token: str,
    deadline_ms: int,
    now_ms: int,
    kept: Kept | InLog,
) -> Lease:
    enqueued_at_ms = row[5] & LOW48
    dead = row[6] & LOW48
    current = partition.current_importance(row, now_ms) if row[4] else float(row[2])
    headers, body, kind = NO_HEADERS, payload, "BYTE"
    history: tuple[Timing, ...] = ()
    header_size = row[7] >> HIGH
    if header_size:
        read = envelope.unpack(payload[:header_size])
        headers, history, body = envelope.headers_of(read), read.history, payload[header_size:]
        kind = read.type
    failures = row[5] >> HIGH
    if failures:
        history = envelope.last_timings(history, partition.history(seq))
    return Lease(
        f"{partition.pid:x}-{seq:x}",
        body,
        headers,
        token,
        row[13] + 1,
        failures,
        row[2],
        current,
        partition.band(row, now_ms),
        dead - enqueued_at_ms if dead else None,
        row[4] / rows.RATE_UNIT,
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
