"""Names of leases: what was leased together, so that an answer can be asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.core.row import LEASED

if TYPE_CHECKING:
    from ebbmq.core.partition import Partition

    #: By name, in the order they were granted: message number and generation of the lease.
    Names = dict[str, list[tuple[int, int]]]

#: Names of leases that are over and not yet forgotten, at least.
_SPARED: Final = 64
_decoder: Final = msgspec.msgpack.Decoder(dict[str, list[tuple[int, int]]])


def note(partition: Partition, name: str, held: list[tuple[int, int]]) -> None:
    """Remember what was leased under a name."""
    if len(partition.names) >= 2 * partition.names_in_use + _SPARED:
        _forget(partition)
    partition.names[name] = held


def _forget(partition: Partition) -> None:
    """Drop names of which no lease is held; seldom enough to cost nothing a name."""
    partition.names = in_use(partition)
    partition.names_in_use = len(partition.names)


def in_use(partition: Partition) -> Names:
    """The names of which a lease is held."""
    index = partition.index
    return {
        name: held
        for name, held in partition.names.items()
        if any(
            (row := index.read(seq)) is not None and row[0] == LEASED and row[13] == generation
            for seq, generation in held
        )
    }


def pack(names: Names) -> bytes:
    """Names as a checkpoint keeps them."""
    return msgspec.msgpack.encode(names)


def unpack(payload: bytes) -> Names:
    """What `pack` made."""
    return _decoder.decode(payload)
