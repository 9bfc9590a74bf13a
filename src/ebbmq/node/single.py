"""One message published, leased or acked by a call of its own: what a batch needs is left out.

The outcome is that of `publishing`, `leasing` and `settling`, which take over wherever there is
more to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core.arrivals import HEAD_BYTES, publish_one
from ebbmq.core.envelope import is_plain
from ebbmq.core.facts import ACK, GRANT, PUBLISH, ack_of_one
from ebbmq.core.grants import Grants, lease_one
from ebbmq.core.leases import ack_one
from ebbmq.core.origin import OF_LEVEL
from ebbmq.core.tokens import read_token
from ebbmq.model import Message, Receipt
from ebbmq.node import leasing
from ebbmq.node.keeping import telling
from ebbmq.node.outflow import Delivery, View, lease_of, message_id

if TYPE_CHECKING:
    from ebbmq.model import Lease, Level
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

#: How often it is looked whether bodies are to be read ahead: each time so many were in RAM.
_AHEAD_MASK: Final = 31
#: Larger ones are worth the way of a batch, which does not copy them.
_BODY_BYTES_MAX: Final = 16 * 1024


def publish(engine: Engine, name: str, messages: object, level: Level) -> list[Receipt] | None:
    """Publish one message at level memory or written; None: ask `publishing`."""
    if type(messages) is list and len(messages) == 1:
        messages = messages[0]
    if type(messages) is not Message or messages.delay_ms or not is_plain(messages):
        return None
    body = messages.body
    size = len(body)
    if size > _BODY_BYTES_MAX or type(name) is not str:
        return None
    lock = engine.lock
    lock.acquire()
    try:
        shard = engine.simple.get(name) or _simple(engine, name)
        if shard is None:
            return None
        partition = shard.partition
        journal, pid = engine.journal, partition.pid
        if partition.held or not partition.is_published_simply or journal.failed is not None:
            return None
        engine.admit(HEAD_BYTES + size + limits.RECORD_OVERHEAD_BYTES)
        segment, offset = journal.place(HEAD_BYTES + size)
        now_ms = engine.time_base_ms + engine.clock.elapsed_ms()
        seq, importance, payload = publish_one(
            partition, messages, segment, offset + HEAD_BYTES, now_ms, OF_LEVEL[level]
        )
        if level == "written":
            journal.append_written(PUBLISH, pid, 1, seq, payload)
        else:
            journal.append(PUBLISH, pid, 1, seq, (payload,))
        engine.facts_since_checkpoint += 1
        engine.live += 1
        engine.note_range(segment, pid, seq, 1)
        if engine.holding:
            engine.open_written()
        resident = shard.resident
        if resident.bytes_max:
            resident.admit_one(seq, importance, body)
        engine.announce(shard.queue, 1)
        return [Receipt(message_id(pid, seq))]
    finally:
        lock.release()


def lease(engine: Engine, name: str, timeout_ms: int | None) -> list[Lease] | None:
    """The next message of a queue; None: ask `leasing`."""
    if type(name) is not str:
        return None
    lock = engine.lock
    lock.acquire()
    try:
        shard = engine.simple.get(name) or _simple(engine, name)
        if shard is None:
            return None
        partition, resident = shard.partition, shard.resident
        now_ms = engine.time_base_ms + engine.clock.elapsed_ms()
        nonce = engine.nonces.pop() if engine.nonces else engine.nonce()
        granted = lease_one(partition, timeout_ms, nonce, now_ms)
        if granted is None:
            engine.settle(shard)
            return None
        seq, row, deadline_ms, told = granted
        engine.journal.append_written(GRANT, partition.pid, 1, seq, told)
        engine.facts_since_checkpoint += 1
        if engine.holding:
            engine.open_written()
        payload = resident.take(seq, row[2])
        kept = telling.in_log(engine, shard, now_ms) or telling.kept(engine, shard, [(seq, row)])
        if payload is not None:
            if not resident.hits & _AHEAD_MASK and resident.is_low:
                engine.ask_ahead_if_short(shard)
            how = kept[0] if isinstance(kept, list) else kept
            return [lease_of(partition, seq, row, payload, deadline_ms, nonce, now_ms, how)]
        engine.ask_ahead(shard)
        grants = Grants([seq], [row], deadline_ms, nonce)
        view = View.of(partition, grants, now_ms)
    finally:
        lock.release()
    unread = Delivery(view, grants, [None], kept)  # type: ignore[list-item]  # it is read now
    return leasing.deliver(engine, [(shard, grants)], [unread])


def _simple(engine: Engine, name: str) -> Shard | None:
    """The partition of a queue that has just one and nothing to look at but that."""
    queue = engine.catalog.queues.get(name)
    if queue is None or len(queue.shards) > 1 or engine.closed is not None:
        return None
    shard = queue.shards[0]
    if (
        shard.faulty is not None
        or queue.paused
        or not shard.partition.is_leased_simply
        or engine.devices is not None
        or engine.disk_full
    ):
        return None
    engine.simple[name] = shard
    return shard


def ack(engine: Engine, name: str, token: str) -> bool:
    """Ack one message at level written; False if the token holds no lease."""
    fields = read_token(token)
    if fields is None:
        return False
    pid, seq, _, _, _ = fields
    lock = engine.lock
    lock.acquire()
    try:
        shard = engine.simple.get(name) if type(name) is str else None
        if shard is None or shard.partition.pid != pid:
            engine.check_open()
            shard = engine.catalog.queue(name).by_pid.get(pid)
            if shard is None:
                return False
        partition = shard.partition
        if not ack_one(partition, fields, engine.time_base_ms + engine.clock.elapsed_ms()):
            return False
        engine.journal.append_written(ACK, pid, 1, seq, ack_of_one(seq))
        engine.facts_since_checkpoint += 1
        engine.live -= 1
        if engine.holding:
            engine.open_written()
        if partition.let_go or partition.gone:
            engine.settle(shard)
    finally:
        lock.release()
    return True
