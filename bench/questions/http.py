"""What does the broker serve over HTTP, and what does serving cost in memory?"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from itertools import count as numbered
from typing import TYPE_CHECKING, Final

import msgspec

from bench.load import BATCH, FILL_BATCH, KIB, QUEUE, fifo_spec, open_with
from bench.row import Row, at_least, at_most, stated
from bench.run import MIB
from bench.serving import (
    Connection,
    device_flushes,
    embedded_rss_bytes,
    request,
    served,
)
from ebbmq import Broker, Message, QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from bench.run import Run
    from bench.serving import Served

CONNECTIONS: Final = 16
ROUNDS: Final = 3
MESSAGES: Final = f"/v1/queues/{QUEUE}/messages"
LEASES: Final = f"/v1/queues/{QUEUE}/leases"
ACKS: Final = f"/v1/queues/{QUEUE}/acks"
SERVER_MIB: Final = 40
BACKLOG_MIB: Final = 320
WAKE_MS: Final = 10
WAKE_RATE: Final = 10_000


class _Token(msgspec.Struct):
    token: str


class _Leases(msgspec.Struct):
    leases: list[_Token]


_leases = msgspec.json.Decoder(_Leases).decode


def measure(run: Run) -> list[Row]:
    """Messages per second by batch and level, memory, and how soon a waiting consumer is woken."""
    rows = _throughput(run)
    rows += asyncio.run(_wake_up(run))
    rows += _memory(run)
    return rows


def _publish(confirm: str, batch: int, message: dict[str, str]) -> bytes:
    return request("POST", MESSAGES, {"messages": [message] * batch, "confirm": confirm})


def _throughput(run: Run) -> list[Row]:
    kib = {"body_b64": msgspec.json.decode(msgspec.json.encode(b"x" * KIB))}
    text = {"text": "x" * 100}
    total = run.scale(200_000, 10_000)
    loads = (
        ("publish 100 x 1 KiB, written", _publish("written", BATCH, kib), BATCH, 4, 60_000),
        ("publish 100 x 100 B text, written", _publish("written", BATCH, text), BATCH, 4, 100_000),
        ("publish 100 x 1 KiB, synced", _publish("synced", BATCH, kib), BATCH, CONNECTIONS, 50_000),
        ("publish 1 x 1 KiB, synced", _publish("synced", 1, kib), 1, CONNECTIONS, 4_000),
    )
    rows: list[Row] = []
    for name, sent, batch, connections, bar in loads:
        messages = total if batch > 1 else total // 10
        rows.append(_load(run, name, bar, sent, (messages, batch, connections)))
    return rows + _settled(run, total // 2, _publish("written", BATCH, kib))


def _load(run: Run, name: str, bar: float, sent: bytes, size: tuple[int, int, int]) -> Row:
    messages, batch, connections = size
    rates, flushes = [], []
    for number in range(run.scale(ROUNDS, 1)):
        with _queue(run.fresh("http")) as server:
            before = device_flushes(run.directory)
            asked = messages // batch // connections
            seconds = asyncio.run(_repeat(server, connections, asked, sent))
            done = asked * connections * batch
            rates.append(done / seconds)
            flushes.append((device_flushes(run.directory) - before) / done * 1_000)
        run.progress(name, number + 1, ROUNDS)
    told = {
        "connections": connections,
        "messages": messages,
        "flushes_per_1000": round(statistics.median(flushes), 2),
    }
    return at_least(f"HTTP {name}", statistics.median(rates), "msg/s", bar, **told)


@contextlib.contextmanager
def _queue(directory: Path) -> Iterator[Served]:
    with open_with(directory, fifo_spec()):
        pass
    with served(directory) as server:
        yield server


async def _repeat(server: Served, connections: int, asked: int, sent: bytes) -> float:
    """Seconds for every connection to ask so often."""

    async def ask(connection: Connection) -> None:
        for _ in range(asked):
            await connection.ask(sent)

    return await _together(server, connections, ask)


async def _together(
    server: Served, connections: int, work: Callable[[Connection], Coroutine[None, None, None]]
) -> float:
    opened = [await Connection.open(server) for _ in range(connections)]
    began = time.perf_counter()
    await asyncio.gather(*map(work, opened))
    seconds = time.perf_counter() - began
    for connection in opened:
        await connection.close()
    return seconds


async def _settle(connection: Connection) -> None:
    """Lease and ack in batches until nothing is left."""
    lease = request("POST", LEASES, {"count": BATCH})
    while leased := _leases(await connection.ask(lease)).leases:
        tokens = [one.token for one in leased]
        await connection.ask(request("POST", ACKS, {"tokens": tokens}))


def _settled(run: Run, total: int, sent: bytes) -> list[Row]:
    """Lease and ack what was just published, and what was there before the server started."""
    connections = 4
    fresh, cold = [], []
    for number in range(run.scale(ROUNDS, 1)):
        directory = run.fresh("http")
        with _queue(directory) as server:
            asyncio.run(_repeat(server, connections, total // BATCH // connections, sent))
            fresh.append(total / asyncio.run(_together(server, connections, _settle)))
        with Broker.open(directory) as broker:
            _fill(broker, total)
        with served(directory) as server:
            cold.append(total / asyncio.run(_together(server, connections, _settle)))
        run.progress("lease + ack", number + 1, ROUNDS)
    told = {"connections": connections, "messages": total}
    name = "HTTP lease + ack of 100, 1 KiB"
    return [
        at_least(name, statistics.median(fresh), "msg/s", 50_000, **told),
        stated(f"{name}, bodies on disk only", statistics.median(cold), "msg/s", **told),
    ]


def _fill(broker: Broker, total: int) -> None:
    messages = [Message(b"x" * KIB)] * FILL_BATCH
    for _ in range(total // FILL_BATCH):
        broker.publish(QUEUE, messages, confirm="written")


async def _wake_up(run: Run) -> list[Row]:
    """From sending a publish to the answer of a lease that waits, beside 10 k msg/s on another."""
    rounds = run.scale(1_000, 50)
    directory = run.fresh("wake")
    with open_with(directory, fifo_spec()) as broker:
        broker.declare(QueueSpec("busy"))
    times: list[float] = []
    with served(directory) as server:
        consumer, publisher, other = [await Connection.open(server) for _ in range(3)]
        stop = asyncio.Event()
        busy = asyncio.create_task(_steady(other, stop))
        lease = request("POST", LEASES, {"count": 1, "wait_ms": 10_000})
        publish = _publish("written", 1, {"text": "wake up"})
        for number in range(rounds):
            waiting = asyncio.create_task(_timed(consumer, lease))
            await asyncio.sleep(0.002)  # the lease is to wait before its message comes
            sent = time.perf_counter()
            await publisher.ask(publish)
            times.append((await waiting - sent) * 1_000)
            run.progress("waking a consumer", number + 1, rounds)
        stop.set()
        await busy
    p99 = statistics.quantiles(times, n=100)[98]
    settings = {"rounds": rounds, "beside_msg_per_s": WAKE_RATE}
    return [
        at_most("HTTP long poll woken, p99", p99, "ms", WAKE_MS, **settings),
        stated("HTTP long poll woken, median", statistics.median(times), "ms", **settings),
    ]


async def _timed(connection: Connection, sent: bytes) -> float:
    await connection.ask(sent)
    return time.perf_counter()


async def _steady(connection: Connection, stop: asyncio.Event) -> None:
    """Publish 10 k msg/s in batches of 100 and settle them."""
    path = "/v1/queues/busy"
    body = {"messages": [{"text": "x" * KIB}] * BATCH, "confirm": "written"}
    publish = request("POST", f"{path}/messages", body)
    lease = request("POST", f"{path}/leases", {"count": BATCH})
    began = time.perf_counter()
    for number in numbered(1):
        if stop.is_set():
            return
        await connection.ask(publish)
        tokens = [one.token for one in _leases(await connection.ask(lease)).leases]
        await connection.ask(request("POST", f"{path}/acks", {"tokens": tokens}))
        due = began + number * BATCH / WAKE_RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _memory(run: Run) -> list[Row]:
    """What serving adds to the engine, and 1 M x 1 KiB published over HTTP."""
    total = run.scale(1_000_000, 20_000)
    directory = run.fresh("memory")
    with open_with(directory, fifo_spec()):
        pass
    embedded = embedded_rss_bytes(directory)
    kib = {"body_b64": msgspec.json.decode(msgspec.json.encode(b"x" * KIB))}
    sent = _publish("written", BATCH, kib)
    with served(directory) as server:
        idle = server.rss_bytes()
        asyncio.run(_repeat(server, 4, total // BATCH // 4, sent))
        full = server.rss_bytes()
    settings = {"embedded_mib": round(embedded / MIB, 1)}
    added = (idle - embedded) / MIB
    return [
        at_most("server above the engine, idle", added, "MiB", SERVER_MIB, **settings),
        at_most("server with the backlog", full / MIB, "MiB", BACKLOG_MIB, messages=total),
    ]
