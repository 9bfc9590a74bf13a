"""Answers of the bare handlers on a connection of ours: head and body in one piece.

ASGI takes an answer in two parts, and uvicorn writes each of them: two system calls and two
wake-ups of the peer for what is mostly one small packet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ebbmq import limits
from ebbmq.node.server.answers import headers_of, refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from ebbmq.errors import EbbError
    from ebbmq.node.server.answers import Header
    from ebbmq.node.server.receiving import Connection

_OK: Final = 200
#: Above this, copying a body behind its head costs more than a second piece does.
_ONE_PIECE_BYTES: Final = 64 * limits.KIB


class ConnectionPeer:
    """Who sent one request on one connection."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    async def answer(self, body: bytes) -> None:
        """See answers.Peer."""
        await self._write(_OK, headers_of(body), body)

    async def refuse(self, error: EbbError, *headers: Header) -> None:
        """See answers.Peer."""
        status, all_headers, body = refusal(error)
        await self._write(status, [*all_headers, *headers], body)

    async def has_taken_all(self) -> bool:
        """See answers.Peer."""
        cycle = self._cycle
        if cycle.flow.write_paused:
            await cycle.flow.drain()
        if cycle.disconnected or self._connection.has_lost_answer:
            return False
        # A connection that was to be closed after its answer is closing, and was not lost.
        return not (cycle.keep_alive and cycle.transport.is_closing())

    async def _write(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Do what the two sends of ASGI do for an answer that is complete."""
        cycle = self._cycle
        if cycle.response_started:
            # Half an answer was sent some other way; the peer can only be told by the cut.
            cycle.transport.abort()
            return
        if cycle.flow.write_paused:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        cycle.keep_alive = cycle.keep_alive and not _closes(cycle.default_headers)
        head = head_of(status, [*cycle.default_headers, *headers], keep_alive=cycle.keep_alive)
        if cycle.scope["method"] == "HEAD":
            cycle.transport.write(head)
        elif len(body) <= _ONE_PIECE_BYTES:
            cycle.transport.write(head + body)
        else:
            cycle.transport.writelines((head, body))
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


def _closes(headers: Iterable[Header]) -> bool:
    return any(name == b"connection" and value == b"close" for name, value in headers)


def head_of(status: int, headers: Iterable[Header], *, keep_alive: bool) -> bytes:
    """Status line and headers of an answer."""
    lines = [b"%s: %s\r\n" % header for header in headers if header[0] != b"connection"]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    return b"".join((STATUS_LINE[status], *lines, b"\r\n"))
