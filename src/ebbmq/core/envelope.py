"""The headers block stored in front of a body: what a message carries beside its row."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from ebbmq import limits
from ebbmq.errors import InvalidMessage
from ebbmq.model import NO_HEADERS, Headers, Timing

if TYPE_CHECKING:
    from ebbmq.model import Message


class Envelope(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Headers, producer's id, key, store, replicas, type, latency history, who published it."""

    headers: dict[str, str] | None = None
    id: str | None = None
    key: str | None = None
    store: str | None = None
    replicas: int | None = None
    type: str = "BYTE"
    history: tuple[Timing, ...] = ()
    #: The authenticated client; None is the one that the node itself is for its own process.
    client: str | None = None


EMPTY = Envelope()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def is_plain(message: Message) -> bool:
    """Whether a message needs no headers block."""
    return (
        message.headers is None
        and message.id is None
        and message.key is None
        and message.type == "BYTE"
        and message.store is None
        and message.replicas is None
    )


def pack(
    message: Message,
    history: tuple[Timing, ...] = (),
    client: str | None = None,
    bytes_max: int = limits.HEADERS_BYTES_MAX,
) -> bytes:
    """The headers block of a message.

    Raises:
        InvalidMessage: it is larger than `bytes_max`.
    """
    headers = dict(message.headers) if message.headers else None
    if not history and client is None and headers is None and _has_only_a_type(message):
        return _of_type(message.type)
    block = _encode(
        Envelope(
            headers,
            message.id,
            message.key,
            message.store,
            message.replicas,
            message.type,
            history,
            client,
        )
    )
    if len(block) > bytes_max:
        raise InvalidMessage(
            f"headers take {len(block)} bytes, the limit is {bytes_max}",
            "move large values into the body",
        )
    return block


def _has_only_a_type(message: Message) -> bool:
    return (
        message.id is None
        and message.key is None
        and message.store is None
        and message.replicas is None
    )


@lru_cache(maxsize=64)
def _of_type(kind: str) -> bytes:
    """The block of messages that say nothing but their type: texts are published in batches."""
    return _encode(Envelope(type=kind))


def unpack(block: bytes | memoryview) -> Envelope:
    """Read a headers block."""
    return _decode(block)


def last_timings(before: tuple[Timing, ...], since: tuple[Timing, ...]) -> tuple[Timing, ...]:
    """What is kept of a history that went along with a message and of the one it has since."""
    return (before + since)[-limits.HISTORY_ENTRIES_MAX :]


def headers_of(envelope: Envelope) -> Headers:
    """The headers as a consumer sees them."""
    return envelope.headers or NO_HEADERS
