"""Taking leases back: ack, retry, release, extend. Valid tokens apply, the others are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core import leases
from ebbmq.core.row import READY
from ebbmq.core.tokens import TOKEN, pack_tokens
from ebbmq.errors import InvalidMessage
from ebbmq.model import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.core.partition import Partition
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine

    #: Applies a verb to packed tokens of one partition; returns the indexes it refused.
    Apply = Callable[[Partition, bytes, int], list[int]]


_STRINGS: Final = frozenset({str})


def as_tokens(tokens: object) -> list[str]:
    """The tokens of a call, checked to be strings."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise InvalidMessage(
            f"tokens is {type(tokens).__name__}", "give a list of tokens: [lease.token]"
        )
    out = list(tokens)
    if out and not _STRINGS.issuperset(map(type, out)):
        raise InvalidMessage(
            f"a token is {next(type(t).__name__ for t in out if type(t) is not str)}, not str",
            "give the tokens of your leases",
        )
    return out


#: What is journaled of a lease that is extended: its row, and room for what failed before.
EXTENDED_BYTES: Final = 256


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


def ack(partition: Partition, packed: bytes, now_ms: int) -> list[int]:
    """Verb: see `core.leases.ack`."""
    return leases.ack(partition, packed, now_ms)


def retry(delay_ms: int | None) -> Apply:
    """Verb: see `core.leases.retry`."""
    return lambda partition, packed, now_ms: leases.retry(
        partition, TOKEN.iter_unpack(packed), delay_ms, now_ms
    )


def release(partition: Partition, packed: bytes, now_ms: int) -> list[int]:
    """Verb: see `core.leases.release`."""
    return leases.release(partition, TOKEN.iter_unpack(packed), now_ms)


def extend(timeout_ms: int) -> Apply:
    """Verb: see `core.leases.extend`."""
    return lambda partition, packed, now_ms: leases.extend(
        partition, TOKEN.iter_unpack(packed), timeout_ms, now_ms
    )


def settle(
    engine: Engine, name: str, tokens: list[str], confirm: str, apply: Apply, fact_bytes: int = 0
) -> tuple[list[str], int]:
    """Apply a verb to leases; returns the refused tokens and a position to wait for.

    `fact_bytes` are what the journal must have room for of each, where the verb counts only then.
    """
    packed = pack_tokens(tokens)
    with engine.lock:
        if engine.closed is not None:
            engine.check_open()
        if fact_bytes and engine.disk_full:
            engine.check_space_for_leases(len(tokens), fact_bytes)
        queue = engine.catalog.queue(name)
        written = confirm != "memory"
        if packed is not None and _are_all_of(queue.shards, packed):
            refused = _one_partition(engine, queue, packed, apply, written=written)
        else:
            refused = _several(engine, queue, tokens, apply)
        if written:
            engine.write_now()
        return [tokens[i] for i in refused], engine.journal.position


def _are_all_of(shards: Sequence[Shard], packed: bytes) -> bool:
    """Whether a queue has one partition and tokens are all of that."""
    if len(shards) > 1:
        return False
    count, wanted = len(packed) // TOKEN.size, shards[0].partition.pid.to_bytes(4, "big")
    return all(packed[at :: TOKEN.size] == wanted[at : at + 1] * count for at in range(4))


def _one_partition(
    engine: Engine, queue: Queue, packed: bytes, apply: Apply, *, written: bool
) -> list[int]:
    """Tokens of the only partition; what they leave may be written at once."""
    shard = queue.shards[0]
    partition = shard.partition
    ready = partition.depth[READY]
    refused = apply(partition, packed, engine.now_ms())
    engine.settle(shard, written=written)
    if partition.depth[READY] > ready:
        engine.announce(queue, partition.depth[READY] - ready)
    return refused


def _several(engine: Engine, queue: Queue, tokens: Sequence[str], apply: Apply) -> list[int]:
    """Tokens of several partitions, or with some that are not tokens at all."""
    groups: dict[int, list[int]] = {}
    refused: list[int] = []
    for number, token in enumerate(tokens):
        packed = pack_tokens([token])
        pid = int.from_bytes(packed[:4], "big") if packed else -1
        if pid in queue.by_pid:
            groups.setdefault(pid, []).append(number)
        else:
            refused.append(number)
    now_ms = engine.now_ms()
    for pid, numbers in groups.items():
        shard = queue.by_pid[pid]
        ready = shard.partition.depth[READY]
        mine = pack_tokens([tokens[i] for i in numbers])
        assert mine is not None
        refused += [numbers[i] for i in apply(shard.partition, mine, now_ms)]
        engine.settle(shard)
        engine.announce(queue, shard.partition.depth[READY] - ready)
    return sorted(refused)
