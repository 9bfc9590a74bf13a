"""A device in this process's RAM: fast, bounded, and gone with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import crc32c

from ebbmq.errors import StorageFailed
from ebbmq.holding import ram
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack, Probe, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Key, copy, their tuples and the dict's entry, as measured by what a process grows.
COPY_OVERHEAD_BYTES: Final = 320


class MemoryDevice:
    """Copies in a dict; `capacity_bytes` of its spec bounds them, overhead included."""

    def __init__(self, spec: DeviceSpec, clock: Callable[[], float]) -> None:
        """Start empty; `clock` gives seconds that never go back, for the latency of a probe."""
        assert not spec.durable
        self._spec = spec
        self._clock = clock
        self._copies: dict[Key, Copy] | None = {}
        self._used_bytes = 0

    @property
    def spec(self) -> DeviceSpec:
        """What this device is."""
        return self._spec

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Keep the copies until deleted or closed."""
        kept = self._open()
        latest = {copy.key: copy for copy in copies}
        growth = sum(_cost(copy) for copy in latest.values())
        growth -= sum(_cost(kept[key]) for key in latest if key in kept)
        if self._used_bytes + growth > self._spec.capacity_bytes:
            raise DeviceFull(
                f"device {self._spec.name!r} holds {self._used_bytes} of "
                f"{self._spec.capacity_bytes} bytes, {growth} more do not fit",
                "choose another device, or raise its capacity_bytes",
            )
        kept.update(latest)
        self._used_bytes += growth

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The bodies in the order of the keys, each checked against its checksum."""
        kept = self._open()
        return [_checked(kept.get(key)) for key in keys]

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Forget the copies; absent keys are fine."""
        kept = self._open()
        for key in keys:
            copy = kept.pop(key, None)
            if copy is not None:
                self._used_bytes -= _cost(copy)

    def scan(self, store: bytes) -> Iterator[Stored]:
        """Every copy of that store as of the call."""
        kept = self._open()
        return iter(
            [
                Stored(key, len(copy.payload), copy.crc)
                for key, copy in kept.items()
                if key.store == store
            ]
        )

    def probe(self) -> Probe:
        """What is used, and how much the machine has left; a closed device is not ok."""
        started = self._clock()
        is_open = self._copies is not None
        latency_ms = (self._clock() - started) * 1_000
        return Probe(
            ok=is_open,
            used_bytes=self._used_bytes,
            capacity_bytes=min(self._spec.capacity_bytes, self._used_bytes + ram.available_bytes()),
            latency_ms=latency_ms,
            detail="" if is_open else "closed",
        )

    def close(self) -> None:
        """Let go of everything."""
        self._copies = None
        self._used_bytes = 0

    def _open(self) -> dict[Key, Copy]:
        if self._copies is None:
            raise StorageFailed(f"device {self._spec.name!r} is closed", "open it again")
        return self._copies


def _cost(copy: Copy) -> int:
    return len(copy.payload) + COPY_OVERHEAD_BYTES


def _checked(copy: Copy | None) -> bytes | Lack:
    if copy is None:
        return Lack.MISSING
    return copy.payload if crc32c.crc32c(copy.payload) == copy.crc else Lack.DAMAGED
