"""Which devices an operator has given up, and until when: `evicted.json` of the data directory.

A device that was lost is taken back by itself when it answers; one that was evicted by force, only
when it is admitted (ADR 0031).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import msgspec

from ebbmq.errors import StorageFailed
from ebbmq.node.directory import write_durably

if TYPE_CHECKING:
    from pathlib import Path

Until = Literal["return", "admit"]


class Eviction(msgspec.Struct, frozen=True):
    """When a device was given up, and what takes it back."""

    at_ms: int
    until: Until


class Evictions:
    """The devices that are given up; read once, as nobody else writes them."""

    def __init__(self, data: Path) -> None:
        self._path = data / "evicted.json"
        #: Guards what is evicted from when it is read until it is written.
        self._lock = threading.Lock()
        try:
            self._evicted = msgspec.json.decode(
                self._path.read_bytes(), type=dict[str, Eviction], strict=True
            )
        except FileNotFoundError:
            self._evicted = {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageFailed(
                f"{self._path} cannot be read: {error}",
                "delete it, and evict again what should not be used",
            ) from error

    def of(self, name: str) -> Eviction | None:
        """The eviction of a device that is given up."""
        return self._evicted.get(name)

    def note(self, name: str, eviction: Eviction) -> None:
        """A device is given up."""
        with self._lock:
            self._write({**self._evicted, name: eviction})

    def forget(self, name: str) -> Eviction | None:
        """A device is taken back; None if it was not given up."""
        with self._lock:
            found = self._evicted.get(name)
            if found is not None:
                self._write({key: each for key, each in self._evicted.items() if key != name})
        return found

    def _write(self, evicted: dict[str, Eviction]) -> None:
        write_durably(self._path, msgspec.json.encode(evicted))
        self._evicted = evicted
