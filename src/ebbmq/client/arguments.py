"""What a verb may be called with: the same checks for a broker in this process and for a client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.errors import InvalidMessage, InvalidSpec
from ebbmq.model import LEVELS, Message

if TYPE_CHECKING:
    from ebbmq.model import Level


def as_messages(messages: object) -> Sequence[Message]:
    """The messages of a publish call, checked to be messages.

    Raises:
        InvalidMessage: something else was given.
    """
    if isinstance(messages, Message):
        messages = [messages]
    # A body alone is no message, though it has a length.
    is_body = isinstance(messages, bytes | bytearray | memoryview | str)
    if is_body or not isinstance(messages, Iterable):
        raise InvalidMessage(
            f"publish takes messages, not {type(messages).__name__}", "use [Message(b'..')]"
        )
    if not isinstance(messages, Sequence):
        messages = list(messages)
    if len(messages) > limits.BATCH_MESSAGES_MAX:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages is over {limits.BATCH_MESSAGES_MAX}",
            "publish it in parts",
        )
    for message in messages:
        if type(message) is not Message:
            raise InvalidMessage(
                f"publish takes messages, not {type(message).__name__}", "use [Message(b'..')]"
            )
    return messages


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


def as_tokens(tokens: object) -> list[str]:
    """The tokens of a call, checked to be strings."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise InvalidMessage(
            f"tokens is {type(tokens).__name__}", "give a list of tokens: [lease.token]"
        )
    out = list(tokens)
    if out and {str} != set(map(type, out)):
        raise InvalidMessage(
            f"a token is {next(type(t).__name__ for t in out if type(t) is not str)}, not str",
            "give the tokens of your leases",
        )
    return out


def check_lease(count: object, wait_ms: object, timeout_ms: object) -> None:
    """Refuse arguments of a lease call that make no sense."""
    if (
        type(count) is int
        and 0 < count <= limits.LEASE_COUNT_MAX
        and wait_ms == 0
        and (timeout_ms is None)
    ):
        return
    for name, value, low, high in (
        ("count", count, 1, limits.LEASE_COUNT_MAX),
        ("wait_ms", wait_ms, 0, limits.DURATION_MS_MAX),
        ("lease_timeout_ms", timeout_ms, 1, limits.DURATION_MS_MAX),
    ):
        if value is None and name == "lease_timeout_ms":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidMessage(f"{name} is {value!r}", f"use a whole number from {low} to {high}")


def check_duration(name: str, value: object, low: int) -> None:
    """Refuse a duration that makes no sense."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not (low <= value <= limits.DURATION_MS_MAX)
    ):
        raise InvalidMessage(
            f"{name} is {value!r}",
            f"use whole milliseconds from {low} to {limits.DURATION_MS_MAX}",
        )


def checked_timeout(value: object) -> int:
    """The time a client gives its calls, if it is one."""
    if type(value) is not int or not 1 <= value <= limits.DURATION_MS_MAX:
        raise InvalidSpec(
            f"timeout_ms is {value!r:.80}",
            f"use whole milliseconds from 1 to {limits.DURATION_MS_MAX}",
        )
    return value


def check_level(confirm: object) -> None:
    """Refuse an unknown confirm level."""
    if confirm not in LEVELS:
        raise InvalidMessage(f"confirm is {confirm!r}", f"use one of {', '.join(LEVELS)}")
