"""Tokens of leases: which lease of which row of which partition, as text that says nothing."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from ebbmq.speedups import twin

TOKEN: Final = struct.Struct(">IQIII")
TOKEN_DTYPE: Final = np.dtype(
    [("pid", ">u4"), ("seq", ">u8"), ("generation", ">u4"), ("epoch", ">u4"), ("nonce", ">u4")]
)
assert TOKEN.size == TOKEN_DTYPE.itemsize
TOKEN_CHARS: Final = 2 * TOKEN.size
_SIZES: Final = {TOKEN_CHARS}
#: pid, seq, generation, epoch, nonce.
Token = tuple[int, int, int, int, int]


@twin
def spell_token(pid: int, seq: int, generation: int, epoch: int, nonce: int) -> str:
    """A token as text."""
    return TOKEN.pack(pid, seq, generation, epoch, nonce).hex()


@twin
def read_token(token: str) -> Token | None:
    """What a text says; None if it is not of the form of a token."""
    if len(token) != TOKEN_CHARS:
        return None
    try:
        return TOKEN.unpack(bytes.fromhex(token))
    except (ValueError, struct.error):
        return None


@twin
def pack_tokens(tokens: list[str]) -> bytes | None:
    """Tokens as bytes, one after the other; None if any of them is not of the form of a token."""
    if set(map(len, tokens)) != _SIZES:
        return None
    try:
        packed = bytes.fromhex("".join(tokens))
    except ValueError:
        return None
    return packed if len(packed) == len(tokens) * TOKEN.size else None
