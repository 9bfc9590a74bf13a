"""Requests to a broker that go straight to columns, and the patience of a task.

A client that was never answered gives up at once, so that a wrong address shows. A task starts with
a client of its own, maybe while the broker restarts, and must not fail for that.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, UnsetType

from ebbmq.client.calls import Call, reader
from ebbmq.client.client import Client
from ebbmq.errors import Overloaded, QueueFull, StorageFailed, Unreachable
from ebbmq.wire.http import codec, forms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ebbmq.model import Receipt
    from ebbmq_spark.connector.options import Server

T = TypeVar("T")
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 2.0
#: What may pass by itself.
_PASSING: Final = (Unreachable, Overloaded, QueueFull, StorageFailed)


class Row(msgspec.Struct, gc=False):
    """A message as a peek or a lease shows it, as far as it becomes a row."""

    id: str
    headers: dict[str, str]
    type: str
    importance: int
    current_importance: float
    band: int
    attempt: int
    failures: int
    ttl_ms: int | None
    decay_rate: float
    enqueued_at_ms: int
    deadline_ms: int | None
    state: str = "leased"
    body_b64: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET


class Read(msgspec.Struct, gc=False):
    """The answer to reading leases: rows, and which token to go on from."""

    leases: list[Row]
    next: int | None = None


class _Peeked(msgspec.Struct, gc=False):
    messages: list[Row]


class _Tokens(msgspec.Struct, gc=False):
    tokens: list[str] = []


_read = reader(Read)
_peeked = reader(_Peeked)
_tokens = reader(_Tokens)
_receipts = reader(forms.ReceiptsForm)


@contextlib.contextmanager
def connected(server: Server) -> Iterator[Client]:
    """A client, closed in the end.

    Raises:
        InvalidSpec: the URL, the token or the certificate cannot be used.
    """
    with Client(
        server.url, token=server.token, ca_file=server.ca_file, timeout_ms=server.timeout_ms
    ) as client:
        yield client


def patiently(server: Server, ask: Callable[[], T]) -> T:
    """What `ask` returns, asked again while the broker is away or has no room.

    Raises:
        EbbError: it was refused for good, or until the time was up.
    """
    until_s = time.monotonic() + server.timeout_ms / 1_000
    pause_s = _PAUSE_S
    while True:
        try:
            return ask()
        except _PASSING:
            if time.monotonic() + pause_s >= until_s:
                raise
        time.sleep(pause_s)
        pause_s = min(_PAUSE_S_MAX, pause_s * 2)


def _queue(queue: str, *rest: str) -> str:
    return "/".join(("/v1/queues", quote(queue, safe=""), *rest))


def hold(queue: str, count: int, wait_ms: int, lease_timeout_ms: int, name: str) -> Call[list[str]]:
    """Lease under a name and be told the tokens alone; the same ones if asked again."""
    form = forms.LeaseRequest(
        count=count,
        wait_ms=wait_ms,
        lease_timeout_ms=lease_timeout_ms,
        name=name,
        tokens_only=True,
    )
    return Call(
        method="POST",
        path=_queue(queue, "leases"),
        body=codec.encode(form),
        read=lambda body: _tokens(body).tokens,
        wait_ms=wait_ms,
    )


def read(queue: str, tokens: Sequence[str]) -> Call[Read]:
    """The messages whose leases these tokens hold, as many as fit."""
    return Call(
        method="POST",
        path=_queue(queue, "reads"),
        body=codec.encode(forms.ReadForm(tokens=list(tokens))),
        read=_read,
    )


def look(queue: str, state: str, after: str | None, up_to: str, count: int) -> Call[list[Row]]:
    """Messages in a state, of one partition, by the order they came in; None: from the first."""
    asked: dict[str, Any] = {"state": state, "count": count, "up_to": up_to}
    if after is not None:
        asked["after"] = after
    return Call(
        method="GET",
        path=f"{_queue(queue, 'messages')}?{urlencode(asked)}",
        read=lambda body: _peeked(body).messages,
    )


def publish(queue: str, body: bytes) -> Call[list[Receipt]]:
    """Messages that all have ids, as they travel."""
    return Call(
        method="POST",
        path=_queue(queue, "messages"),
        body=body,
        read=lambda answer: _receipts(answer).receipts,
        doubt="it may be stored; with the same ids it can be published again",
    )
