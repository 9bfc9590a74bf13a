"""Verbs that take more than sending a request: written once, played by both clients.

A script yields calls and is sent replies; what it returns or raises is what the verb does.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ebbmq import limits
from ebbmq.client import arguments, calls
from ebbmq.client.calls import Call, Reply
from ebbmq.errors import EbbError, InvalidMessage, LeaseLost, TooLarge, UnknownQueue, Unreachable
from ebbmq.model import REASON_TEXT, QueueSpec, Receipt, TopicSpec, check_spec
from ebbmq.wire.http import codec, forms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ebbmq.model import Fields, Lease, Level, Message, Peeked, Removal

T = TypeVar("T")
S = TypeVar("S", QueueSpec, TopicSpec)

#: A longer wait is asked for in parts: proxies and firewalls cut what is silent for a minute.
POLL_MS: Final = 20_000
STATES: Final = ("ready", "leased", "scheduled", "replicating", "dying")
_PEEK_MORE: Final = 8
_TOKEN_HEX: Final = 48
#: Moving everything or copying a store is as long as it is.
LONG_WORK_MS: Final = 3_600_000


Script = Generator[Call[Any], Reply, T]


class Ids:
    """Producer's ids that nobody else gives: random per client and process, then counted."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        # 72 bits: it is stored with every message, and remembered for minutes only.
        self._prefix = secrets.token_urlsafe(9)
        self._numbers = itertools.count()
        self._pid = os.getpid()

    def take(self) -> str:
        """An id; a forked child must not go on with its parent's."""
        if self._pid != os.getpid():
            self._renew()
        return f"{self._prefix}{next(self._numbers):x}"


def one(call: Call[T]) -> Script[T]:
    """A verb that is one call."""
    reply = yield call
    value: T = reply.value
    return value


def publish(
    ids: Ids, queue: str, messages: object, confirm: Level | None, timeout_ms: int | None
) -> Script[list[Receipt]]:
    """See Broker.publish."""
    checked = arguments.as_messages(messages)
    form = _form(checked, confirm, timeout_ms)
    for message in form.messages:
        if message.id is None:
            message.id = ids.take()
    reply = yield calls.publish(queue, form)
    return _first_time(reply.value, checked)


def publish_topic(
    topic: str, messages: object, confirm: Level | None, timeout_ms: int | None
) -> Script[dict[str, list[Receipt]]]:
    """See Broker.publish_topic."""
    checked = arguments.as_messages(messages)
    form = _form(checked, confirm, timeout_ms)
    return (yield from one(calls.publish_topic(topic, form)))


def _form(
    messages: Sequence[Message], confirm: Level | None, timeout_ms: int | None
) -> forms.PublishForm:
    arguments.level_of(confirm, messages)
    if timeout_ms is not None:
        arguments.check_duration("timeout_ms", timeout_ms, 1)
    asked = [codec.form_of(message) for message in messages]
    return forms.PublishForm(messages=asked, confirm=confirm, timeout_ms=timeout_ms)


def _first_time(receipts: list[Receipt], messages: Sequence[Message]) -> list[Receipt]:
    """A message whose id is ours was published once, however often the request was sent."""
    return [
        receipt if message.id is not None or not receipt.duplicate else Receipt(receipt.id)
        for receipt, message in zip(receipts, messages, strict=True)
    ]


def lease(
    queue: str, count: int, wait_ms: int, lease_timeout_ms: int | None, name: str | None
) -> Script[list[Lease]]:
    """See Broker.lease."""
    arguments.check_lease(count, wait_ms, lease_timeout_ms)
    left_ms = wait_ms
    while True:
        part_ms = min(left_ms, POLL_MS)
        reply = yield calls.lease(queue, count, part_ms, lease_timeout_ms, name or None)
        left_ms -= part_ms
        if reply.value or left_ms <= 0:
            found: list[Lease] = reply.value
            return found


def read_lease(queue: str, name: str, first: int, last: int | None) -> Script[list[Lease]]:
    """See Broker.read_lease."""
    for field, value in (("first", first), ("last", last or 0)):
        if type(value) is not int or value < 0:
            raise InvalidMessage(f"{field} is {value!r}", "use a whole number from 0 on")
    return (yield from one(calls.read_lease(queue, name, first, last)))


def ack(queue: str, tokens: Iterable[str], confirm: Level) -> Script[None]:
    """See Broker.ack.

    If the first try was carried out and its answer lost, the second finds the lease ended. Then
    the message itself tells: one that is gone without a removal was acked.
    """
    arguments.check_level(confirm)
    form = forms.AckForm(tokens=arguments.as_tokens(tokens), confirm=confirm)
    refused, in_doubt = yield calls.settle(queue, "acks", form)
    if in_doubt:
        lost = []
        for token in refused:
            if not (yield from _was_acked(token)):
                lost.append(token)
        refused = lost
    if refused:
        raise LeaseLost(refused)


def _was_acked(token: str) -> Script[bool]:
    identity = message_id(token)
    if identity is None:
        return False
    try:
        reply = yield calls.why(identity)
    except Unreachable:
        raise
    except EbbError:
        return False
    return bool(reply.value.get("state") == "gone")


def message_id(token: str) -> str | None:
    """The message a token is of; None if it is not a token."""
    try:
        packed = bytes.fromhex(token)
    except ValueError:
        return None
    if len(token) != _TOKEN_HEX:
        return None
    return f"{int.from_bytes(packed[:4]):x}-{int.from_bytes(packed[4:12]):x}"


def retry(queue: str, tokens: Iterable[str], delay_ms: int | None) -> Script[None]:
    """See Broker.retry."""
    if delay_ms is not None:
        arguments.check_duration("delay_ms", delay_ms, 0)
    form = forms.RetryForm(tokens=arguments.as_tokens(tokens), delay_ms=delay_ms)
    yield from _end(calls.settle(queue, "retries", form))


def release(queue: str, tokens: Iterable[str]) -> Script[None]:
    """See Broker.release."""
    form = forms.ReleaseForm(tokens=arguments.as_tokens(tokens))
    yield from _end(calls.settle(queue, "releases", form))


def _end(call: Call[list[str]]) -> Script[None]:
    """Give leases back: where a second try finds them ended, what was asked for is so."""
    refused, in_doubt = yield call
    if refused and not in_doubt:
        raise LeaseLost(refused)


def extend(queue: str, tokens: Iterable[str], timeout_ms: int) -> Script[None]:
    """See Broker.extend; a second try that is refused means that the lease has ended."""
    arguments.check_duration("timeout_ms", timeout_ms, 1)
    form = forms.ExtendForm(tokens=arguments.as_tokens(tokens), timeout_ms=timeout_ms)
    refused, _ = yield calls.settle(queue, "extensions", form)
    if refused:
        raise LeaseLost(refused)


def peek(
    queue: str,
    count: int,
    state: str,
    where: Callable[[Peeked], bool] | None,
    *,
    counted: bool = False,
) -> Script[list[Peeked]]:
    """See Broker.peek; `where` runs here, on messages fetched in growing numbers."""
    if state not in STATES:
        raise InvalidMessage(f"state is {state!r}", f"use one of {', '.join(STATES)}")
    if counted and where is not None:
        raise InvalidMessage("a counted peek cannot choose with where", "leave one of them out")
    arguments.check_lease(count, 0, None)
    asked = count
    while True:
        reply = yield calls.peek(queue, asked, state, counted=counted)
        seen: list[Peeked] = reply.value
        found = seen if where is None else [message for message in seen if where(message)]
        if where is None or len(found) >= count or len(seen) < asked:
            return found[:count]
        if asked == limits.LEASE_COUNT_MAX:
            return found
        asked = min(asked * _PEEK_MORE, limits.LEASE_COUNT_MAX)


def redrive(
    dead_queue: str, to: str | None, rate: float | None, where: Callable[[Peeked], bool] | None
) -> Script[int]:
    """See Broker.redrive; `where` chooses here, the server moves what was chosen."""
    if rate is not None and not rate > 0:
        raise InvalidMessage(f"rate is {rate!r}", "use messages per second above 0, or None")
    ids: list[str] | None = None
    if where is not None:
        ids = yield from _chosen(dead_queue, where)
        if not ids:
            return 0
    return (yield from one(calls.redrive(dead_queue, to, rate, ids, LONG_WORK_MS)))


def _chosen(queue: str, where: Callable[[Peeked], bool]) -> Script[list[str]]:
    """Ids of the ready messages `where` wants: of all of them, or it is an error."""
    before = yield from _ready(queue)
    seen = yield from peek(queue, limits.LEASE_COUNT_MAX, "ready", None)
    if len(seen) < before and len(seen) < (yield from _ready(queue)):
        raise TooLarge(
            f"only {len(seen)} messages of {queue!r} fit in an answer, so `where` cannot choose "
            "among all of them; nothing was moved",
            "redrive without `where`, or where the broker runs: ebbmq queues redrive --data",
        )
    return [message.id for message in seen if where(message)]


def _ready(queue: str) -> Script[int]:
    stats = yield from one(calls.stats(queue))
    ready: int = stats["depth"]["ready"]
    return ready


def declare(spec: S, kind: type[S], fields: Fields, *, change: bool) -> Script[None]:
    """See Broker.declare, and declare_topic: change what is there, if asked to; else make it."""
    check_spec(spec, kind)
    if change:
        try:
            yield calls.declare("PATCH", spec, fields)
        except UnknownQueue:
            if fields is not None:
                raise
        else:
            return
    yield calls.declare("PUT", spec, fields)


def removals(queue: str, reason: str | None, since_ms: int | None) -> Script[list[Removal]]:
    """See Broker.removals; page by page."""
    if reason is not None and reason not in REASON_TEXT.values():
        raise InvalidMessage(
            f"reason is {reason!r}", f"use one of {', '.join(REASON_TEXT.values())}"
        )
    out: list[Removal] = []
    more = True
    after = None
    while more:
        reply = yield calls.removals(queue, reason, since_ms, after)
        page, more = reply.value
        out += page
        if not page:
            break
        since_ms, after = page[-1].at_ms, page[-1].id
    return out


def backup(target: str | Path) -> Script[int]:
    """See Broker.backup; the directory is one of the server's machine."""
    return (yield from one(calls.backup(str(target), LONG_WORK_MS)))
