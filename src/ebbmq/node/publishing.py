"""Taking messages in: route, refuse duplicates and overflow, find a place, append, hold."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from ebbmq import limits
from ebbmq.core import arrivals
from ebbmq.core import facts as fact
from ebbmq.core.copies import name_of
from ebbmq.core.row import DYING, PRIVILEGED, SHARED
from ebbmq.errors import InvalidMessage, Overloaded, QueueFull, StorageFailed
from ebbmq.model import Message, Receipt
from ebbmq.node import intake
from ebbmq.node.levels import COPIED, RANK
from ebbmq.policy.privilege import is_privileged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.arrivals import Batch, Run
    from ebbmq.model import Level, TopicSpec
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine


def publish(
    engine: Engine, name: str, messages: object, confirm: str | None, client: str | None = None
) -> tuple[list[Receipt], Level, int]:
    """Take messages into a queue; returns receipts that hold once (level, position) does.

    Without a client they are the node's own, as what is published in its process is.
    """
    checked = intake.as_messages(messages)
    level = intake.level_of(confirm, checked)
    batch = intake.pack(checked, client=other_than_own(engine, client), qos=level)
    receipts, position = store(engine, name, batch, level)
    return receipts, level, position


def other_than_own(engine: Engine, client: str | None) -> str | None:
    """A client's name where it is worth noting: the node's own is not."""
    return None if client == engine.config.client else client


def store(engine: Engine, name: str, batch: Batch, level: Level) -> tuple[list[Receipt], int]:
    """Take a batch into a queue; returns receipts that hold once the position does."""
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        engine.keeping.check(queue.spec)
        receipts = _into_queue(engine, queue, batch, RANK[level])
        if level == "written":
            engine.write_now()
        engine.keeping.confirming.note_call(engine.journal.position)
        return receipts, engine.journal.position


def _into_queue(engine: Engine, queue: Queue, batch: Batch, level: int) -> list[Receipt]:
    """Store a batch as a whole or, refusing it, nothing of it."""
    if len(queue.shards) == 1:
        shard = usable(queue, queue.shards[0])
        check_room(shard, *_fresh(engine, shard, batch), _largest(shard, batch))
        engine.admit(_stored_bytes(batch))
        return into_shard(engine, shard, batch, level)
    parts = {
        shard: (chosen, intake.select(batch, chosen))
        for shard, chosen in _route(queue, batch.messages).items()
    }
    for shard, (_, part) in parts.items():
        check_room(shard, *_fresh(engine, shard, part), _largest(shard, part))
    engine.admit(sum(_stored_bytes(part) for _, part in parts.values()))
    receipts: list[Receipt | None] = [None] * len(batch.messages)
    for shard, (chosen, part) in parts.items():
        for number, receipt in zip(chosen, into_shard(engine, shard, part, level), strict=True):
            receipts[number] = receipt
    return [receipt for receipt in receipts if receipt is not None]


def _fresh(engine: Engine, shard: Shard, batch: Batch) -> tuple[int, int]:
    """How many messages and bytes of a batch need room: what is stored already needs none."""
    spec = shard.queue.spec
    if not batch.has_ids or not (spec.max_messages or spec.max_bytes):
        return len(batch.messages), batch.body_bytes
    now_ms = engine.now_ms()
    dedup = shard.partition.dedup
    sizes = [
        len(payload)
        for message, payload in zip(batch.messages, batch.payloads, strict=True)
        if message.id is None or not dedup.find(message.id, now_ms)
    ]
    return len(sizes), sum(sizes)


def _stored_bytes(batch: Batch) -> int:
    """At most what a batch takes in the journal, however it is cut into records."""
    count = len(batch.messages)
    records = 1 + count // limits.RECORD_ROWS_MAX + batch.body_bytes // limits.RECORD_BYTES_MAX
    return fact.publish_bytes(count, batch.body_bytes) + 2 * records * limits.RECORD_OVERHEAD_BYTES


def _route(queue: Queue, messages: Sequence[Message]) -> dict[Shard, list[int]]:
    """Which messages go to which partition: by key, by producer's id, else in turn (ADR 0037)."""
    healthy = queue.healthy()
    if not healthy:
        usable(queue, queue.shards[0])
    turn = healthy[queue.next_shard % len(healthy)]
    queue.next_shard += 1
    routes: dict[Shard, list[int]] = {}
    for number, message in enumerate(messages):
        tag = message.key or message.id
        shard = turn
        if tag is not None:
            shard = usable(queue, queue.shards[crc32(tag.encode()) % len(queue.shards)])
        routes.setdefault(shard, []).append(number)
    return routes


def usable(queue: Queue, shard: Shard) -> Shard:
    """A shard that takes requests.

    Raises:
        StorageFailed: it is faulty.
    """
    if shard.faulty is not None:
        raise StorageFailed(
            f"partition {shard.partition.pid:x} of queue {queue.spec.name!r} is faulty: "
            f"{shard.faulty}",
            "run `ebbmq doctor` on the data directory, `--accept-damage` to go on without what "
            "cannot be read; the other partitions go on",
            code="partition_faulty",
        )
    return shard


def into_shard(engine: Engine, shard: Shard, batch: Batch, level: int) -> list[Receipt]:
    """Take a batch into one partition (the lock is held)."""
    now_ms = engine.now_ms()
    if batch.has_ids:
        return _deduplicated(engine, shard, batch, level, now_ms)
    return _append_all(engine, shard, batch, level, now_ms)


def _deduplicated(
    engine: Engine, shard: Shard, batch: Batch, level: int, now_ms: int
) -> list[Receipt]:
    """Store each producer's id once; a repeated one gets the receipt of the first."""
    dedup = shard.partition.dedup
    known: dict[int, int] = {}
    fresh: list[int] = []
    first_here: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for number, message in enumerate(batch.messages):
        name = message.id
        if name is None:
            fresh.append(number)
        elif seq := dedup.find(name, now_ms):
            known[number] = seq
        elif name in first_here:
            repeats[number] = first_here[name]
        else:
            first_here[name] = number
            fresh.append(number)
    pid = shard.partition.pid
    engine.keeping.confirming.repeat(name_of(pid, seq) for seq in known.values())
    prefix = f"{pid:x}-"
    receipts: dict[int, Receipt] = {
        number: Receipt(f"{prefix}{seq:x}", True) for number, seq in known.items()
    }
    if fresh:
        stored = _append_all(engine, shard, intake.select(batch, fresh), level, now_ms)
        for number, receipt in zip(fresh, stored, strict=True):
            receipts[number] = receipt
            name = batch.messages[number].id
            if name is not None:
                dedup.add(name, int(receipt.id[len(prefix) :], 16), now_ms)
    for number, original in repeats.items():
        receipts[number] = Receipt(receipts[original].id, True)
    return [receipts[number] for number in range(len(batch.messages))]


def _append_all(
    engine: Engine, shard: Shard, batch: Batch, level: int, now_ms: int
) -> list[Receipt]:
    receipts: list[Receipt] = []
    prefix = f"{shard.partition.pid:x}-"
    for part in intake.records(batch):
        first = _append(engine, shard, part, level, now_ms)
        receipts += [
            Receipt(f"{prefix}{seq:x}") for seq in range(first, first + len(part.messages))
        ]
    engine.trim(shard)
    return receipts


def _largest(shard: Shard, batch: Batch) -> int:
    """The bytes of the largest message of a batch, where they matter."""
    return max(map(len, batch.payloads), default=0) if shard.queue.spec.max_bytes else 0


def check_room(shard: Shard, count: int, body_bytes: int, largest: int) -> None:
    """Refuse what a bounded queue has no room for.

    Raises:
        QueueFull: max_messages or max_bytes is reached and the policy is to reject, or by those
            that the dead queue refuses; or one message is larger than all that the queue may hold:
            nothing else would be left of it.
        Overloaded: the queue keeps its bodies in RAM only and its cache is full.
    """
    spec = shard.queue.spec
    if spec.max_messages or spec.max_bytes:
        _check_bounds(shard, count, body_bytes, largest)
    if not spec.page_to_disk and not shard.resident.has_room(body_bytes, count):
        raise Overloaded(
            f"queue {spec.name!r} keeps bodies in RAM (page_to_disk=False) and its "
            f"{spec.cache_bytes} bytes are used up",
            "consume, raise cache_bytes, or allow page_to_disk",
            code="cache_full",
        )


def _check_bounds(shard: Shard, count: int, body_bytes: int, largest: int) -> None:
    spec, partition = shard.queue.spec, shard.partition
    messages_max, bytes_max = partition.bounds()
    if bytes_max and largest > bytes_max:
        raise QueueFull(
            f"a message takes {largest} bytes, partitions of {spec.name!r} hold {bytes_max}",
            "raise max_bytes, or store the body elsewhere and publish a reference to it",
        )
    if not count:
        return
    if spec.overflow != "reject":
        _check_dying(shard, messages_max, bytes_max)
        return
    if messages_max and partition.live() + count > messages_max:
        raise QueueFull(
            f"queue {spec.name!r} holds {partition.live()} of {messages_max} messages",
            "consume, raise max_messages, or choose another overflow policy",
        )
    if bytes_max and partition.body_bytes + body_bytes > bytes_max:
        raise QueueFull(
            f"queue {spec.name!r} holds {partition.body_bytes} of {bytes_max} bytes",
            "consume, raise max_bytes, or choose another overflow policy",
        )


def _check_dying(shard: Shard, messages_max: int | None, bytes_max: int | None) -> None:
    """Refuse more while as much as the queue may hold waits for a dead queue that is full."""
    spec, partition = shard.queue.spec, shard.partition
    dying = partition.depth[DYING]
    if not dying:
        return
    if dying >= (messages_max or dying + 1) or partition.dying_bytes >= (
        bytes_max or partition.dying_bytes + 1
    ):
        raise QueueFull(
            f"{dying} messages of queue {spec.name!r} wait for its dead queue "
            f"{spec.dead_queue!r}, which does not take them",
            "consume or redrive the dead queue, or raise its bounds",
        )


def _append(engine: Engine, shard: Shard, batch: Batch, level: int, now_ms: int) -> int:
    """One journal record; returns the first message number."""
    partition = shard.partition
    count = len(batch.messages)
    payload_bytes = fact.publish_bytes(count, batch.body_bytes)
    segment, offset = engine.journal.place(payload_bytes)
    first = partition.index.next_seq
    bodies_at = offset + fact.publish_bytes(count, 0)
    flags = privilege(engine, shard, batch)
    runs = arrivals.publish(partition, batch, now_ms, segment, bodies_at, flags=flags)
    position = engine.append(partition.facts)
    partition.facts.clear()
    admit_bodies(shard, first, batch.payloads, runs)
    if engine.devices is not None and engine.keeping.place(shard, first, batch, position):
        level += COPIED
    engine.open_or_hold(shard, level, position, runs)
    return first


def privilege(engine: Engine, shard: Shard, batch: Batch) -> int:
    """The flag of rows whose publisher is privileged in a queue; else none."""
    patterns = shard.queue.spec.privileged
    if patterns and is_privileged(batch.client or engine.config.client, patterns):
        return PRIVILEGED
    return 0


def admit_bodies(shard: Shard, first: int, payloads: list[bytes], runs: list[Run]) -> None:
    """Keep published bodies in RAM as far as they pay."""
    if not shard.resident.bytes_max:
        return
    if len(runs) == 1 and runs[0].length == len(payloads):
        importances = [runs[0].known.importance] * len(payloads)
    else:
        read = shard.partition.index.read
        importances = [row[2] if (row := read(first + i)) else 0 for i in range(len(payloads))]
    shard.resident.admit_many(first, importances, payloads)


def publish_topic(
    engine: Engine, name: str, messages: object, confirm: str | None, client: str | None = None
) -> tuple[dict[str, list[Receipt]], Level, int]:
    """Take messages into every queue subscribed to a topic: one body, one row each, all or none."""
    checked = intake.as_messages(messages)
    level = intake.level_of(confirm, checked)
    with engine.lock:
        engine.check_open()
        topic = engine.catalog.topic(name)
        aged = [_aged(message, topic.spec) for message in checked]
        batch = intake.pack(aged, client=other_than_own(engine, client), qos=level, topic=True)
        queues = [engine.catalog.queue(subscribed) for subscribed in topic.queues]
        shards = [_one_shard(queue) for queue in queues]
        receipts: dict[str, list[Receipt]] = {queue.spec.name: [] for queue in queues}
        for shard in shards:
            engine.keeping.check(shard.queue.spec)
            check_room(shard, len(batch.messages), batch.body_bytes, _largest(shard, batch))
        engine.admit(_stored_bytes(batch) * max(1, len(shards)))
        for part in intake.records(batch) if shards else ():
            firsts = _append_shared(engine, shards, part, RANK[level])
            for shard, first in zip(shards, firsts, strict=True):
                prefix = f"{shard.partition.pid:x}-"
                receipts[shard.queue.spec.name] += [
                    Receipt(f"{prefix}{first + i:x}") for i in range(len(part.messages))
                ]
        for shard in shards:
            engine.trim(shard)
        if level == "written":
            engine.write_now()
        engine.keeping.confirming.note_call(engine.journal.position)
        return receipts, level, engine.journal.position


def _one_shard(queue: Queue) -> Shard:
    """The partition a topic's batch goes to, in turn."""
    healthy = queue.healthy() or [usable(queue, queue.shards[0])]
    queue.next_shard += 1
    return healthy[queue.next_shard % len(healthy)]


def _aged(message: Message, topic: TopicSpec) -> Message:
    """A message that ends with its topic's max_age at the latest."""
    if message.id is not None:
        raise InvalidMessage(
            "a topic does not deduplicate producers' ids", "publish to a queue, or leave id out"
        )
    if topic.max_age_ms is None or (message.ttl_ms and message.ttl_ms <= topic.max_age_ms):
        return message
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return Message(**{**fields, "ttl_ms": topic.max_age_ms})


def _append_shared(engine: Engine, shards: Sequence[Shard], batch: Batch, level: int) -> list[int]:
    """One GROUP record: the first part holds the bodies, the rows of all parts point there."""
    count = len(batch.messages)
    now_ms = engine.now_ms()
    sizes = [fact.publish_bytes(count, 0)] * len(shards)
    sizes[0] += batch.body_bytes
    head = fact.group_head_bytes(len(shards))
    segment, offset = engine.journal.place(head + sum(sizes))
    bodies_at = offset + head + fact.publish_bytes(count, 0)
    firsts: list[int] = []
    all_runs: list[list[Run]] = []
    parts: list[fact.Fact] = []
    for number, shard in enumerate(shards):
        firsts.append(shard.partition.index.next_seq)
        flags = privilege(engine, shard, batch) | (SHARED if len(shards) > 1 else 0)
        all_runs.append(
            arrivals.publish(shard.partition, batch, now_ms, segment, bodies_at, flags=flags)
        )
        told = shard.partition.facts.pop()
        parts.append(told if number == 0 else told._replace(parts=told.parts[:2]))
    position = engine.append([fact.group(parts, sizes)])
    for shard, first in zip(shards, firsts, strict=True):
        engine.note_range(segment, shard.partition.pid, first, count)
    engine.live += count * len(shards)
    if len(shards) > 1:
        _share(engine, segment, bodies_at, batch, len(shards))
    for shard, first, runs in zip(shards, firsts, all_runs, strict=True):
        admit_bodies(shard, first, batch.payloads, runs)
        held_for = level
        if engine.devices is not None and engine.keeping.place(shard, first, batch, position):
            held_for += COPIED
        engine.open_or_hold(shard, held_for, position, runs)
    return firsts


def _share(engine: Engine, segment: int, offset: int, batch: Batch, count: int) -> None:
    for payload in batch.payloads:
        if payload:
            engine.sharing.share(segment << 32 | offset, count)
        offset += len(payload)
    engine.shared_bytes[segment] = engine.shared_bytes.get(segment, 0) + batch.body_bytes
