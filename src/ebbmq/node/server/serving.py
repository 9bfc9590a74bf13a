"""One run of the server: open the store, listen, follow signals, drain, close.

SIGTERM and SIGINT drain: publishes are refused from then on, what was taken in is answered,
connections are closed as they become idle, the store is closed and the process ends with 0. A
second one ends it at once, as kill -9 would: the journal is made for that. SIGHUP reads the
settings again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import uvloop
from typing_extensions import override

from ebbmq.node import config as configuration
from ebbmq.node.async_broker import AsyncBroker
from ebbmq.node.log import log
from ebbmq.node.server import addresses, example, logs, reloading
from ebbmq.node.server.access import Access
from ebbmq.node.server.app import App
from ebbmq.node.server.context import Context
from ebbmq.node.server.listening import Listening, Server
from ebbmq.node.server.pipeline import Pipeline
from ebbmq.node.server.receiving import Connection

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from ebbmq.node.config import Config

#: How long a connection that is idle when the drain begins is left open. A request that was on its
#: way then is answered with a refusal instead of a closed connection.
_LAST_REQUESTS_S: Final = 0.25
_LOOK_EVERY_S: Final = 0.05


class Started(NamedTuple):
    """What there is to say about a server that takes connections."""

    urls: list[str]
    queues: list[str]
    has_users: bool
    #: The lake that Spark looks at on a schedule, if it does.
    lake: str | None


class _Server(Server):
    """Without uvicorn's signal handlers, and with a drain that answers who is still talking."""

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        for connection in self._connections():
            if _is_busy(connection):
                connection.shutdown()
        await asyncio.sleep(_LAST_REQUESTS_S)
        closing = asyncio.create_task(self._let_go())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    def _connections(self) -> list[Connection]:
        return [each for each in self.server_state.connections if isinstance(each, Connection)]

    async def _let_go(self) -> None:
        """Wait for no goodbye: over TLS an idle peer would be asked for one and not reply."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for connection in self._connections():
                if not _is_busy(connection) and not connection.transport.get_write_buffer_size():
                    connection.transport.abort()


def _is_busy(connection: Connection) -> bool:
    # None until the first request, whatever uvicorn's annotation says.
    cycle: RequestResponseCycle | None = connection.cycle
    return cycle is not None and not cycle.response_complete


class Serving:
    """A server on a data directory, from start to end."""

    def __init__(
        self,
        data: Path,
        read: Callable[[], Config],
        announce: Callable[[Started], None],
        *,
        with_example: bool = False,
    ) -> None:
        self._data = data
        self._read = read
        self._announce = announce
        self._with_example = with_example
        self._stop = asyncio.Event()
        self._context: Context | None = None
        self._tls: ssl.SSLContext | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until a signal says to stop.

        Raises:
            EbbError: it cannot start; what is wrong and what to do about it.
        """
        config = self._read()
        logs.configure(config.log)
        access = Access(self._data)
        self._tls = reloading.secure(config.http)
        sockets = addresses.bind(config.http, has_users=access.has_users)
        self._follow_signals()
        try:
            log.info("starting", data=str(self._data), pid=os.getpid())
            log.always("configuration", **configuration.settings(config))
            is_new = not (self._data / "store.json").exists()
            async with await AsyncBroker.open(self._data, config) as broker:
                if self._with_example:
                    await (example.load if is_new else example.renew)(broker)
                self._context = Context(broker, config, access, time.time_ns() // 1_000_000)
                async with _with_pipeline(self._context):
                    await self._serve(self._context, sockets)
                if self._reloading is not None:
                    await self._reloading
        finally:
            for each in sockets:
                each.close()
        log.info("stopped")

    async def _serve(self, context: Context, sockets: list[socket.socket]) -> None:
        if self._stop.is_set():
            return
        config = Listening(context, App(context), self._tls)
        server = _Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=sockets)
        ticking = asyncio.create_task(server.main_loop())
        urls = [addresses.url(context.config.http, each) for each in sockets]
        log.info("ready", addresses=urls)
        queues = [spec.name for spec in await context.broker.queues()]
        lake = context.config.feed.lake if context.config.pipeline.every_ms else None
        # What was loaded stays: looking through it for garbage would stop everybody for 25 ms.
        gc.freeze()
        self._announce(Started(urls, queues, context.access.has_users, lake))
        await self._stop.wait()
        log.info("draining")
        context.drain()
        ticking.cancel()
        config.timeout_graceful_shutdown = -(-context.config.http.drain_timeout_ms // 1_000)
        await server.shutdown(sockets=sockets)

    def _follow_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_or_exit, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _stop_or_exit(self, number: int) -> None:
        if self._stop.is_set():
            # No clean-up of any kind: whoever asks twice does not want to wait for it.
            os._exit(128 + number)
        self._stop.set()

    def _reload(self) -> None:
        if self._context is not None:
            # One after the other: the last signal's settings are those that count.
            self._reloading = asyncio.create_task(self._reload_after(self._reloading))

    async def _reload_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        if self._context is not None and not self._stop.is_set():
            await reloading.reload(self._context, self._read, self._tls)


@contextlib.asynccontextmanager
async def _with_pipeline(context: Context) -> AsyncIterator[None]:
    """Have the pipeline run now and then, if it is configured; it ends with the server."""
    config = context.config
    if not config.pipeline.every_ms:
        yield
        return
    if config.feed.lake is None:
        log.warning(
            "pipeline_not_scheduled", detail="pipeline.every_ms is set, and feed.lake names no lake"
        )
        yield
        return
    data = context.broker.engine.directory.path
    context.pipeline = Pipeline(config.pipeline, config.feed, data)
    running = asyncio.create_task(context.pipeline.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


def run(
    data: Path,
    read: Callable[[], Config],
    announce: Callable[[Started], None],
    *,
    with_example: bool = False,
) -> None:
    """Serve a data directory in this process until a signal says to stop.

    Args:
        data: the directory, made if need be.
        read: gives the settings, at the start and again at each SIGHUP.
        announce: is told about the server once connections are taken.
        with_example: whether a new directory gets the example, and one that has it new photos.

    Raises:
        EbbError: the server cannot start.
    """

    async def serve() -> None:
        await Serving(data, read, announce, with_example=with_example).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
