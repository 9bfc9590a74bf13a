"""What do concurrent publishers gain from one flush for all? One message per call, `synced`."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from typing import TYPE_CHECKING, Final

from bench.load import KIB, QUEUE, fifo_messages, fifo_spec, open_with
from bench.row import Row, at_least, stated
from ebbmq import AsyncBroker, Broker, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.run import Run

TASKS: Final = 64
THREADS: Final = 8


def measure(run: Run) -> list[Row]:
    """Messages per second of one, 64 tasks and 8 threads, each waiting for its own flush."""
    count = run.scale(400, 100)
    repeats = run.scale(5, 2)
    messages = fifo_messages(count * 8, KIB)
    ways: dict[str, Callable[[Path], float]] = {
        "one": lambda path: _one(path, messages[:count]),
        "tasks": lambda path: asyncio.run(_tasks(path, messages)),
        "threads": lambda path: _threads(path, messages[: count * 4]),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name, way in ways.items():
            rates[name].append(way(run.fresh(name)))
        run.progress("rounds", repeat + 1, repeats)
    one, tasks, threads = (statistics.median(rates[name]) for name in ways)
    settings = {"confirm": "synced", "body": KIB}
    return [
        stated("publish synced, one publisher", one, "msg/s", **settings),
        stated(f"publish synced, {TASKS} tasks", tasks, "msg/s", **settings),
        stated(f"publish synced, {THREADS} threads", threads, "msg/s", **settings),
        at_least(f"{TASKS} publishers against one", tasks / one, "x", 10, **settings),
        at_least(f"{THREADS} threads against one", threads / one, "x", 4, **settings),
    ]


def _one(path: Path, messages: list[Message]) -> float:
    with open_with(path, fifo_spec()) as broker:
        started = time.perf_counter()
        _publish_each(broker, messages)
        return len(messages) / (time.perf_counter() - started)


def _publish_each(broker: Broker, messages: list[Message]) -> None:
    for message in messages:
        broker.publish(QUEUE, [message], confirm="synced")


async def _tasks(path: Path, messages: list[Message]) -> float:
    async with await AsyncBroker.open(path) as broker:
        await broker.declare(fifo_spec())

        async def publish_each(share: list[Message]) -> None:
            for message in share:
                await broker.publish(QUEUE, [message], confirm="synced")

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(TASKS):
                group.create_task(publish_each(messages[number::TASKS]))
        return len(messages) / (time.perf_counter() - started)


def _threads(path: Path, messages: list[Message]) -> float:
    with open_with(path, fifo_spec()) as broker:
        threads = [
            threading.Thread(target=_publish_each, args=(broker, messages[number::THREADS]))
            for number in range(THREADS)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(messages) / (time.perf_counter() - started)
