"""A server for tests: in a thread of this process, on a free port of this machine."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
from typing import TYPE_CHECKING, Any

import uvloop

from ebbmq import AsyncBroker, Broker, QueueSpec
from ebbmq.node import config as configuration
from ebbmq.node.server.access import Access
from ebbmq.node.server.app import App
from ebbmq.node.server.context import Context
from ebbmq.node.server.listening import Listening, Server

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from types import TracebackType

    from ebbmq.testing import ManualClock


class Served:
    """A broker and a server on it; `broker` is the same engine, called from any thread."""

    def __init__(
        self,
        data: Path,
        http: dict[str, Any] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.config = configuration.load({**settings, "http": http or {}})
        self.broker = Broker.open(data, self.config, clock=clock)
        self.broker.declare(QueueSpec("q"))
        self.context: Context
        self.port = 0
        self.loop: asyncio.AbstractEventLoop
        self._data = data
        self._tls = tls
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.broker.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        broker = AsyncBroker(self.broker)
        self.context = Context(broker, self.config, Access(self._data), 0)
        listening = Listening(self.context, App(self.context), self._tls)
        server = Server(listening)
        server.lifespan = listening.lifespan_class(listening)
        bound = socket.create_server(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        await server.startup(sockets=[bound])
        self._ready.set()
        await self._stop.wait()
        self.context.drain()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await server.shutdown(sockets=[bound])

    def in_loop(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run something in the server's own loop and return what it returned."""
        return asyncio.run_coroutine_threadsafe(story(), self.loop).result(30)

    def connect(self, timeout: float = 20) -> socket.socket:
        """A connection that has sent nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send one request on a connection of its own; bytes are sent as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, raw, headers or {})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


class Answer:
    """A response that was read to its end."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def read_answer(raw: socket.socket) -> bytes:
    """One answer of a connection, from its first byte to its last."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = raw.recv(1)
        assert part, f"the connection was closed after {got!r}"
        got += part
    size = re.search(rb"content-length: (\d+)", got)
    left = int(size[1]) if size else 0
    while left:
        part = raw.recv(min(left, 1 << 20))
        assert part, "the connection was closed in the middle of an answer"
        got += part
        left -= len(part)
    return got
