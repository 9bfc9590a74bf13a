"""From messages to batches: what can be done for a publish before the engine's lock is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.core import envelope
from ebbmq.core.arrivals import Batch
from ebbmq.errors import InvalidMessage
from ebbmq.model import LEVELS, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.model import Level, Timing


def as_messages(messages: object) -> Sequence[Message]:
    """The messages of a publish call, checked to be messages.

    Raises:
        InvalidMessage: something else was given.
    """
    if isinstance(messages, Message):
        messages = [messages]
    if type(messages) is not list:
        messages = _as_sequence(messages)
    if len(messages) > limits.BATCH_MESSAGES_MAX:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages is over {limits.BATCH_MESSAGES_MAX}",
            "publish it in parts",
        )
    for message in messages:
        if not isinstance(message, Message):
            raise _no_message(message)
    return messages


def _as_sequence(messages: object) -> Sequence[Any]:
    """What was given in place of a list; a body alone is none, though it has a length."""
    if isinstance(messages, bytes | bytearray | memoryview | str):
        raise _no_message(messages)
    if isinstance(messages, Sequence):
        return messages
    if isinstance(messages, Iterable):
        return list(messages)
    raise _no_message(messages)


def _no_message(given: object) -> InvalidMessage:
    return InvalidMessage(
        f"publish takes messages, not {type(given).__name__}", "use [Message(b'..')]"
    )


def level_of(confirm: str | None, messages: Sequence[Message]) -> Level:
    """The confirm level of a call: as asked, else synced where anything is durable."""
    if confirm is None:
        for message in messages:
            if message.durable:
                return "synced"
        return "memory"
    if confirm not in LEVELS:
        raise InvalidMessage(f"confirm is {confirm!r}", f"use one of {', '.join(LEVELS)}")
    return confirm  # type: ignore[return-value]  # it is one of LEVELS


def pack(
    messages: Sequence[Message],
    histories: Sequence[tuple[Timing, ...]] | None = None,
    client: str | None = None,
    qos: Level | None = "written",
    *,
    topic: bool = False,
) -> Batch:
    """Headers blocks, checksums and sizes of messages that go to one partition together."""
    payloads: list[bytes] = []
    header_sizes: list[int] = []
    has_ids = False
    moved = histories is not None
    headers_max = limits.MOVED_HEADERS_BYTES_MAX if moved else limits.HEADERS_BYTES_MAX
    for number, message in enumerate(messages):
        history = histories[number] if histories else ()
        if client is None and not history and envelope.is_plain(message):
            payloads.append(message.body)
            header_sizes.append(0)
        else:
            block = envelope.pack(message, history, client, headers_max)
            payloads.append(block + message.body)
            header_sizes.append(len(block))
            has_ids = has_ids or message.id is not None
    crcs = list(map(crc32c, payloads))
    size = sum(map(len, payloads))
    return Batch(
        messages, payloads, header_sizes, crcs, size, has_ids, client, qos, None, topic=topic
    )


def pack_plain(messages: Sequence[Message]) -> Batch:
    """`pack` for messages that need no headers block, published at level synced by the node."""
    payloads = [message.body for message in messages]
    crcs, size = list(map(crc32c, payloads)), sum(map(len, payloads))
    return Batch(messages, payloads, [0] * len(payloads), crcs, size, has_ids=False, qos="synced")


def merged(batches: Sequence[Batch]) -> Batch:
    """Several batches of one client and level as one, in order."""
    return Batch(
        [message for batch in batches for message in batch.messages],
        [payload for batch in batches for payload in batch.payloads],
        [size for batch in batches for size in batch.header_sizes],
        [crc for batch in batches for crc in batch.crcs],
        sum(batch.body_bytes for batch in batches),
        any(batch.has_ids for batch in batches),
        batches[0].client,
        batches[0].qos,
        topic=batches[0].topic,
    )


def select(batch: Batch, chosen: Sequence[int]) -> Batch:
    """Some of a batch's messages as a batch."""
    payloads = [batch.payloads[i] for i in chosen]
    return Batch(
        [batch.messages[i] for i in chosen],
        payloads,
        [batch.header_sizes[i] for i in chosen],
        [batch.crcs[i] for i in chosen],
        sum(map(len, payloads)),
        batch.has_ids,
        batch.client,
        batch.qos,
        topic=batch.topic,
    )


def records(batch: Batch) -> Iterator[Batch]:
    """Cut a batch into what one journal record may hold."""
    count = len(batch.messages)
    if count <= limits.RECORD_ROWS_MAX and batch.body_bytes <= limits.RECORD_BYTES_MAX:
        if count:
            yield batch
        return
    start = size = 0
    for number, payload in enumerate(batch.payloads):
        full = number - start >= limits.RECORD_ROWS_MAX
        if number > start and (full or size + len(payload) > limits.RECORD_BYTES_MAX):
            yield select(batch, range(start, number))
            start, size = number, 0
        size += len(payload)
    yield select(batch, range(start, count))
