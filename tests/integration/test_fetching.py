"""An event loop reads bodies that are not in RAM itself where it need not wait for a device."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from ebbmq import AsyncBroker, Broker, Message, QueueSpec

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 4_000


def fill(directory: Path, spec: QueueSpec) -> list[bytes]:
    """Messages whose bodies are on disk only once the directory is opened again."""
    bodies = [b"%d " % number + bytes(number % 700) for number in range(COUNT)]
    with Broker.open(directory) as broker:
        broker.declare(spec)
        for start in range(0, COUNT, 250):
            part = [
                Message(body, importance=1 + number % 3, decay_rate=0.5 if spec.decay_rate else 0)
                for number, body in enumerate(bodies[start : start + 250])
            ]
            broker.publish(spec.name, part, confirm="written")
    return bodies


async def drained(directory: Path) -> list[bytes]:
    async with await AsyncBroker.open(directory) as broker:
        found: list[bytes] = []
        while leases := await broker.lease("q", 100):
            found += [lease.body for lease in leases]
            await broker.ack("q", [lease.token for lease in leases])
    return sorted(found)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_every_body_on_disk_is_delivered_as_it_was_published(tmp_path: Path, rate: float) -> None:
    bodies = fill(tmp_path, QueueSpec("q", decay_rate=rate))
    assert asyncio.run(drained(tmp_path)) == sorted(bodies)


def test_what_the_kernel_forgot_is_read_from_the_device(tmp_path: Path) -> None:
    bodies = fill(tmp_path, QueueSpec("q"))
    for path in tmp_path.rglob("*.seg"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert asyncio.run(drained(tmp_path)) == sorted(bodies)


def test_a_body_that_changed_on_disk_is_not_delivered(tmp_path: Path) -> None:
    bodies = fill(tmp_path, QueueSpec("q"))
    damaged = bodies[1_234]
    for path in tmp_path.rglob("*.seg"):
        data = path.read_bytes()
        at = data.find(damaged)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(damaged) // 2)
                file.write(b"!")
    assert asyncio.run(drained(tmp_path)) == sorted(body for body in bodies if body != damaged)
