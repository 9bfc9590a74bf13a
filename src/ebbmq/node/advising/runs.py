"""The runs whose advice a node has seen: a fact each, so that none is taken for new again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.feed.advice import Applied

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(list[Applied]).decode


class Runs:
    """What became of the last runs, oldest first."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Applied] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Applied]:
        return iter(list(self._runs.values()))

    def get(self, table: str, run: str) -> Applied | None:
        """What became of a run."""
        return self._runs.get((table, run))

    def whole(self) -> bytes:
        """All of them, for a checkpoint; empty without any."""
        return _ENCODE(list(self._runs.values())) if self._runs else b""

    def fact(self) -> fact.Fact:
        """All of them, to be said again."""
        return fact_of(list(self._runs.values()))

    def restore(self, payload: bytes | memoryview) -> None:
        """Make a fact true."""
        for each in _DECODE(payload):
            self.put(each)

    def put(self, told: Applied) -> None:
        """Remember a run, of which the fact was appended."""
        self._runs.pop((told.table, told.run), None)
        self._runs[told.table, told.run] = told
        while len(self._runs) > limits.RUNS_KEPT_MAX:
            del self._runs[next(iter(self._runs))]


def fact_of(told: list[Applied]) -> fact.Fact:
    """Runs, to be appended."""
    return fact.Fact(fact.ADVISED, 0, 0, 0, [_ENCODE(told)])
