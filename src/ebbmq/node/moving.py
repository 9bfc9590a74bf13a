"""Moving messages between queues: to the dead queue, and back from it (redrive).

A move is one GROUP record, the publish and the removal together, so a crash leaves the message in
exactly one of the two queues.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core import arrivals, envelope, lifecycle, origin
from ebbmq.core import facts as fact
from ebbmq.core.row import (
    DURABLE,
    DYING,
    ELSEWHERE,
    HIGH,
    LOW48,
    PRIVILEGED,
    RATE_UNIT,
    READY,
    TOPIC,
)
from ebbmq.errors import ClientError, DamagedRecord, StorageFailed
from ebbmq.model import REASON_TEXT, Message, Reason
from ebbmq.node import declaring, intake, outflow, publishing
from ebbmq.node.keeping.prefetching import BodyElsewhere
from ebbmq.node.levels import COPIED, WRITTEN
from ebbmq.node.log import log
from ebbmq.plain import is_int, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.core.partition import Move, Partition, Row
    from ebbmq.model import Headers
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine

REASON: Final = "x-ebbmq-reason"
SOURCE: Final = "x-ebbmq-source"
SOURCE_ID: Final = "x-ebbmq-source-id"
AT_MS: Final = "x-ebbmq-at-ms"
FAILURES: Final = "x-ebbmq-failures"
#: What the message had before it was dead, and has again when it is redriven.
TTL_MS: Final = "x-ebbmq-ttl-ms"
DECAY_RATE: Final = "x-ebbmq-decay-rate"
ADDED: Final = (REASON, SOURCE, SOURCE_ID, AT_MS, FAILURES, TTL_MS, DECAY_RATE)


def to_dead_queue(engine: Engine, shard: Shard, moves: Sequence[Move]) -> None:
    """Move DYING messages; those the dead queue refuses stay and are tried again (lock is held)."""
    partition = shard.partition
    spec = shard.queue.spec
    now_ms = engine.now_ms()
    for move in moves:
        row = partition.index.read(move.seq)
        if row is None or row[0] != DYING:
            continue
        try:
            target = declaring.dead_queue_of(engine, spec)
            if target is None:
                partition.remove([(move.seq, row)], move.reason, now_ms)
                engine.settle(shard)
                continue
            _move(engine, shard, target, move.seq, row, move.reason)
        except BodyElsewhere:
            lifecycle.postpone_move(partition, move.seq, now_ms)
        except (ClientError, StorageFailed) as error:
            if isinstance(error, StorageFailed) and not isinstance(error, DamagedRecord):
                raise
            log.warning(
                "dead_queue_refused",
                message=outflow.message_id(partition.pid, move.seq),
                dead_queue=spec.dead_queue,
                detail=error.detail,
            )
            lifecycle.postpone_move(partition, move.seq, now_ms)


def _move(engine: Engine, source: Shard, target: Queue, seq: int, row: Row, reason: Reason) -> None:
    """Publish a copy in the target and remove the original, as one record."""
    payload = _payload(engine, source, seq, row)
    if payload is None:
        gone = Reason.DAMAGED
        source.partition.remove([(seq, row)], gone, engine.now_ms())
        engine.settle(source)
        return
    size = row[7] >> HIGH
    read = envelope.unpack(payload[:size]) if size else envelope.EMPTY
    message = _message(engine, source, seq, row, (read, payload[size:]), reason)
    history = envelope.last_timings(read.history, source.partition.history(seq))
    # How it was published stays with it.
    batch = intake.pack(
        [message], [history], read.client, origin.level_of(row[3]), topic=bool(row[3] & TOPIC)
    )
    healthy = target.healthy() or [publishing.usable(target, target.shards[0])]
    goal = healthy[target.next_shard % len(healthy)]
    target.next_shard += 1
    publishing.check_room(goal, 1, batch.body_bytes, batch.body_bytes)
    engine.keeping.check(target.spec)
    now_ms = engine.now_ms()
    sizes = [fact.publish_bytes(1, batch.body_bytes), fact.REMOVAL.size]
    head = fact.group_head_bytes(2)
    # A move frees the reserve of the message it removes, so it needs no more than it gives back.
    engine.admit(head + sum(sizes), leaving=1)
    segment, offset = engine.journal.place(head + sum(sizes))
    first = goal.partition.index.next_seq
    bodies_at = offset + head + fact.publish_bytes(1, 0)
    flags = publishing.privilege(engine, goal, batch) | row[1] & PRIVILEGED
    # A rate that a message had before was multiplied when it was published; once is enough.
    with _factor(goal.partition, 1.0 if message.decay_rate is not None else None):
        runs = arrivals.publish(goal.partition, batch, now_ms, segment, bodies_at, flags=flags)
    published = goal.partition.facts.pop()
    source.partition.remove([(seq, row)], reason, now_ms, [(goal.partition.pid, first)])
    removed = source.partition.facts.pop()
    position = engine.append([fact.group([published, removed], sizes)])
    engine.note_range(segment, goal.partition.pid, first, 1)
    engine.removals.note(removed.parts[0], position)
    if reason is not Reason.REDRIVEN:
        _count_dead(source.partition.totals, reason)
    publishing.admit_bodies(goal, first, batch.payloads, runs)
    level = WRITTEN
    if engine.devices is not None and engine.keeping.place(
        goal, first, batch, position, called=False
    ):
        level += COPIED
    engine.open_or_hold(goal, level, position, runs)
    engine.settle(source)


def _count_dead(totals: dict[str, int], reason: Reason) -> None:
    for key in ("dead_lettered", f"dead_lettered_{REASON_TEXT[reason]}"):
        totals[key] = totals.get(key, 0) + 1


@contextlib.contextmanager
def _factor(partition: Partition, factor: float | None) -> Iterator[None]:
    """Have another decay factor for a while; None: the one it has."""
    before = partition.factor
    partition.set_factor(before if factor is None else factor)
    try:
        yield
    finally:
        partition.set_factor(before)


def _payload(engine: Engine, shard: Shard, seq: int, row: Row) -> bytes | None:
    payload = shard.resident.get(seq, row[2])
    if payload is not None:
        return payload
    if row[1] & ELSEWHERE:
        return engine.keeping.brought(shard, seq)
    try:
        payload = engine.journal.read(row[9], row[10], row[11])
    except DamagedRecord:
        return None
    return payload if outflow.is_intact(payload, row) else None


def _message(
    engine: Engine,
    shard: Shard,
    seq: int,
    row: Row,
    stored: tuple[envelope.Envelope, bytes],
    reason: Reason,
) -> Message:
    """The message as it goes to the other queue: what it was, and to a dead queue why."""
    read, body = stored
    told = envelope.headers_of(read)
    headers = {k: v for k, v in told.items() if k not in ADDED}
    # A dead letter waits for people: no TTL, no decay, until it is redriven.
    terms: tuple[int | None, float | None] = None, 0.0
    if reason is Reason.REDRIVEN:
        terms = _terms(told, row)
    else:
        headers |= _told_terms(shard, row) if SOURCE not in told else _kept_terms(told)
        headers |= {
            REASON: REASON_TEXT[reason],
            SOURCE: shard.queue.spec.name,
            SOURCE_ID: outflow.message_id(shard.partition.pid, seq),
            AT_MS: str(engine.now_ms()),
            FAILURES: str(row[5] >> HIGH),
        }
    return Message(
        body,
        importance=row[2],
        ttl_ms=terms[0],
        decay_rate=terms[1],
        headers=headers,
        key=read.key,
        store=read.store,
        replicas=read.replicas,
        durable=bool(row[1] & DURABLE),
        type=read.type,
    )


def _told_terms(shard: Shard, row: Row) -> dict[str, str]:
    """The TTL and the rate of a message as headers; a rate of 0 where it is not the usual one."""
    ttl_ms, rate = _own_terms(row)
    out = {} if ttl_ms is None else {TTL_MS: str(ttl_ms)}
    return out | ({DECAY_RATE: str(rate)} if rate or shard.queue.spec.decay_rate else {})


def _kept_terms(told: Headers) -> dict[str, str]:
    return {name: told[name] for name in (TTL_MS, DECAY_RATE) if name in told}


def _own_terms(row: Row) -> tuple[int | None, float]:
    dead = row[6] & LOW48
    return dead - (row[5] & LOW48) if dead else None, row[4] / RATE_UNIT


def _terms(told: Headers, row: Row) -> tuple[int | None, float | None]:
    """The TTL and the rate a message is redriven with; None is what its queue gives.

    Headers are anybody's to publish, so what they say is taken only where it makes sense.
    """
    if SOURCE not in told:
        return _own_terms(row)
    ttl_ms = rate = None
    with contextlib.suppress(ValueError):
        ttl_ms = int(told.get(TTL_MS, ""))
    with contextlib.suppress(ValueError):
        rate = float(told.get(DECAY_RATE, ""))
    return (
        ttl_ms if is_int(ttl_ms, 1, limits.DURATION_MS_MAX) else None,
        rate if is_number(rate, 0, 1) else None,
    )


def redrive_one(engine: Engine, source: Shard, target: Queue, seq: int) -> bool:
    """Move a ready message of a dead queue back to work (the lock is held)."""
    row = source.partition.index.read(seq)
    if row is None or row[0] != READY:
        return False
    _move(engine, source, target, seq, row, Reason.REDRIVEN)
    return True
