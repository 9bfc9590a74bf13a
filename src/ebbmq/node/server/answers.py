"""Answers of the bare handlers: a status, a few headers, JSON that is already encoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

from ebbmq.errors import EbbError, InternalError
from ebbmq.wire.http import codec, faults

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

_JSON: Final[Header] = (b"content-type", b"application/json")
#: Answers are about one instant and one caller.
_NO_STORE: Final[Header] = (b"cache-control", b"no-store")
_BEARER: Final[Header] = (b"www-authenticate", b'Bearer realm="ebbmq"')
_UNAUTHENTICATED: Final = 401

INTERNAL: Final = InternalError(
    "the server failed to answer this request", "the server's log says why; tell its operator"
)


class Peer(Protocol):
    """Who sent a request and gets the answer."""

    async def answer(self, body: bytes) -> None:
        """Send a body of JSON as the answer to a request that went well."""

    async def refuse(self, error: EbbError, *headers: Header) -> None:
        """Send an error."""

    async def has_taken_all(self) -> bool:
        """Wait until what was sent left this process; False if the connection was lost first."""


class AsgiPeer:
    """A peer of any server that speaks ASGI; what it does with an answer cannot be watched."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def answer(self, body: bytes) -> None:
        """See Peer."""
        await self._write(200, headers_of(body), body)

    async def refuse(self, error: EbbError, *headers: Header) -> None:
        """See Peer."""
        status, all_headers, body = refusal(error)
        await self._write(status, [*all_headers, *headers], body)

    async def has_taken_all(self) -> bool:
        """See Peer; taken for granted."""
        return True

    async def _write(self, status: int, headers: list[Header], body: bytes) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def headers_of(body: bytes) -> list[Header]:
    """Headers of an answer in JSON."""
    return [_JSON, (b"content-length", b"%d" % len(body))]


def refusal(error: EbbError) -> tuple[int, list[Header], bytes]:
    """Status, headers and body of an error."""
    status = faults.status_of(error)
    body = codec.encode(faults.form_of(error))
    headers = [*headers_of(body), _NO_STORE]
    seconds = faults.retry_after_s(status)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if status == _UNAUTHENTICATED:
        headers.append(_BEARER)
    return status, headers, body
