"""What is known of stored messages when placement is asked about them: row, headers, copies, pin.

Everything here is called with the engine's lock held, unless it says otherwise.
"""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ebbmq.core.copies import name_of, parts_of, seqs_of
from ebbmq.core.row import AT_FLAGS, ELSEWHERE, FREE, HELD, HIGH, IN_DOUBT, ROW
from ebbmq.errors import DamagedRecord
from ebbmq.node.keeping import likeness, reading
from ebbmq.node.keeping.placing import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ebbmq.core.copies import Name
    from ebbmq.core.partition import Row
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

NOTHING_FETCHED: Final[Mapping[Name, bytes]] = MappingProxyType({})


class Known:
    """Looks messages up by their names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def row_of(self, name: Name) -> tuple[Shard, int, tuple[int, ...]] | None:
        """The partition, number and row of a message; None if it is gone, or in doubt."""
        pid, seq = parts_of(name)
        shard = self._engine.catalog.shards.get(pid)
        if shard is None or shard.faulty is not None:
            return None
        found = shard.partition.index.locate(seq)
        if found is None or not FREE < found[0].buffer[found[1]] < IN_DOUBT:
            return None
        return shard, seq, ROW.unpack_from(found[0].buffer, found[1])

    def mark(self, name: Name) -> None:
        """Have a row say that there is more to know of its body."""
        known = self.row_of(name)
        if known is not None:
            found = known[0].partition.index.locate(known[1])
            assert found is not None
            found[0].buffer[found[1] + AT_FLAGS] |= HELD
            found[0].dirty = True

    def stored(self, shard: Shard, seq: int, row: Row, fetched: bytes | None = None) -> Stored:
        """A message as placement is asked about it; without headers where they are not at hand."""
        size = row[7] >> HIGH
        headers: bytes | None = b""
        if size:
            payload = fetched or shard.resident.get(seq, row[2])
            headers = None if payload is None else payload[:size]
            if headers is None and not row[1] & ELSEWHERE:
                with contextlib.suppress(DamagedRecord):
                    headers = self._engine.journal.read(row[9], row[10], size)
        name = name_of(shard.partition.pid, seq)
        advice = self._engine.pins.of(name)
        pin = None if advice is None else advice.pin
        access = shard.partition.accesses.of(seq)
        return Stored(row, headers, self._engine.holdings.of(name), access, None, pin)

    def fetch_headers_of(self, names: Sequence[Name]) -> dict[Name, bytes]:
        """`fetch_headers` for messages of any partitions (the lock is free)."""
        found: dict[Name, bytes] = {}
        for pid, seqs in seqs_of(names).items():
            with self._engine.lock:
                shard = self._engine.catalog.shards.get(pid)
                is_usable = shard is not None and shard.faulty is None
            if shard is not None and is_usable:
                fetched = self.fetch_headers(shard, seqs)
                found.update((name_of(pid, seq), body) for seq, body in fetched.items())
        return found

    def fetch_headers(self, shard: Shard, seqs: Sequence[int]) -> dict[int, bytes]:
        """Payloads of those messages whose headers only a device has (the lock is free)."""
        with self._engine.lock:
            read, resident = shard.partition.index.read, shard.resident
            away = [
                seq
                for seq in likeness.away_with_headers(shard, seqs)
                if (row := read(seq)) and resident.get(seq, row[2]) is None
            ]
        bodies = reading.read(self._engine, shard, away) if away else []
        return {
            seq: body for seq, body in zip(away, bodies, strict=True) if isinstance(body, bytes)
        }
