"""A device in a SQL database: SQLite in a file of its own, or PostgreSQL.

Theory of operation. One table has a row per copy; a second one has a row per store with what that
store's copies take, changed in the same transaction, so that nobody ever counts rows to know the
space. Others change theirs, so it is asked for with each probe, and by who would put more than a
part of the room that was found. A store has one broker, so nobody else changes its rows between two
calls. The database is opened by the first call that needs it and again after a failure: a server
that is away when the broker starts, or goes away later, is a device that fails and comes back,
nothing more.

Keys carry the store's uuid (ADR 0016): brokers that share a database never meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import crc32c

from ebbmq import limits
from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack, Probe, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: What a copy takes beside its payload: a row, its key, and the index over it.
COPY_OVERHEAD_BYTES: Final = 128


class Database(Protocol):
    """The statements a SQL device needs; each is one transaction and durable once it returns.

    Every method opens the database if it is not, and raises `StorageFailed` when that or the
    statement fails; the next call then starts from a fresh connection.
    """

    @property
    def where(self) -> str:
        """The database in words, without secrets."""
        ...

    def put(self, copies: Sequence[Copy]) -> int:
        """Insert or replace; give back by how many bytes the use of the database changed.

        Raises:
            DeviceFull: the disk of the database is full; nothing was kept.
        """
        ...

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[int, bytes]]:
        """Checksum and payload of each key that is there."""
        ...

    def sizes(self, keys: Sequence[Key]) -> int:
        """What the copies of these keys take, overhead included."""
        ...

    def delete(self, keys: Sequence[Key]) -> int:
        """Delete; give back by how many bytes the use of the database changed."""
        ...

    def scan(self, store: bytes) -> list[Stored]:
        """Every copy of a store, payloads not read."""
        ...

    def used_bytes(self) -> int:
        """What all copies take, of whatever store."""
        ...

    def touch(self) -> None:
        """Write something small as durably as a put."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class SqlDevice:
    """Copies in a SQL database; `capacity_bytes` of its spec bounds what all stores have in it."""

    def __init__(self, spec: DeviceSpec, database: Database, clock: Callable[[], float]) -> None:
        """Describe the device; the database is opened by the first call.

        Args:
            spec: what this device is.
            database: where the rows are.
            clock: seconds that never go back, for the latency of a probe.
        """
        self._spec = spec
        self._database = database
        self._clock = clock
        self._closed = False
        self._used_bytes: int | None = None
        #: Up to here puts go by what was asked last.
        self._good_for_bytes = 0

    @property
    def spec(self) -> DeviceSpec:
        """What this device is."""
        return self._spec

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Keep the copies, all in one transaction."""
        self._check()
        latest = list({copy.key: copy for copy in copies}.values())
        if not latest:
            return
        growth = sum(len(copy.payload) + COPY_OVERHEAD_BYTES for copy in latest)
        used = self._used()
        if used + growth > self._good_for_bytes:
            used = self._count()
        if used + growth > self._spec.capacity_bytes:
            growth -= self._database.sizes([copy.key for copy in latest])
            if used + growth > self._spec.capacity_bytes:
                raise DeviceFull(
                    f"device {self._spec.name!r} ({self._database.where}) holds {used} of "
                    f"{self._spec.capacity_bytes} bytes, {growth} more do not fit",
                    "choose another device, or raise its capacity_bytes",
                )
        self._used_bytes = used + self._database.put(latest)

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The bodies in the order of the keys, each checked against its checksum."""
        self._check()
        if not keys:
            return []
        found = self._database.get(keys)
        return [_checked(found.get(key)) for key in keys]

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Forget the copies, all in one transaction."""
        self._check()
        if keys:
            used = self._used()
            self._used_bytes = used + self._database.delete(list(set(keys)))

    def scan(self, store: bytes) -> Iterator[Stored]:
        """Every copy of that store as of the call."""
        self._check()
        return iter(self._database.scan(store))

    def probe(self) -> Probe:
        """Write a small row durably, and count anew what is used."""
        failure = "closed" if self._closed else None
        started = self._clock()
        if failure is None:
            try:
                self._database.touch()
                self._count()
            except (StorageFailed, DeviceFull) as error:
                failure = error.detail
        return Probe(
            ok=failure is None,
            used_bytes=self._used_bytes or 0,
            capacity_bytes=self._spec.capacity_bytes,
            latency_ms=(self._clock() - started) * 1_000,
            detail=failure or "",
        )

    def close(self) -> None:
        """Let go of the connection; the copies stay."""
        self._closed = True
        self._database.close()

    def _used(self) -> int:
        return self._count() if self._used_bytes is None else self._used_bytes

    def _count(self) -> int:
        self._used_bytes = used = self._database.used_bytes()
        room = max(0, self._spec.capacity_bytes - used)
        self._good_for_bytes = used + room // limits.SHARED_ROOM_PARTS
        return used

    def _check(self) -> None:
        if self._closed:
            raise StorageFailed(f"device {self._spec.name!r} is closed", "open it again")


def _checked(found: tuple[int, bytes] | None) -> bytes | Lack:
    if found is None:
        return Lack.MISSING
    crc, payload = found
    return payload if crc32c.crc32c(payload) == crc else Lack.DAMAGED
