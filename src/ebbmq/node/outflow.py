"""From rows and bodies to what a consumer gets: tokens, leases, peeks."""

from __future__ import annotations

import re
from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from ebbmq.core import envelope
from ebbmq.core import row as rows
from ebbmq.core.leases import TOKEN, TOKEN_DTYPE
from ebbmq.core.row import HIGH, LOW48
from ebbmq.model import NO_HEADERS, Lease, Peeked
from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.core.leases import Grants
    from ebbmq.core.partition import Partition, Row
    from ebbmq.model import Timing

#: No more digits than the fields have bits.
_ID: Final = re.compile("([0-9a-f]{1,8})-([0-9a-f]{1,12})")
TOKEN_CHARS: Final = 2 * TOKEN.size
STATE_NAMES: Final = ("gone", "scheduled", "replicating", "ready", "leased", "dying")


def message_id(pid: int, seq: int) -> str:
    """The public id of a message."""
    return f"{pid:x}-{seq:x}"


def parse_id(text: str) -> tuple[int, int] | None:
    """(pid, seq) of a public id; None if it is not one."""
    found = _ID.fullmatch(text)
    return (int(found[1], 16), int(found[2], 16)) if found else None


def tokens_of(partition: Partition, grants: Grants) -> list[str]:
    """One opaque token per lease."""
    pid, epoch, nonce = partition.pid, partition.epoch & 0xFFFF, grants.nonce
    if len(grants.seqs) == 1:
        return [TOKEN.pack(pid, grants.seqs[0], grants.rows[0][13] + 1, epoch, nonce).hex()]
    tokens = np.empty(len(grants.seqs), dtype=TOKEN_DTYPE)
    tokens["pid"] = pid
    tokens["seq"] = grants.seqs
    tokens["generation"] = [before + 1 for before in grants.column("generation")]
    tokens["epoch"] = epoch
    tokens["nonce"] = nonce
    packed = tokens.tobytes().hex()
    return [packed[at : at + TOKEN_CHARS] for at in range(0, len(packed), TOKEN_CHARS)]


def pack_tokens(tokens: Sequence[str]) -> bytes | None:
    """Tokens as bytes, one after the other; None if any of them is not of the form of a token."""
    if any(map(TOKEN_CHARS.__ne__, map(len, tokens))):
        return None
    try:
        packed = bytes.fromhex("".join(tokens))
    except ValueError:
        return None
    return packed if len(packed) == len(tokens) * TOKEN.size else None


def is_intact(payload: bytes, row: Row) -> bool:
    """Whether bytes read from a device are the ones that were published."""
    return len(payload) == row[11] and crc32c(payload) == row[12]


def leases(
    partition: Partition, grants: Grants, payloads: Sequence[bytes], now_ms: int
) -> list[Lease]:
    """What a lease call returns."""
    if not grants.seqs:
        return []
    tokens = tokens_of(partition, grants)
    array = grants.array
    # Ready rows have no due instant, so a word above 48 bits is a headers block or a failure.
    if array is None or array["due"].any() or int(array["enqueued"].max()) > LOW48:
        return [
            _lease(partition, seq, row, payload, token, grants.deadline_ms, now_ms)
            for seq, row, payload, token in zip(
                grants.seqs, grants.rows, payloads, tokens, strict=True
            )
        ]
    prefix = f"{partition.pid:x}-"
    enqueued = array["enqueued"].astype(np.int64)
    ends = (array["dead"] & np.uint64(LOW48)).astype(np.int64)
    spans = ends - enqueued
    current, bands = _worth(partition, grants, spans, now_ms)
    return list(
        map(
            Lease,
            [f"{prefix}{seq:x}" for seq in grants.seqs],
            payloads,
            repeat(NO_HEADERS),
            tokens,
            (array["generation"] + np.uint32(1)).tolist(),
            repeat(0),
            array["importance"].tolist(),
            current,
            bands,
            [span if span > 0 else None for span in spans.tolist()] if ends.any() else repeat(None),
            (array["rate"] / rows.RATE_UNIT).tolist(),
            enqueued.tolist(),
            repeat(grants.deadline_ms),
            repeat(()),
        )
    )


def _worth(
    partition: Partition, grants: Grants, spans_ms: npt.NDArray[np.int64], now_ms: int
) -> tuple[list[float], list[int]]:
    """Current importance and band of rows that never failed; without a TTL its span is below 0."""
    array, spec = grants.array, partition.spec
    assert array is not None
    importances, rates = array["importance"], array["rate"]
    if spec.band_width == 1.0 and not rates.any():
        return importances.astype(np.float64).tolist(), importances.tolist()
    ages = now_ms - array["enqueued"].astype(np.int64)
    spans = np.where(spans_ms > 0, spans_ms, spec.decay_unit_ms)
    left = policy.decayed(importances.astype(np.float64), rates / rows.RATE_UNIT, ages, spans)
    current = np.maximum(left, 0.0).tolist()
    if not spec.band_width or not rates.all():
        return current, [partition.band(row, now_ms) for row in grants.rows]
    classes = (array["dead"] >> np.uint64(HIGH)).astype(np.int64)
    return current, partition.classes.bands_at(classes, ages).tolist()


def lease(
    partition: Partition, seq: int, row: Row, payload: bytes, grants: Grants, now_ms: int
) -> Lease:
    """What a lease call for one message returns."""
    pid = partition.pid
    token = TOKEN.pack(pid, seq, row[13] + 1, partition.epoch & 0xFFFF, grants.nonce).hex()
    if row[4] or row[7] or row[5] > LOW48 or partition.spec.band_width != 1.0:
        return _lease(partition, seq, row, payload, token, grants.deadline_ms, now_ms)
    dead = row[6] & LOW48
    return Lease(
        f"{pid:x}-{seq:x}",
        payload,
        NO_HEADERS,
        token,
        row[13] + 1,
        0,
        row[2],
        float(row[2]),
        row[2],
        dead - row[5] if dead else None,
        0.0,
        row[5],
        grants.deadline_ms,
        (),
    )


def _lease(  # noqa: PLR0913, PLR0917  # one row and all that is known of its lease
    partition: Partition,
    seq: int,
    row: Row,
    payload: bytes,
    token: str,
    deadline_ms: int,
    now_ms: int,
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
        history = history + partition.history(seq)
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
        read.history + partition.history(seq),
        read.type,
    )
