"""Waiting for messages without a thread: nothing is lost to who went away, nobody sleeps on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ebbmq import AsyncBroker, Broker, LeaseLost, Message, QueueSpec
from ebbmq.journal.disk import MemoryDisk, MemoryFile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sized
    from pathlib import Path


class WaitingFile(MemoryFile):
    """Whatever it holds, the device is to be waited for."""

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        return None


class WaitingDisk(MemoryDisk):
    def open(self, name: str) -> WaitingFile:
        return WaitingFile(self, self._content(name))


def run(
    tmp_path: Path,
    story: Callable[[AsyncBroker, Sized], Awaitable[None]],
    disk: MemoryDisk | None = None,
) -> None:
    async def told() -> None:
        inner = Broker.open(tmp_path / "data", disk=disk)
        async with AsyncBroker(inner) as broker:
            await broker.declare(QueueSpec("q"))
            polls = inner.engine.catalog.queue("q").waiters
            await asyncio.wait_for(story(broker, polls), 30)

    asyncio.run(told())


async def until_waiting(polls: Sized, count: int) -> None:
    while len(polls) != count:
        await asyncio.sleep(0)


def test_a_poll_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        for _ in range(3):
            assert await broker.lease("q", wait_ms=1) == []
        assert len(polls) == 0

    run(tmp_path, story)


def test_a_cancelled_poll_leases_nothing(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        poll = asyncio.create_task(broker.lease("q", wait_ms=60_000))
        await until_waiting(polls, 1)
        poll.cancel()
        await asyncio.wait([poll])
        assert len(polls) == 0
        await broker.publish("q", Message(b"x"))
        assert [lease.body for lease in await broker.lease("q")] == [b"x"]

    run(tmp_path, story)


def test_a_poll_cancelled_after_its_call_passes_it_on(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        first = asyncio.create_task(broker.lease("q", wait_ms=60_000))
        await until_waiting(polls, 1)
        second = asyncio.create_task(broker.lease("q", wait_ms=60_000))
        await until_waiting(polls, 2)
        publish = asyncio.create_task(broker.publish("q", Message(b"x"), "memory"))
        await until_waiting(polls, 1)
        first.cancel()
        assert [lease.body for lease in await second] == [b"x"]
        await publish

    run(tmp_path, story)


def test_a_message_wakes_one_poll_and_a_batch_wakes_more(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        tasks = [asyncio.create_task(broker.lease("q", wait_ms=60_000)) for _ in range(5)]
        await until_waiting(polls, 5)
        await broker.publish("q", Message(b"one"))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(polls) == 4
        await broker.publish("q", [Message(b"two")] * 4)
        await asyncio.gather(*tasks)

    run(tmp_path, story)


def test_a_lease_cancelled_while_its_bodies_are_read_is_given_back(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        await broker.declare(QueueSpec("q", cache_enabled=False, cache_bytes=0), change=True)
        await broker.publish("q", [Message(b"x" * 100)] * 10)
        lease = asyncio.create_task(broker.lease("q", 10))
        await asyncio.sleep(0)
        assert (await broker.stats("q"))["depth"]["leased"] == 10
        lease.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lease
        assert (await broker.stats("q"))["depth"]["ready"] == 10
        again = await broker.lease("q", 10)
        assert [one.failures for one in again] == [0] * 10

    run(tmp_path, story, WaitingDisk())


def test_a_lease_stays_below_a_number_of_bytes_and_leaves_the_rest_untouched(
    tmp_path: Path,
) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        await broker.publish("q", [Message(b"%d" % n * 1_000) for n in range(9)])
        first = await broker.lease("q", 9, bytes_max=3_500)
        assert [lease.body[:1] for lease in first] == [b"0", b"1", b"2"]
        assert [lease.body[:1] for lease in await broker.lease("q", 9, bytes_max=1)] == [b"3"]
        rest = await broker.lease("q", 9)
        assert [lease.body[:1] for lease in rest] == [b"4", b"5", b"6", b"7", b"8"]
        assert [lease.attempt for lease in rest] == [1] * 5
        assert len(await broker.peek("q", 9, state="leased", bytes_max=3_500)) == 3

    run(tmp_path, story)


def test_a_message_over_the_number_of_bytes_is_leased_alone(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        await broker.publish("q", Message(b"large"))
        assert len(await broker.lease("q", 9, bytes_max=1)) == 1

    run(tmp_path, story)


def test_a_named_lease_is_read_again_by_numbers_that_stay(tmp_path: Path) -> None:
    async def story(broker: AsyncBroker, polls: Sized) -> None:
        await broker.publish("q", [Message(b"%d" % n) for n in range(6)])
        held = await broker.lease("q", 5, name="mine")
        await broker.extend("q", [held[2].token], 90_000)
        await broker.ack("q", [held[1].token])
        again = await broker.read_lease("q", "mine")
        assert [lease.body for lease in again] == [b"0", b"2", b"3", b"4"]
        assert [lease.token for lease in again] == [held[n].token for n in (0, 2, 3, 4)]
        part = await broker.read_lease("q", "mine", 1, 4)
        assert [lease.body for lease in part] == [b"2", b"3"]
        assert await broker.read_lease("q", "theirs") == []
        assert (await broker.stats("q"))["depth"]["ready"] == 1
        with pytest.raises(LeaseLost):
            await broker.ack("q", [held[1].token])

    run(tmp_path, story)
