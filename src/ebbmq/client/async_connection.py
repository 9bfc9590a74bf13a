"""Awaitable connections to one server, kept open and used again by any task of a loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from ebbmq.client.connection import CONNECT_TIMEOUT_S, IDLE_MAX, is_distrust, why
from ebbmq.client.exchange import Answer, NoAnswer, NotSent, request_bytes

if TYPE_CHECKING:
    from ebbmq.client.address import Address
    from ebbmq.client.calls import Call

#: Requests of one client at the same time, long polls not counted: more of them wait their turn.
REQUESTS_MAX: Final = 100


class AsyncConnection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, address: Address, until_s: float) -> AsyncConnection:
        """Connect, until an instant of the loop's clock.

        Raises:
            NotSent: nobody answers there, or not one that is trusted.
        """
        loop = asyncio.get_running_loop()
        until_s = min(until_s, loop.time() + CONNECT_TIMEOUT_S)
        try:
            async with asyncio.timeout_at(until_s):
                _, connection = await loop.create_connection(
                    lambda: cls(address),
                    address.host,
                    address.port,
                    ssl=address.tls,
                    server_hostname=address.host if address.tls else None,
                )
        except socket.gaierror as error:
            raise NotSent(f"no machine is called {address.host!r}", hopeless=True) from error
        except OSError as error:
            raise NotSent(why(error, "connecting"), hopeless=is_distrust(error)) from error
        return connection

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        if self._answer is None:
            # Nothing was asked: whatever it is, this connection is out of step.
            self.close()
            return
        try:
            self._answer.feed(data)
        except NoAnswer as error:
            self._finish(error)
            return
        if self._answer.done:
            self._finish(None)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._transport = None
        if self._answer is None:
            return
        try:
            self._answer.ended()
        except NoAnswer as error:
            self._finish(NoAnswer(why(exc, "")) if isinstance(exc, ssl.SSLError) else error)

    def _finish(self, error: NoAnswer | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def is_usable(self) -> bool:
        """Whether an idle connection is open."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, method: str, path: str, body: bytes | None, until_s: float) -> Answer:
        """Send a request and wait for its answer until an instant of the loop's clock.

        Raises:
            NotSent: the connection was closed before anything was sent.
            NoAnswer: no answer, or half of one.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NotSent("the server closed the connection")
        answer = self._answer = Answer()
        self._done = asyncio.get_running_loop().create_future()
        transport.write(request_bytes(self._address, method, path, body))
        try:
            async with asyncio.timeout_at(until_s):
                await self._done
        except TimeoutError as error:
            raise NoAnswer("timed out waiting for the answer") from error
        finally:
            self._answer = self._done = None
        # An answer that came before all was sent is a refusal; the rest must not be read as more.
        answer.keep = answer.keep and not transport.get_write_buffer_size()
        return answer

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class AsyncPool:
    """Connections no task uses at the moment."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[AsyncConnection] = deque()
        self._turn = asyncio.Semaphore(REQUESTS_MAX)
        self._closed = False

    async def exchange(self, call: Call[object], until_s: float) -> Answer:
        """One request on an idle connection, in its turn; see Pool.exchange."""
        if call.wait_ms:
            return await self._exchange(call, until_s)
        async with self._turn:
            return await self._exchange(call, until_s)

    async def _exchange(self, call: Call[object], until_s: float) -> Answer:
        connection = self._take() if call.repeatable else None
        if connection is None:
            connection = await AsyncConnection.open(self._address, until_s)
        try:
            answer = await connection.exchange(call.method, call.path, call.body, until_s)
        except BaseException:
            connection.close()
            raise
        if not answer.keep or self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def _take(self) -> AsyncConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close what is idle; what is in use is closed once its answer has come."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
