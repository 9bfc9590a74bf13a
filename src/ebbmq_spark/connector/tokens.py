"""Tokens of a batch in few bytes: an offset of Spark carries all of them.

A token is 24 bytes: partition u32, row u64, generation u32, boot u32, nonce u32, big endian. Those
of one batch differ in little but the row, and rows come in runs: each field is kept as its
differences to the one before, all of them compressed together.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_TOKEN: Final = np.dtype(
    [("pid", ">u4"), ("seq", ">u8"), ("generation", ">u4"), ("epoch", ">u4"), ("nonce", ">u4")]
)
_CHARS: Final = 2 * _TOKEN.itemsize
_FIELDS: Final = tuple(_TOKEN.names or ())


def pack(tokens: Sequence[str]) -> str:
    """Tokens as one text."""
    table = np.frombuffer(bytes.fromhex("".join(tokens)), dtype=_TOKEN)
    columns = [table[name].astype("<i8") for name in _FIELDS]
    deltas = [np.diff(column, prepend=np.int64(0)) for column in columns]
    raw = b"".join(delta.tobytes() for delta in deltas)
    return base64.b64encode(zlib.compress(raw, 1)).decode()


def unpack(packed: str) -> list[str]:
    """The tokens of a text that `pack` made."""
    raw = zlib.decompress(base64.b64decode(packed))
    deltas: npt.NDArray[np.int64] = np.frombuffer(raw, dtype="<i8").reshape(len(_FIELDS), -1)
    table = np.zeros(deltas.shape[1], dtype=_TOKEN)
    for name, delta in zip(_FIELDS, deltas, strict=True):
        table[name] = np.cumsum(delta)
    spelled = table.tobytes().hex()
    return [spelled[at : at + _CHARS] for at in range(0, len(spelled), _CHARS)]
