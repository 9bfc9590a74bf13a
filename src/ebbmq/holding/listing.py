"""What a device has of one store, as columns: a device that comes back may list millions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from typing_extensions import override

from ebbmq.holding.contract import Key, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.holding.columns import Numbers


class Listed(NamedTuple):
    """Copies of one partition that a device has."""

    pid: int
    seqs: Numbers
    payload_bytes: Numbers
    crcs: Numbers


class Listing(Sequence[Stored]):
    """Everything a device has of one store."""

    __slots__ = ("parts", "store")

    def __init__(self, store: bytes, parts: Sequence[Listed]) -> None:
        self.store = store
        self.parts = parts

    @override
    def __len__(self) -> int:
        return sum(len(part.seqs) for part in self.parts)

    @override
    def __iter__(self) -> Iterator[Stored]:
        for pid, *columns in self.parts:
            for seq, size, crc in zip(*(column.tolist() for column in columns), strict=True):
                yield Stored(Key(self.store, pid, seq), size, crc)

    @overload
    def __getitem__(self, number: int) -> Stored: ...
    @overload
    def __getitem__(self, number: slice) -> list[Stored]: ...
    @override
    def __getitem__(self, number: int | slice) -> Stored | list[Stored]:
        return list(self)[number]
