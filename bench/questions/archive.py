"""How fast does a backlog go to an archive, and come back from it?

The archive is an object store in a local directory, packs of Parquet. Messages of 1 KiB fade all at
once; one queue's go to the archive, another's to a file device. Both are dequeued after a restart,
so that nothing is in RAM, some from one and some from the other in turn.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from bench.clock import JumpingClock
from bench.holding import (
    file_device,
    is_quiet,
    object_device,
    open_holding,
    until_copied,
)
from bench.load import BATCH, DAY_MS, FILL_BATCH, HOUR_MS, KIB, fifo_messages
from bench.row import Row, at_least, stated
from bench.run import wait_until
from ebbmq import Broker, QueueSpec
from ebbmq.holding.contract import Copy, Key, Properties

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

ARCHIVED_PER_S: Final = 50_000
FROM_ARCHIVE_SHARE: Final = 0.6
PATIENCE_S: Final = 600.0
DEVICES: Final = {
    "log": {"tier": "fast"},
    "disk": file_device(tier="slow"),
    "objects": object_device(tier="archive"),
}
#: Copies in one put, as the device is given them when it is asked alone.
PUT_COPIES: Final = 18_432


def measure(run: Run) -> list[Row]:
    """The device alone, then the whole way there and back."""
    count = run.scale(1_000_000, 50_000)
    rows = [_device_alone(run, count)]
    clock, path = JumpingClock(), run.fresh("archive")
    with open_holding(path, {"devices": DEVICES, "upkeep_every_ms": 50}, clock) as broker:
        rows += _there(run, broker, clock, count)
    return rows + _back(run, path, clock, count)


def _device_alone(run: Run, count: int) -> Row:
    """What the object device takes, with nothing else to do."""
    with open_holding(run.fresh("device"), {"devices": DEVICES}) as broker:
        assert broker.engine.devices is not None
        port = broker.engine.devices.ports["objects"]
        store, body = secrets.token_bytes(16), bytes(KIB)
        told, crc = Properties("q", 5, 0), crc32c(body)
        # What is loaded with the first pack is not measured.
        port.put([Copy(Key(store, 2, 0), body, crc, told)]).result()
        took, done = 0.0, 0
        for size in run.steps("device alone", count, PUT_COPIES):
            copies = [Copy(Key(store, 1, done + n), body, crc, told) for n in range(size)]
            done += size
            started = time.perf_counter()
            port.put(copies).result()
            took += time.perf_counter() - started
    return stated(
        "object device alone, puts", count / took, "msg/s", body=KIB, copies_each=PUT_COPIES
    )


def _there(run: Run, broker: Broker, clock: JumpingClock, count: int) -> list[Row]:
    """Everything fades at once; then the same for what goes to the file device."""
    rates: dict[str, float] = {}
    sizes = {"archived": ("objects", count), "filed": ("disk", count // 5)}
    for name, (device, size) in sizes.items():
        broker.declare(_fading(name, "archive" if device == "objects" else "slow"))
        if device == "objects":
            broker.declare(_fading("uncached", "archive", cache_enabled=False))
            _fill(run, broker, "uncached", count // 5)
            size -= count // 5  # noqa: PLW2901  both queues go there
        _fill(run, broker, name, size)
        clock.jump(6 * DAY_MS)
        total = sizes[name][1]
        rates[name] = total / until_copied(run, broker, device, total, f"{name} {total:,}")
        assert wait_until(lambda: is_quiet(broker), PATIENCE_S)
    settings = {"messages": count, "body": KIB, "objects": "local directory"}
    return [
        at_least(
            "archived, log to objects", rates["archived"], "msg/s", ARCHIVED_PER_S, **settings
        ),
        stated("faded to a file device instead", rates["filed"], "msg/s", **settings),
    ]


def _fading(name: str, tier: str, *, cache_enabled: bool = True) -> QueueSpec:
    """A queue whose messages go to a tier when they are five days old."""
    return QueueSpec(
        name,
        score_per_day=10.0,
        score_medium=50.0,
        score_high=50.0,
        tiers=("fast", "fast", tier),
        cache_enabled=cache_enabled,
        lease_timeout_ms=HOUR_MS,
    )


def _fill(run: Run, broker: Broker, name: str, count: int) -> None:
    done = 0
    for size in run.steps(f"filling {count:,}", count, FILL_BATCH):
        broker.publish(name, fifo_messages(size, KIB, done), confirm="memory")
        done += size


def _back(run: Run, path: Path, clock: JumpingClock, count: int) -> list[Row]:
    """Dequeue some of each queue in turn."""
    rounds = 10
    each = count // 5 // rounds
    rates: dict[str, list[float]] = {"filed": [], "archived": [], "uncached": []}
    with open_holding(path, {"devices": DEVICES}, clock) as broker:
        for number in range(rounds):
            for name, into in rates.items():
                into.append(_dequeue(broker, name, each))
            run.progress("dequeuing", number + 1, rounds)
    filed, archived, uncached = (statistics.median(found) for found in rates.values())
    settings = {"messages": each * rounds, "body": KIB, "batch": BATCH, "ack": "written"}
    return [
        stated("dequeued from the file device", filed, "msg/s", **settings),
        at_least(
            "dequeued from the archive against the file device",
            archived / filed,
            "x",
            FROM_ARCHIVE_SHARE,
            **settings,
            per_s=round(archived),
        ),
        stated(
            "dequeued from the archive without pre-fetch against the file device",
            uncached / filed,
            "x",
            **settings,
            per_s=round(uncached),
        ),
    ]


def _dequeue(broker: Broker, name: str, count: int) -> float:
    started = time.perf_counter()
    done = 0
    while done < count:
        leases = broker.lease(name, min(BATCH, count - done), wait_ms=1_000)
        assert leases, f"{done} of {count} came from {name!r}"
        broker.ack(name, [lease.token for lease in leases], confirm="written")
        done += len(leases)
    return count / (time.perf_counter() - started)
