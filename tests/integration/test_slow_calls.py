"""Calls that take long can be given up, and refuse what cannot work before they begin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ebbmq import AsyncBroker, Broker, InvalidSpec, Message, QueueSpec

if TYPE_CHECKING:
    from pathlib import Path


async def dead_letters(broker: AsyncBroker, count: int) -> None:
    await broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
    await broker.publish("work", [Message(b"%d" % number) for number in range(count)])
    leases = await broker.lease("work", count)
    await broker.retry("work", [lease.token for lease in leases])
    while (await broker.stats("dead"))["depth"]["ready"] < count:
        await asyncio.sleep(0.001)


def test_a_cancelled_redrive_moves_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with await AsyncBroker.open(tmp_path) as broker:
            await dead_letters(broker, 5)
            moving = asyncio.create_task(broker.redrive("dead", rate=0.001))
            while (await broker.stats("dead"))["depth"]["ready"] == 5:
                await asyncio.sleep(0.001)
            moving.cancel()
            await asyncio.wait([moving])
        # Closing waits for the thread that moves: it must not wait 1000 seconds for the next.

    asyncio.run(asyncio.wait_for(story(), 30))
    with Broker.open(tmp_path) as broker:
        assert broker.stats("dead")["depth"]["ready"] == 4
        assert broker.stats("work")["depth"]["ready"] == 1


def test_a_slow_redrive_ends_with_its_broker(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await AsyncBroker.open(tmp_path)
        await dead_letters(broker, 3)
        moving = asyncio.create_task(broker.redrive("dead", rate=0.001))
        while (await broker.stats("dead"))["depth"]["ready"] == 3:
            await asyncio.sleep(0.001)
        await broker.close()
        await asyncio.wait([moving])
        assert moving.exception() is not None

    asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize("target", ["data/backup", "data", "file", "no\0name", "file/below"])
def test_a_backup_is_refused_where_it_cannot_be(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("something else")
    with Broker.open(tmp_path / "data") as broker, pytest.raises(InvalidSpec):
        broker.backup(f"{tmp_path}/{target}")
