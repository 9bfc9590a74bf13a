"""The node's own log as a device among the others: what it takes, how fast its disk is.

Copies come into it and leave it by the journal, never through this: it can only be probed.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING, Final, NoReturn

from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Probe
from ebbmq.journal import faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ebbmq.holding.contract import Copy, DeviceSpec, Key, Lack, Stored

_PROBE: Final = bytes(512)
#: Of st_blocks, whatever the file system has.
_BLOCK_BYTES: Final = 512


class LogDevice:
    """Tells of the directory of the journal and its disk."""

    def __init__(self, spec: DeviceSpec, data: Path) -> None:
        self.spec: Final = spec
        self.where = str(data / "journal")
        self._journal = data / "journal"
        self._probe_file = data / "probe"

    def probe(self, *, write: bool = True) -> Probe:
        """Write and sync a sector beside the journal unless told not to, and tell the space."""
        started = perf_counter()
        failure, used, free = "", 0, 0
        try:
            if write:
                self._write()
            latency_ms = (perf_counter() - started) * 1_000
            used = sum(map(_stored_bytes, self._journal.iterdir()))
            stats = os.statvfs(self._journal)
            free = stats.f_bavail * stats.f_frsize
        except OSError as error:
            latency_ms = (perf_counter() - started) * 1_000
            failure = f"the disk of {self._journal} fails: {faults.reason(error)}"
        return Probe(
            ok=not failure,
            used_bytes=used,
            capacity_bytes=min(self.spec.capacity_bytes, used + free),
            latency_ms=latency_ms,
            detail=failure,
        )

    def _write(self) -> None:
        file = os.open(self._probe_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, _PROBE, 0)
            os.fdatasync(file)
        finally:
            os.close(file)

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Not here."""
        self._not_here()

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """Not here."""
        self._not_here()

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Not here."""
        self._not_here()

    def scan(self, store: bytes) -> Iterator[Stored]:
        """Not here."""
        self._not_here()

    def close(self) -> None:
        """Nothing is held."""

    def _not_here(self) -> NoReturn:
        raise StorageFailed(
            f"{self.spec.name!r} is the node's own log", "publish and ack go through the journal"
        )


def _stored_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return 0  # compaction was faster


class LogPlace:
    """Where the node's own log is."""

    kind = "log"
    reopens = False

    def __init__(self, spec: DeviceSpec, data: Path) -> None:
        self.spec = spec
        self.shown = str(data / "journal")
        self._data = data

    def open(self) -> LogDevice:
        """Nothing is opened but what a probe needs."""
        return LogDevice(self.spec, self._data)

    def release(self) -> None:
        """Nothing is held."""
