"""Looking at messages without leasing them, by state, by id, or one as it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from ebbmq import limits
from ebbmq.core.row import ELSEWHERE, LEASED, PRIVILEGED, READY
from ebbmq.errors import InvalidMessage
from ebbmq.node import outflow
from ebbmq.node.keeping import telling
from ebbmq.node.keeping.reading import AWAY
from ebbmq.node.leasing import OWN, check_lease, read_bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.core.partition import Row
    from ebbmq.model import Peeked
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.leasing import Consumer

STATES: Final = {"ready": READY, "leased": LEASED, "scheduled": 1, "replicating": 2, "dying": 5}


class Between(NamedTuple):
    """Messages of one partition by the order they came in: after one id, up to another.

    One of the two is given, or both; ids of two partitions have nothing between them.
    """

    after: str | None = None
    up_to: str | None = None


def check_choice(where: object) -> None:
    """Refuse what cannot choose among messages."""
    if where is not None and not callable(where):
        raise InvalidMessage(
            f"where is {type(where).__name__}", "use a function of a message, lambda m: .., or None"
        )


def peek(  # noqa: PLR0913  # what a caller may say about what to show
    engine: Engine,
    name: str,
    count: int,
    state: str,
    where: Callable[[Peeked], bool] | None,
    bytes_max: int | None = None,
    *,
    counted: bool = False,
    consumer: Consumer = OWN,
    between: Between | None = None,
) -> list[Peeked]:
    """Look at messages in delivery order (ready) or in order of arrival (other states).

    Args:
        engine: the engine.
        name: the queue's name.
        count: most messages to return.
        state: the state they are in.
        where: which of them to return; None returns all.
        bytes_max: most bytes of bodies to return together, but always one message.
        counted: whether to look is an access.
        consumer: who looks.
        between: which ids, in order of arrival whatever the state; for who looks at all, in parts.
    """
    if state not in STATES:
        raise InvalidMessage(f"state is {state!r}", f"use one of {', '.join(STATES)}")
    if counted and where is not None:
        raise InvalidMessage("a counted peek cannot choose with where", "leave one of them out")
    check_lease(count, 0, None)
    check_choice(where)
    out: list[Peeked] = []
    shown: list[tuple[Shard, int]] = []
    most = count if where is None else limits.LEASE_COUNT_MAX
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        now_ms = engine.now_ms()
        if between is not None:
            chosen = _arrived(queue, most, STATES[state], between, consumer)
        else:
            chosen = [
                (shard, seq)
                for shard in queue.shards
                if shard.faulty is None
                for seq in _shown(shard, most, state, now_ms, consumer)
            ]
    total = 0
    for shard, seq in chosen:
        if len(out) >= count:
            break
        found = look(engine, shard, seq)
        if found is not None and found.state == state and (where is None or where(found)):
            total += len(found.body)
            if out and bytes_max is not None and total > bytes_max:
                break
            out.append(found)
            shown.append((shard, seq))
    if counted:
        with engine.lock:
            if engine.keeping.counts_reads(queue.shards[0]):
                engine.keeping.count_looks(shown)
    return out


def _shown(shard: Shard, count: int, state: str, now_ms: int, consumer: Consumer) -> list[int]:
    """Messages in a state that a consumer may be shown (the lock is held)."""
    seqs = _seqs(shard, count, state, now_ms)
    if consumer.privileged:
        return seqs
    read = shard.partition.index.read
    allowed = [seq for seq in seqs if (row := read(seq)) and not row[1] & PRIVILEGED]
    if len(allowed) < len(seqs) and count < limits.LEASE_COUNT_MAX:
        return _shown(shard, limits.LEASE_COUNT_MAX, state, now_ms, consumer)
    return allowed


def _arrived(
    queue: Queue, count: int, state: int, between: Between, consumer: Consumer
) -> list[tuple[Shard, int]]:
    """Messages in a state by the order they came in (the lock is held)."""
    found = [_place(text) for text in between if text is not None]
    shard = queue.by_pid.get(found[0][0])
    if shard is None or shard.faulty is not None or len({pid for pid, _ in found}) > 1:
        return []
    after = -1 if between.after is None else found[0][1]
    out: list[tuple[Shard, int]] = []
    index = shard.partition.index
    for seq in index.live_after(after, state):
        if (between.up_to is not None and seq > found[-1][1]) or len(out) >= count:
            break
        row = index.read(seq)
        if row is not None and (consumer.privileged or not row[1] & PRIVILEGED):
            out.append((shard, seq))
    return out


def _place(identity: str) -> tuple[int, int]:
    parsed = outflow.parse_id(identity)
    if parsed is None:
        raise InvalidMessage(
            f"{identity!r:.80} is not a message id", "ids look like 1-2f, as receipts show them"
        )
    return parsed


def look(engine: Engine, shard: Shard, seq: int, *, moving: bool = False) -> Peeked | None:
    """One message as it is now; None if it is gone or cannot be read (the lock is free).

    With `moving`, a body that was fetched from a device is kept for the move that follows.
    """
    with engine.lock:
        row = shard.partition.index.read(seq)
        payload = shard.resident.get(seq, row[2]) if row else None
        if row is not None and payload is not None:
            return _seen(engine, shard, seq, row, payload)
    if row is None:
        return None
    read = read_bodies(engine, shard, [seq])[0]
    if read is None or read is AWAY:
        return None
    with engine.lock:
        # It may have changed, or left, while its body was read.
        row = shard.partition.index.read(seq)
        if row is None:
            return None
        if moving and row[1] & ELSEWHERE and engine.keeping.fetcher is not None:
            engine.keeping.fetcher.keep(shard, seq, read)
        return _seen(engine, shard, seq, row, read)


def _seen(engine: Engine, shard: Shard, seq: int, row: Row, payload: bytes) -> Peeked:
    """A message as it is shown (the lock is held)."""
    seen = outflow.peeked(shard.partition, seq, row, payload, engine.now_ms())
    return replace(seen, kept=telling.kept(engine, shard, [(seq, row)])[0])


def first_ready(shard: Shard, count: int, now_ms: int) -> list[int]:
    """The messages that are next for who may have everything (the lock is held)."""
    partition = shard.partition
    if partition.aside is not None:
        partition.put_back(partition.aside.pop(count, now_ms), now_ms)
    return partition.order.peek(count, now_ms)


def _seqs(shard: Shard, count: int, state: str, now_ms: int) -> list[int]:
    partition = shard.partition
    if state == "ready":
        return first_ready(shard, count, now_ms)
    wanted = STATES[state]
    if state == "replicating":
        held = [run for _, _, runs in partition.held for run in runs]
        return [run.first + i for run in held for i in range(run.length)][:count]
    out: list[int] = []
    for page, slots in partition.index.live_seqs():
        for slot in slots.tolist():
            seq = page.number * limits.PAGE_ROWS + slot
            if partition.index.state_of(seq) == wanted:
                out.append(seq)
                if len(out) >= count:
                    return out
    return out
