"""A consume loop over an empty queue waits, also when it is asked not to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ebbmq import (
    AsyncBroker,
    AsyncClient,
    Broker,
    Client,
    InvalidMessage,
    Message,
    QueueSpec,
    limits,
)
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq.model import Lease


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Running(tmp_path / "server") as server:
        yield server.url


class Heard:
    """What a loop waited for at a time; at the second look at an empty queue something is there."""

    waits: ClassVar[list[int]]

    def hear(self, wait_ms: int) -> bool:
        self.waits.append(wait_ms)
        return len(self.waits) == 2


class HeardBroker(Heard, Broker):
    def lease(self, queue: str, count: int = 1, wait_ms: int = 0, *more: Any) -> list[Lease]:
        if self.hear(wait_ms):
            self.publish(queue, Message(b"at last"))
        return super().lease(queue, count, wait_ms, *more)


class HeardClient(Heard, Client):
    def lease(self, queue: str, count: int = 1, wait_ms: int = 0, *more: Any) -> list[Lease]:
        if self.hear(wait_ms):
            self.publish(queue, Message(b"at last"))
        return super().lease(queue, count, wait_ms, *more)


class HeardAsyncBroker(Heard, AsyncBroker):
    async def lease(self, queue: str, count: int = 1, wait_ms: int = 0, *more: Any) -> list[Lease]:
        if self.hear(wait_ms):
            await self.publish(queue, Message(b"at last"))
        return await super().lease(queue, count, wait_ms, *more)


class HeardAsyncClient(Heard, AsyncClient):
    async def lease(self, queue: str, count: int = 1, wait_ms: int = 0, *more: Any) -> list[Lease]:
        if self.hear(wait_ms):
            await self.publish(queue, Message(b"at last"))
        return await super().lease(queue, count, wait_ms, *more)


@pytest.fixture(autouse=True)
def waits() -> list[int]:
    Heard.waits = []
    return Heard.waits


def listen(broker: Broker | Client) -> None:
    broker.declare(QueueSpec("q"))
    for lease in broker.consume("q", wait_ms=0):
        assert lease.body == b"at last"
        break
    with pytest.raises(InvalidMessage):
        next(iter(broker.consume("q", wait_ms="long")))  # type: ignore[arg-type]


async def listen_async(broker: AsyncBroker | AsyncClient) -> None:
    await broker.declare(QueueSpec("q"))
    async for lease in broker.consume("q", wait_ms=0):
        assert lease.body == b"at last"
        break
    with pytest.raises(InvalidMessage):
        await anext(aiter(broker.consume("q", wait_ms="long")))  # type: ignore[arg-type]


def test_a_loop_in_the_process_does_not_spin(tmp_path: Path, waits: list[int]) -> None:
    with HeardBroker.open(tmp_path) as broker:
        listen(broker)
    assert waits == [limits.CONSUME_WAIT_MS_MIN] * 2


def test_a_loop_of_a_client_does_not_spin(url: str, waits: list[int]) -> None:
    with HeardClient(url) as client:
        listen(client)
    assert waits == [limits.CONSUME_WAIT_MS_MIN] * 2


def test_an_awaited_loop_does_not_spin(tmp_path: Path, waits: list[int]) -> None:
    async def story() -> None:
        async with await HeardAsyncBroker.open(tmp_path) as broker:
            await listen_async(broker)

    asyncio.run(story())
    assert waits == [limits.CONSUME_WAIT_MS_MIN] * 2


def test_an_awaited_loop_of_a_client_does_not_spin(url: str, waits: list[int]) -> None:
    async def story() -> None:
        async with HeardAsyncClient(url) as client:
            await listen_async(client)

    asyncio.run(story())
    assert waits == [limits.CONSUME_WAIT_MS_MIN] * 2


def test_a_loop_that_stops_when_empty_waits_as_long_as_it_is_told(
    tmp_path: Path, waits: list[int]
) -> None:
    with HeardBroker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        assert list(broker.consume("q", wait_ms=0, stop_when_empty=True)) == []
    assert waits == [0]
