"""Answers of the bare handlers: a status, a few headers, JSON that is already encoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

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


async def answer(send: Send, body: bytes) -> None:
    """Send a body of JSON as the answer to a request that went well."""
    headers = [_JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, error: EbbError, *headers: Header) -> None:
    """Send an error."""
    status, all_headers, body = refusal(error)
    all_headers.extend(headers)
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def refusal(error: EbbError) -> tuple[int, list[Header], bytes]:
    """Status, headers and body of an error."""
    status = faults.status_of(error)
    body = codec.encode(faults.form_of(error))
    headers = [_JSON, (b"content-length", b"%d" % len(body)), _NO_STORE]
    seconds = faults.retry_after_s(status)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if status == _UNAUTHENTICATED:
        headers.append(_BEARER)
    return status, headers, body
