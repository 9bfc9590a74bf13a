"""A connection of a caller, and all that bounds what it can take from the server.

uvicorn's connection parses requests and writes answers. This one adds the bounds:

1. A head (request line and headers) has a size, a number of headers and a time to arrive.
2. A request has a size and a time to arrive. It is handed to the application in one piece.
3. The bytes of all requests that are received or answered, and of answers that are not read yet,
   are counted together; at the limit, requests are refused with 429 until others are done.
4. An answer has a time to be read.
5. The number of connections has a limit.

Time is not kept by timers: each connection says since when it waits for its peer, and `listening`
looks at all of them now and then.

A peer that is refused while it is still sending is told why, and what it sends is thrown away for a
moment: closing at once would have its kernel drop the answer before it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import httptools
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ebbmq import limits
from ebbmq.errors import ClientError, EbbError, InvalidRequest, Overloaded, TooLarge, TooSlow
from ebbmq.node.server.answers import refusal
from ebbmq.node.server.app import PEER
from ebbmq.node.server.replying import ConnectionPeer, head_of

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from ebbmq.node.config import HttpConfig
    from ebbmq.node.server.context import Context
    from ebbmq.node.server.listening import Listening

#: A request is counted as it arrives, in steps of this many bytes: who only says that it will send
#: much takes nothing from the others.
_STEP_BYTES: Final = 64 * limits.KIB
_ANSWER_WATER_BYTES: Final = 64 * limits.KIB
#: Headers that offer another protocol.
_OFFERS: Final = (b"upgrade", b"connection", b"http2-settings")
#: How long a peer that was refused may go on sending.
_LINGER_S: Final = 2.0


class Connection(HttpToolsProtocol):
    """One connection; every request on it is bounded."""

    config: Listening

    def __init__(
        self,
        config: Listening,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._context: Context = config.context
        #: Since when the peer owes bytes of a request or is idle; None: its request is complete.
        self._owes_since: float | None = None
        #: Since when the peer has not read an answer, or None: it has.
        self._unread_since: float | None = None
        self._head_bytes = 0
        self._in_head = True
        #: Counted in the context's pending bytes: for the request, and for the answer.
        self._request_bytes = 0
        self._answer_bytes = 0
        #: The size of the request so far, and the most it said it would have.
        self._got_bytes = self._said_bytes = 0
        #: Nothing more is taken from this peer.
        self._refused = False
        #: The connection was lost before its peer had taken all of an answer.
        self.has_lost_answer = False

    # What the peer does

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.config.watch(self)
        # Resumed only when all was taken: then, and not before, an answer has left this process.
        transport.set_write_buffer_limits(high=_ANSWER_WATER_BYTES, low=0)
        self._owes_since = self.loop.time()
        if self.config.connections > self.config.connections_max:
            self._refuse(
                Overloaded(
                    f"the server has {self._http.connections_max} connections, its limit",
                    "close connections that are idle, or raise http.connections_max",
                    code="too_many_connections",
                )
            )

    @property
    def _http(self) -> HttpConfig:
        return self._context.config.http

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(InvalidRequest("this is not HTTP/1.1", "send a request of HTTP/1.1"))
        else:
            if self._in_head and self._head_bytes > limits.REQUEST_HEAD_BYTES_MAX:
                self._refuse(_head_too_large())

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Some clients offer another protocol with their first request; they are answered in
            # this one. The parser takes what follows for the other protocol, so a new one reads it
            # without the offer.
            method = self.parser.get_method()
            newest = self._newest
            if method == b"CONNECT" or (newest is not None and not newest.response_complete):
                raise httptools.HttpParserError from upgrade
            kept = [each for each in self.headers if each[0] not in _OFFERS]
            lines = b"".join(b"%s: %s\r\n" % each for each in kept)
            head = b"%s %s HTTP/1.1\r\n%s\r\n" % (method, self.url, lines)
            self.parser = httptools.HttpRequestParser(self)
            self._parse(head + data[upgrade.args[0] :])

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.has_lost_answer = self._unread_since is not None
        self.config.forget(self)
        self._count_request(0)
        self._count_answer(0)
        # uvicorn tells only the request that came last; those before it wait as well.
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        self.pipeline.clear()
        super().connection_lost(exc)

    # What the parser finds

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._head_bytes or 1
        self._owes_since = self.loop.time()

    @override
    def on_headers_complete(self) -> None:
        if self._refused or self.parser.should_upgrade():
            return
        problem = self._head_problem()
        if problem is not None:
            self._refuse(problem)
            return
        self._in_head = False
        self._head_bytes = self._got_bytes = 0
        super().on_headers_complete()
        # The task that answers was made and has not begun.
        cast("dict[str, Any]", self.scope)["extensions"] = {PEER: ConnectionPeer(self, self.cycle)}
        if self.expect_100_continue:
            # Answered before it was told to go on, the peer may or may not send what it announced.
            self.cycle.keep_alive = False

    def _head_problem(self) -> ClientError | None:
        headers = self.headers
        if len(headers) > limits.REQUEST_HEADERS_MAX or (
            # What was received since the head began is mostly a body, and mostly small.
            self._head_bytes > limits.REQUEST_HEAD_BYTES_MAX
            and len(self.url) + sum(len(name) + len(value) for name, value in headers)
            > limits.REQUEST_HEAD_BYTES_MAX
        ):
            return _head_too_large()
        self._said_bytes = 0
        for name, value in headers:
            if name == b"content-length":
                self._said_bytes = int(value)
            elif name == b"transfer-encoding":
                self._said_bytes = self._http.request_bytes_max
        if self._said_bytes > self._http.request_bytes_max:
            return _too_large(self._http.request_bytes_max)
        return self._room_problem(0)

    def _room_problem(self, size: int) -> ClientError | None:
        if size > self._http.request_bytes_max:
            return _too_large(self._http.request_bytes_max)
        if not self._count_request(min(size + _STEP_BYTES, self._said_bytes)):
            return _no_memory()
        return None

    @override
    def on_body(self, body: bytes) -> None:
        if self._refused or self.cycle.response_complete:
            return
        self._got_bytes += len(body)
        if self._got_bytes > self._request_bytes:
            problem = self._room_problem(self._got_bytes)
            if problem is not None:
                self._refuse(problem)
                return
        self.cycle.body += body

    @override
    def on_message_complete(self) -> None:
        if self._refused or self.parser.should_upgrade():
            return
        self._owes_since = None
        self._in_head = True
        super().on_message_complete()

    # What the application does

    @override
    def on_response_complete(self) -> None:
        self._count_request(0)
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if self._owes_since is None and not self.pipeline:
            self._owes_since = self.loop.time()

    @override
    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        self._count_answer(self.transport.get_write_buffer_size())
        super().pause_writing()

    @override
    def resume_writing(self) -> None:
        self._unread_since = None
        self._count_answer(0)
        super().resume_writing()

    # Bounds

    def _count_request(self, size: int) -> bool:
        """Count a request as that large; False if that is more than there is room for."""
        context = self._context
        others = context.pending_bytes - self._request_bytes
        # One request is always taken, however small the limit: else nothing would ever be.
        if size and others and others + size > self._http.pending_bytes_max:
            return False
        context.pending_bytes = others + size
        self._request_bytes = size
        return True

    def _count_answer(self, size: int) -> None:
        self._context.pending_bytes += size - self._answer_bytes
        self._answer_bytes = size

    def cut_if_slow(self, now: float) -> None:
        """Cut the connection off if its peer owes bytes, or does not read, for too long."""
        seconds = self._http.receive_timeout_ms / 1_000
        if self._unread_since is not None and now - self._unread_since > seconds:
            self.transport.abort()
        if self._owes_since is None:
            return
        waited = now - self._owes_since
        if self._refused:
            if waited > _LINGER_S:
                self.transport.abort()
        elif self._in_head and not self._head_bytes:
            if waited > self._http.idle_timeout_ms / 1_000:
                self.transport.close()
        elif waited > seconds:
            self._refuse(_too_slow(self._http.receive_timeout_ms))

    @property
    def _newest(self) -> RequestResponseCycle | None:
        """The last request whose head arrived, and its answer."""
        return self.cycle

    def _refuse(self, error: EbbError) -> None:
        """Tell the peer what is wrong and take nothing more of it."""
        self._refused = True
        self._context.note_refusal(error)
        self._count_request(0)
        self._owes_since = self.loop.time()
        cycle = self._newest
        if cycle is not None and not cycle.response_complete:
            is_its_own = not self._in_head and not self.pipeline
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or not is_its_own:
                # Another answer is due or half sent; this one would be taken for it.
                self.transport.abort()
                return
        elif cycle is not None and not self._in_head:
            # It was answered before it was complete, and goes on and on.
            self.transport.abort()
            return
        status, headers, body = refusal(error)
        self.transport.write(head_of(status, headers, keep_alive=False) + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


def _head_too_large() -> TooLarge:
    return TooLarge(
        f"the headers take more than {limits.REQUEST_HEAD_BYTES_MAX} bytes or are more than "
        f"{limits.REQUEST_HEADERS_MAX}",
        "send fewer and shorter headers",
        code="headers_too_large",
    )


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(
        f"the request has more than {bytes_max} bytes",
        "publish in parts, or raise http.request_bytes_max",
    )


def _no_memory() -> Overloaded:
    return Overloaded(
        "requests that are being answered take all the memory set aside for them",
        "try again after the time in Retry-After; http.pending_bytes_max is the limit",
    )


def _too_slow(timeout_ms: int) -> TooSlow:
    return TooSlow(
        f"the request did not arrive within {timeout_ms} ms",
        "send smaller requests, or raise http.receive_timeout_ms",
    )
