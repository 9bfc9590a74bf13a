"""Accepts connections that are to be secured, and bounds those whose peer has yet to do its part.

A loop that is left to do both tells nobody of a connection before its handshake has ended, so one
that says nothing would cost a socket and not be counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine

    from ebbmq.node.server.listening import Listening
    from ebbmq.node.server.receiving import Connection

#: Peers above the limit who may shake hands all the same, so that they can be told why not.
_TOLD_MAX: Final = 16
#: How long to wait when there are no more files for connections.
_NO_FILES_S: Final = 0.1


class Securing:
    """A socket that takes TLS connections until it is closed; to uvicorn, one of its servers."""

    def __init__(
        self,
        config: Listening,
        tls: ssl.SSLContext,
        listening: socket.socket,
        make: Callable[[], Connection],
    ) -> None:
        self._config = config
        self._tls = tls
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        listening.listen(config.backlog)
        self._start(self._accept(listening))

    def close(self) -> None:
        """Take no more connections and give up those that are not secured yet."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once nothing of it is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_NO_FILES_S)
                continue
            if self._config.connections >= self._config.connections_max + _TOLD_MAX:
                accepted.close()
                continue
            connection = self._make()
            self._config.handshaking.add(connection)
            self._start(self._secure(connection, accepted))

    async def _secure(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._config.context.config.http.receive_timeout_ms / 1_000,
            )
        except OSError:
            # Whoever cannot shake hands goes away, as a peer that breaks off later does.
            return
        finally:
            self._config.handshaking.discard(connection)
