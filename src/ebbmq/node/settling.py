"""Taking leases back: ack, retry, release, extend. Valid tokens apply, the others are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.core.row import READY
from ebbmq.errors import InvalidMessage
from ebbmq.model import LEVELS
from ebbmq.node import outflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.core.partition import Partition, Token
    from ebbmq.node.catalog import Queue
    from ebbmq.node.engine import Engine

    Apply = Callable[[Partition, list[Token], int], list[int]]


def as_tokens(tokens: object) -> list[str]:
    """The tokens of a call, checked to be strings."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise InvalidMessage(
            f"tokens is {type(tokens).__name__}", "give a list of tokens: [lease.token]"
        )
    out = list(tokens)
    for token in out:
        if not isinstance(token, str):
            raise InvalidMessage(
                f"a token is {type(token).__name__}, not str", "give the tokens of your leases"
            )
    return out


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


def check_level(confirm: object) -> None:
    """Refuse an unknown confirm level."""
    if confirm not in LEVELS:
        raise InvalidMessage(f"confirm is {confirm!r}", f"use one of {', '.join(LEVELS)}")


def settle(
    engine: Engine, name: str, tokens: list[str], confirm: str, apply: Apply
) -> tuple[list[str], int]:
    """Apply a verb to the leases of tokens; returns the refused tokens and a position to wait for."""
    parsed = outflow.parse_tokens(tokens)
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        refused = _apply(engine, queue, parsed, apply)
        if confirm != "memory":
            engine.write_now()
        return [tokens[i] for i in refused], engine.journal.position


def _apply(engine: Engine, queue: Queue, parsed: list[Token | None], apply: Apply) -> list[int]:
    now_ms = engine.now_ms()
    groups, refused = _by_partition(queue, parsed)
    for pid, numbers in groups.items():
        shard = queue.by_pid[pid]
        ready = shard.partition.depth[READY]
        # Tokens of one partition are the common case: no need to pick them out one by one.
        mine = parsed if len(numbers) == len(parsed) else [parsed[i] for i in numbers]
        lost = apply(shard.partition, mine, now_ms)  # type: ignore[arg-type]  # Nones were refused
        refused += [numbers[i] for i in lost]
        engine.settle(shard)
        engine.announce(queue, shard.partition.depth[READY] - ready)
    return refused


def _by_partition(
    queue: Queue, parsed: list[Token | None]
) -> tuple[dict[int, range | list[int]], list[int]]:
    first = parsed[0] if parsed else None
    if first is not None and first[0] in queue.by_pid:
        pid = first[0]
        if all(token is not None and token[0] == pid for token in parsed):
            return {pid: range(len(parsed))}, []
    groups: dict[int, list[int]] = {}
    refused: list[int] = []
    for number, token in enumerate(parsed):
        if token is None or token[0] not in queue.by_pid:
            refused.append(number)
        else:
            groups.setdefault(token[0], []).append(number)
    return groups, refused  # type: ignore[return-value]  # lists are fine where ranges are
