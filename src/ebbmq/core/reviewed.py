"""What a checkpoint keeps of messages that have an instant of their own to be looked at.

Cursors have passed them, so that without it nobody would look at them again; and a message that was
read must not be taken for one that nobody reads.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from ebbmq.policy.decay import Access


class Reviewed(NamedTuple):
    """Of a partition."""

    #: When, and which message.
    singles: list[tuple[int, int]]
    #: By message: how often it was read, and as of when.
    rates: dict[int, Access]


_decoder: Final = msgspec.msgpack.Decoder(
    tuple[list[tuple[int, int]], dict[int, tuple[float, int]]]
)


def pack(reviewed: Reviewed) -> bytes:
    """What a checkpoint keeps."""
    return msgspec.msgpack.encode(reviewed)


def unpack(payload: bytes) -> Reviewed:
    """What `pack` made."""
    singles, rates = _decoder.decode(payload)
    return Reviewed(singles, {seq: Access(*access) for seq, access in rates.items()})
