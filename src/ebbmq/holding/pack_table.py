"""Messages as rows of a pack: its columns, made from the columns of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq.core import envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.holding.columns import Columns, Numbers

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("pid", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("importance", pa.int32()),
        pa.field("enqueued_at", pa.timestamp("ms", tz="UTC")),
        pa.field("dead_at", pa.timestamp("ms", tz="UTC")),
        pa.field("decay_rate", pa.float64()),
        pa.field("type", pa.string()),
        pa.field("key", pa.string()),
        pa.field("producer_id", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("crc", pa.int64(), nullable=False),
        pa.field("envelope", pa.binary(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_POWERS: Final = np.array([16**digits for digits in range(1, 16)], np.uint64)
_NUMBERS: Final[dict[str, type[np.number[Any]]]] = {
    "importance": np.int32,
    "enqueued_at": np.int64,
    "dead_at": np.int64,
    "decay_rate": np.float64,
}


def table_of(columns: Columns) -> pa.Table:
    """Messages as rows, in the order of their keys."""
    ordered = columns.in_order()
    blocks, bodies = _split(ordered)
    made = {
        "id": _ids(ordered.pids, ordered.seqs),
        "pid": _plain("pid", ordered.pids, np.int64),
        "seq": _plain("seq", ordered.seqs, np.int64),
        "crc": _plain("crc", ordered.crcs, np.int64),
        "envelope": _binary(blocks, len(bodies)),
        "body": _binary(bodies, len(bodies)),
        **_properties(ordered),
        **_enveloped(blocks, len(bodies)),
    }
    return pa.table([made[name] for name in SCHEMA.names], schema=SCHEMA)


def _split(columns: Columns) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Headers blocks, none at all if all are empty, and bodies."""
    payloads, told = columns.payloads, columns.told
    if told is None or not told.headers_bytes.any():
        return [], payloads
    splits = told.headers_bytes.tolist()
    blocks = [payload[:split] for payload, split in zip(payloads, splits, strict=True)]
    return blocks, [payload[split:] for payload, split in zip(payloads, splits, strict=True)]


def _properties(columns: Columns) -> dict[str, pa.Array]:
    told, count = columns.told, len(columns.seqs)
    if told is None:
        return {name: pa.nulls(count, SCHEMA.field(name).type) for name in _NUMBERS}
    values = (told.importances, told.enqueued_at_ms, told.dead_at_ms, told.decay_rates)
    made = {
        name: _plain(name, column, kind)
        for (name, kind), column in zip(_NUMBERS.items(), values, strict=True)
    }
    if not told.dead_at_ms.all():
        made["dead_at"] = _plain("dead_at", told.dead_at_ms, np.int64, told.dead_at_ms != 0)
    return made


def _enveloped(blocks: Sequence[bytes], count: int) -> dict[str, pa.Array]:
    """What the headers blocks say, as columns of their own."""
    if not blocks:
        nothing = {
            name: pa.nulls(count, SCHEMA.field(name).type)
            for name in ("key", "producer_id", "headers")
        }
        kind = envelope.EMPTY.type.encode()
        ends = np.arange(count + 1, dtype=np.int32) * len(kind)
        return {"type": _text(ends, kind * count), **nothing}
    read = [_envelope(block) if block else envelope.EMPTY for block in blocks]
    columns: dict[str, list[Any]] = {
        "type": [each.type for each in read],
        "key": [each.key for each in read],
        "producer_id": [each.id for each in read],
        "headers": [None if each.headers is None else list(each.headers.items()) for each in read],
    }
    return {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}


def _envelope(block: bytes) -> envelope.Envelope:
    """What the columns show; a block that cannot be read is kept as it is and shows nothing."""
    try:
        return envelope.unpack(block)
    except msgspec.MsgspecError:
        return envelope.EMPTY


def _plain(
    name: str,
    column: npt.NDArray[Any],
    kind: type[np.number[Any]],
    valid: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Numbers as a column; null where they are not valid."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    values = pa.py_buffer(np.ascontiguousarray(column, kind))
    return pa.Array.from_buffers(SCHEMA.field(name).type, len(column), [bits, values])


def _binary(parts: Sequence[bytes], count: int) -> pa.Array:
    """Bytes as a column; empty ones if there are no parts."""
    ends = np.zeros(count + 1, np.int32)
    if parts:
        np.cumsum(np.fromiter(map(len, parts), np.int32, count), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _ids(pids: Numbers, seqs: Numbers) -> pa.Array:
    """`pid-seq`, both in hexadecimal, as people see a message's id."""
    parts, lengths = [], []
    # Of one partition, and with as many digits, the ids differ in their digits only.
    digits = np.searchsorted(_POWERS, seqs.astype(np.uint64), "right") + 1
    kinds = np.stack([pids.astype(np.int64), digits])
    starts = [0, *(np.flatnonzero((kinds[:, 1:] != kinds[:, :-1]).any(axis=0)) + 1).tolist()]
    for first, end in zip(starts, [*starts[1:], len(seqs)], strict=True):
        prefix = f"{int(pids[first]):x}-".encode()
        width = len(prefix) + int(digits[first])
        shifts = np.arange(4 * int(digits[first]) - 4, -1, -4, dtype=np.uint64)
        nibbles = seqs[first:end].astype(np.uint64)[:, None] >> shifts & np.uint64(15)
        made = np.empty((end - first, width), np.uint8)
        made[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        made[:, len(prefix) :] = _HEX[nibbles]
        parts.append(made.tobytes())
        lengths.append(np.full(end - first, width, np.int32))
    ends = np.zeros(len(seqs) + 1, np.int32)
    np.cumsum(np.concatenate(lengths), out=ends[1:])
    return _text(ends, b"".join(parts))


def _text(ends: npt.NDArray[np.int32], data: bytes) -> pa.Array:
    """Strings that stand one after the other as a column."""
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
