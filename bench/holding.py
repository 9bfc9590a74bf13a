"""Devices to measure with, and waiting until copies are where they should be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from bench.load import KIB
from ebbmq import Broker
from ebbmq.core.copies import LOG

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

GIB: Final = KIB**3
ROOM: Final = 16 * GIB
#: Moving is measured, not its limit.
UNBOUNDED: Final = {"move_bytes_per_s": 1 << 40}


def file_device(**settings: Any) -> dict[str, Any]:
    """A file device in the data directory, on the disk of the log."""
    return {"kind": "file", "capacity_bytes": ROOM, **settings}


def object_device(**settings: Any) -> dict[str, Any]:
    """An object store in a directory of the data directory."""
    return {"kind": "object", "directory": "objects", "capacity_bytes": ROOM, **settings}


def copies(broker: Broker, device: str) -> int:
    """How many messages have a confirmed copy on a device, without those only in the log."""
    with broker.engine.lock:
        return broker.engine.holdings.counts(device)[0]


def is_quiet(broker: Broker) -> bool:
    """Whether nothing is on its way: no copy to be made, let go or deleted."""
    engine = broker.engine
    with engine.lock:
        names = (LOG, *(engine.devices.ports if engine.devices is not None else ()))
        mover = engine.keeping.mover
        waiting = mover.waiting().values() if mover is not None else ()
        return not any(engine.holdings.counts(name)[1] for name in names) and not any(
            deletes or puts for puts, deletes in waiting
        )


def until_copied(run: Run, broker: Broker, device: str, count: int, label: str) -> float:
    """Wait until a device has so many copies; the seconds it took."""
    started = time.perf_counter()
    deadline = time.monotonic() + 600
    while (done := copies(broker, device)) < count:
        run.progress(label, done, count)
        assert time.monotonic() < deadline, f"{done} of {count} copies on {device!r}"
        time.sleep(0.02)
    return time.perf_counter() - started


def open_holding(path: Path, config: dict[str, Any], clock: Any = None) -> Broker:
    """A broker with devices, and no limit to how fast it moves messages."""
    return Broker.open(path, {"placement": UNBOUNDED, **config}, clock)
