"""How uvicorn serves: in the loop that is running, with connections that are bounded."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import uvicorn
from typing_extensions import override

from ebbmq.node.server.receiving import Connection
from ebbmq.node.server.securing import Securing

if TYPE_CHECKING:
    import asyncio
    import socket
    import ssl

    from ebbmq.node.server.answers import Application
    from ebbmq.node.server.context import Context

#: How often connections are looked at whose peer may be too slow.
_LOOK_EVERY_S: Final = 0.25
#: Files a broker has open beside its connections.
_OTHER_FILES: Final = 1_024


class Listening(uvicorn.Config):
    """Everything uvicorn is told; signals and the loop are the caller's."""

    def __init__(
        self, context: Context, app: Application, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(
            app,
            http=Connection,
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=2_048,
        )
        self.context = context
        #: Connections whose peer has yet to do its part for them to be secured.
        self.handshaking: set[Connection] = set()
        self._open: set[Connection] = set()
        self._looking: asyncio.TimerHandle | None = None
        self.load()
        self.tls = tls
        _allow_files(context.config.http.connections_max + _OTHER_FILES)

    @property
    def connections(self) -> int:
        """How many connections there are, those that are not secured yet among them."""
        return len(self._open) + len(self.handshaking)

    @property
    def connections_max(self) -> int:
        """How many there may be."""
        return self.context.config.http.connections_max

    def watch(self, connection: Connection) -> None:
        """Look at a connection now and then, until it is forgotten."""
        self._open.add(connection)
        self.handshaking.discard(connection)
        if self._looking is None:
            self._looking = connection.loop.call_later(_LOOK_EVERY_S, self._look, connection.loop)

    def forget(self, connection: Connection) -> None:
        """Look at a connection no more."""
        self._open.discard(connection)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._open):
            connection.cut_if_slow(now)
        self._looking = None
        if self._open:
            self._looking = loop.call_later(_LOOK_EVERY_S, self._look, loop)


class Server(uvicorn.Server):
    """uvicorn, except that connections count from the moment they are accepted."""

    config: Listening

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        tls = self.config.tls
        await super().startup(sockets if tls is None else [])
        if tls is not None:
            self.servers = [
                Securing(self.config, tls, each, self._connection)  # type: ignore[misc]  # it only closes them
                for each in sockets or ()
            ]

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)


def _allow_files(count: int) -> None:
    """Let this process open as many files as its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
