"""Declaring and deleting queues, topics, subscriptions; each change is one META fact of it all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core.copies import LOG
from ebbmq.core.dedup import Dedup
from ebbmq.core.partition import Partition
from ebbmq.core.rebuild import rebuild
from ebbmq.core.row import LEASED
from ebbmq.errors import InvalidSpec, QueueDiffers
from ebbmq.model import QueueSpec, Reason, TopicSpec, check_spec
from ebbmq.node.catalog import DeclaredTopic, Queue, Shard
from ebbmq.node.log import log
from ebbmq.node.noting import catalog_bytes, recorded
from ebbmq.plain import is_int, is_number, is_text, plain
from ebbmq.spelling import get_close_matches

if TYPE_CHECKING:
    from ebbmq.holding.resident import Resident
    from ebbmq.model import Fields
    from ebbmq.node.engine import Engine

S = TypeVar("S", QueueSpec, TopicSpec)

#: Later instants do not fit beside a message.
_INSTANT_MS_MAX: Final = (1 << 48) - 1
#: More than is kept of a queue that was deleted.
_DELETED_BYTES_MAX: Final = 4 * limits.KIB
#: What a message takes in the journal that leaves, and whose copies are to be forgotten.
_REMOVED_BYTES: Final = fact.REMOVAL.size + 24


def apply_factor(queue: Queue, factor: float, until_ms: int, run: str, now_ms: int) -> None:
    """Use a fleet-wide decay factor for messages published until an instant."""
    for shard in queue.shards:
        shard.partition.set_external_factor(factor, until_ms, run, now_ms)


def use_factors(engine: Engine, queue: Queue, now_ms: int) -> None:
    """Have partitions that were put together anew use the fleet's decay factor and their own."""
    told = engine.catalog.factors.get(queue.spec.name)
    if told is not None:
        apply_factor(queue, *told, now_ms)
    for shard in queue.shards:
        shard.partition.refresh_factor(now_ms)


def check_instant(field: str, instant_ms: object) -> None:
    """See that it is an instant.

    Raises:
        InvalidSpec: it is none, or too late to be kept.
    """
    if not is_int(instant_ms, 0, _INSTANT_MS_MAX):
        raise InvalidSpec(
            f"{field} is {instant_ms!r:.80}", "give an instant in whole milliseconds: int(..)"
        )


def checked_factor(factor: float, until_ms: int, run: str) -> tuple[float, str]:
    """A decay factor and its run, as they are kept.

    Raises:
        InvalidSpec: one of the three cannot be.
    """
    factor, run = plain(factor), plain(run)
    if not is_number(factor, 0, sys.float_info.max) or not factor:
        raise InvalidSpec(f"factor is {factor!r:.80}", "use a positive number, 1 for none")
    check_instant("until_ms", until_ms)
    if not is_text(run) or len(run) > limits.NAME_CHARS_MAX:
        raise InvalidSpec(
            f"run is {run!a:.80}", f"use a string of at most {limits.NAME_CHARS_MAX} characters"
        )
    return factor, run


def set_factor(engine: Engine, name: str, factor: float, until_ms: int, run: str) -> int:
    """Note a fleet-wide decay factor; combined with the queue's own by the larger one."""
    factor, run = checked_factor(factor, until_ms, run)
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        now_ms = engine.now_ms()
        if until_ms <= now_ms:
            raise InvalidSpec(
                f"until_ms is {until_ms}, which is past: it is {now_ms}",
                "give the instant, in milliseconds, up to which the factor is to hold",
            )
        with recorded(engine):
            engine.catalog.factors[queue.spec.name] = (float(factor), int(until_ms), run)
        apply_factor(queue, factor, until_ms, run, now_ms)
        return engine.catalog_position


def declare(engine: Engine, spec: QueueSpec, *, change: bool = False, fields: Fields = None) -> int:
    """See Broker.declare; returns the position to wait for.

    A dead queue that does not exist is made as a plain FIFO.
    """
    check_spec(spec, QueueSpec)
    with engine.lock:
        engine.check_open()
        if change and fields is not None:
            engine.catalog.queue(spec.name)
        known = engine.catalog.queues.get(spec.name)
        before = None if known is None else known.spec
        spec = _with_fields(before, spec, fields)
        lacks_dead_queue = spec.dead_queue and spec.dead_queue not in engine.catalog.queues
        if known is not None and known.spec == spec and not lacks_dead_queue:
            return engine.journal.position
        _check_default_device(engine, spec)
        if known is not None and known.spec.partitions != spec.partitions:
            raise InvalidSpec(
                f"queue {spec.name!r} has {known.spec.partitions} partitions, "
                f"{spec.partitions} were asked for",
                "the number of partitions is fixed; declare another queue",
            )
        changes = _changes("queue", before, spec, change=change)
        with recorded(engine, makes_room=known is not None and not lacks_dead_queue):
            if spec.dead_queue and lacks_dead_queue:
                add_queue(engine, QueueSpec(spec.dead_queue), None)
            if known is None:
                add_queue(engine, spec, None)
            elif known.spec != spec:
                _change(engine, known, spec)
        if known is not None and known.shards[0].partition.spec != spec:
            _rebuild(engine, known)
        if changes:
            log.info("queue_changed", queue=spec.name, changes=changes)
        return engine.catalog_position


def _with_fields(known: S | None, spec: S, fields: Fields) -> S:
    """What is there with the named fields of a specification; all of it where none are named."""
    if known is None or fields is None:
        return spec
    return msgspec.structs.replace(known, **{name: getattr(spec, name) for name in fields})


def _changes(kind: str, before: S | None, after: S, *, change: bool) -> str:
    """The fields that differ, each with its old and its new value, for people.

    Raises:
        QueueDiffers: there are some, and no change was asked for.
    """
    fields = after.__struct_fields__ if before is not None else ()
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in fields]
    changes = ", ".join(f"{name} {old!r} -> {new!r}" for name, old, new in pairs if old != new)
    if changes and not change:
        raise QueueDiffers(
            f"{kind} {after.name!r} is there already, and this would change {changes}",
            f"declare it as it is; to change it: declare(.., change=True), PATCH over HTTP, or "
            f"ebbmq {'queues change' if kind == 'queue' else 'topics declare --change'}",
        )
    return changes


def dead_queue_of(engine: Engine, spec: QueueSpec) -> Queue | None:
    """Where dead messages of a queue go; made again if it was deleted (the lock is held).

    Raises:
        Overloaded: code `disk_full`; it cannot be put on record that it is there.
    """
    name = spec.dead_queue
    if name is None:
        return None
    known = engine.catalog.queues.get(name)
    if known is not None:
        return known
    with recorded(engine):
        queue = add_queue(engine, QueueSpec(name), None)
    action = f"change {spec.name!r} to another dead_queue, or none, if it is not wanted"
    log.warning("dead_queue_made_again", queue=spec.name, dead_queue=name, action=action)
    return queue


def _check_default_device(engine: Engine, spec: QueueSpec) -> None:
    """Refuse a default device that the node has not.

    Raises:
        InvalidSpec: with the devices there are.
    """
    device = spec.default_device
    known = sorted(engine.rules.configured.devices or (LOG,))
    if device is None or device in known:
        return
    near = get_close_matches(device, known, 1)
    raise InvalidSpec(
        f"queue {spec.name!r}: default_device is {device!r}, and there is no such device",
        (f"did you mean {near[0]!r}? " if near else "")
        + f"devices are {', '.join(known)}; others are configured under [devices]",
    )


def warn_of_default_devices(engine: Engine) -> None:
    """Say which queues name a default device that the node no longer has."""
    known = engine.rules.configured.devices or (LOG,)
    for name, queue in engine.catalog.queues.items():
        device = queue.spec.default_device
        if device is not None and device not in known:
            log.warning(
                "default_device_missing",
                queue=name,
                device=device,
                action="configure the device again under [devices], or change the queue; "
                "until then what no rule is true of goes to the device with the best status",
            )


def add_queue(engine: Engine, spec: QueueSpec, pids: list[int] | None) -> Queue:
    """Put a queue into the catalog, with new partitions or those of these ids."""
    queue = Queue(spec, engine.lock)
    if pids is None:
        first = engine.catalog.next_pid
        engine.catalog.next_pid += spec.partitions
        pids = list(range(first, first + spec.partitions))
    for pid in pids:
        partition = Partition(pid, spec, engine.catalog.epoch, engine.config.node)
        ids_max = limits.DEDUP_IDS_MAX // spec.partitions
        partition.dedup = Dedup(engine.directory.identity.uuid, ids_max)
        partition.removes_by_age = engine.clock_doubt is None
        shard = Shard(queue, partition, open_resident(engine, partition, spec))
        queue.add(shard)
        engine.catalog.shards[pid] = shard
        if engine.feed is not None:
            engine.feed.attach(shard)
    engine.catalog.queues[spec.name] = queue
    return queue


def open_resident(engine: Engine, partition: Partition, spec: QueueSpec) -> Resident:
    """The RAM cache of a partition; a queue's bytes are shared evenly by its partitions.

    Messages that are there already have their bodies on the device only.
    """
    return engine.residency.open(
        partition.pid,
        spec.cache_bytes // spec.partitions,
        spec.cache_enabled,
        spec.page_to_disk,
        decays=spec.decay_rate > 0 or spec.band_width == 0,
        stored_through=partition.index.next_seq - 1 if partition.live() else 0,
    )


def _change(engine: Engine, queue: Queue, spec: QueueSpec) -> None:
    """Change a specification; `_rebuild` has partitions follow it."""
    if any(shard.partition.held for shard in queue.shards):
        # Rebuilding lets them in; what waits for its level waits on.
        engine.journal.write()
    queue.spec = spec
    queue.version += 1


def _rebuild(engine: Engine, queue: Queue) -> None:
    """Have partitions follow a specification that was changed."""
    spec, now_ms = queue.spec, engine.now_ms()
    for shard in queue.shards:
        partition = shard.partition
        partition.adopt(spec)
        partition.moves.clear()
        rebuild(partition, now_ms, reopened=False)
        engine.residency.close(partition.pid)
        shard.resident = open_resident(engine, partition, spec)
    use_factors(engine, queue, now_ms)
    engine.catalog.follow_topics()


def delete(engine: Engine, name: str) -> int:
    """Remove a queue with everything in it, on the record."""
    with engine.lock:
        engine.check_open()
        queue, catalog = engine.catalog.queue(name), engine.catalog
        # Room for all of it first: half of a queue is of no use to anybody.
        _check_space_to_remove(engine, queue, catalog_bytes(engine) + _DELETED_BYTES_MAX)
        for shard in queue.shards:
            _remove_all(engine, shard, Reason.DELETED, leased=True)
        with recorded(engine, makes_room=True):
            catalog.remove(name)
            catalog.factors.pop(name, None)
            catalog.decided.pop(name, None)
            for topic in list(catalog.topics.values()):
                if name in topic.queues:
                    left = [queue_name for queue_name in topic.queues if queue_name != name]
                    catalog.topics[topic.spec.name] = DeclaredTopic(topic.spec, left)
        for shard in queue.shards:
            engine.residency.close(shard.partition.pid)
        engine.departures.tell_of(queue)
        return engine.catalog_position


def purge(engine: Engine, name: str) -> tuple[int, int]:
    """Remove every message that is not leased, on the record; returns (removed, position)."""
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        _check_space_to_remove(engine, queue, 0)
        removed = sum(
            _remove_all(engine, shard, Reason.PURGED, leased=False) for shard in queue.shards
        )
        return removed, engine.journal.position


def _check_space_to_remove(engine: Engine, queue: Queue, more_bytes: int) -> None:
    """See that all messages of a queue can leave on the record, and that so much fits beside.

    Raises:
        Overloaded: code `disk_full`.
    """
    counts = [
        len(slots) for shard in queue.shards for _, slots in shard.partition.index.live_seqs()
    ]
    kinds, size = (1, fact.REMOVAL.size) if engine.keeping.is_idle else (2, _REMOVED_BYTES)
    records = kinds * sum(-(-count // limits.RECORD_ROWS_MAX) for count in counts)
    nbytes = sum(counts) * size + records * limits.RECORD_OVERHEAD_BYTES
    engine.squeeze_in(nbytes + more_bytes, leaving=sum(counts))


def _remove_all(engine: Engine, shard: Shard, reason: Reason, *, leased: bool) -> int:
    partition = shard.partition
    if partition.held:
        engine.write_now()
    removed = 0
    for page, slots in list(partition.index.live_seqs()):
        gone = []
        for slot in slots.tolist():
            seq = page.number << 12 | slot
            row = partition.index.read(seq)
            if row is not None and (leased or row[0] != LEASED):
                gone.append((seq, row))
        removed += len(gone)
        held = [row for _, row in gone]
        if held:
            partition.remove(gone, reason, engine.now_ms())
            engine.settle(shard)
    return removed


def set_paused(engine: Engine, name: str, *, paused: bool) -> int:
    """Stop or resume the leasing of a queue; publishing goes on."""
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        with recorded(engine, makes_room=True):
            queue.paused = paused
        for shard in queue.shards:
            shard.partition.paused = paused
            if not paused:
                engine.announce(queue, shard.partition.live())
        return engine.catalog_position


def declare_topic(
    engine: Engine, spec: TopicSpec, *, change: bool = False, fields: Fields = None
) -> int:
    """See Broker.declare_topic; subscriptions stay."""
    check_spec(spec, TopicSpec)
    with engine.lock:
        engine.check_open()
        if change and fields is not None:
            engine.catalog.topic(spec.name)
        known = engine.catalog.topics.get(spec.name)
        before = None if known is None else known.spec
        spec = _with_fields(before, spec, fields)
        if spec == before:
            return engine.journal.position
        changes = _changes("topic", before, spec, change=change)
        with recorded(engine):
            engine.catalog.topics[spec.name] = DeclaredTopic(spec, known.queues if known else [])
            _score_anew(engine)
        if changes:
            log.info("topic_changed", topic=spec.name, changes=changes)
        return engine.catalog_position


def delete_topic(engine: Engine, name: str) -> int:
    """Remove a topic and its subscriptions; what queues got from it stays in them."""
    with engine.lock:
        engine.check_open()
        engine.catalog.topic(name)
        with recorded(engine, makes_room=True):
            del engine.catalog.topics[name]
            _score_anew(engine)
        return engine.catalog_position


def subscribe(engine: Engine, topic_name: str, queue_name: str, *, subscribed: bool = True) -> int:
    """Have a queue receive what is published to a topic from now on, or no longer."""
    with engine.lock:
        engine.check_open()
        topic = engine.catalog.topic(topic_name)
        known = engine.catalog.queue(queue_name).spec.name
        queues = [name for name in topic.queues if name != known]
        if subscribed:
            queues.append(known)
        with recorded(engine, makes_room=not subscribed):
            engine.catalog.topics[topic.spec.name] = DeclaredTopic(topic.spec, queues)
            _score_anew(engine)
        return engine.catalog_position


def _score_anew(engine: Engine) -> None:
    """Have queues follow topics that changed; plans made by another score are outdated."""
    queues = engine.catalog.queues.values()
    before = [queue.scored for queue in queues]
    engine.catalog.follow_topics()
    for queue, scored in zip(queues, before, strict=True):
        queue.version += queue.scored != scored
