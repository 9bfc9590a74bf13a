"""Handing messages out: lease, named lease, and reading bodies that are not in RAM."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from ebbmq import limits
from ebbmq.core import grants as granting
from ebbmq.core import leases
from ebbmq.core.grants import Choice
from ebbmq.core.row import ELSEWHERE, READY
from ebbmq.errors import DamagedRecord, InvalidMessage
from ebbmq.model import Reason
from ebbmq.node import fetching, outflow, rereading
from ebbmq.node.keeping import reading, telling
from ebbmq.node.keeping.reading import AWAY
from ebbmq.node.log import log
from ebbmq.node.outflow import Delivery, View
from ebbmq.plain import is_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.grants import Grants
    from ebbmq.model import Lease
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.reading import Body


class Consumer(NamedTuple):
    """Who leases or looks: the node itself, or an authenticated client."""

    #: None is the node.
    client: str | None = None
    #: Whether it is given what privileged clients published.
    privileged: bool = True


OWN: Final = Consumer()
#: How long a message rests whose devices cannot be reached.
_AWAY_MS: Final = 1_000
#: How many bodies are read ahead at a time: the first of them is soon leased.
_AHEAD_ROWS: Final = 1_024


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


def check_lease_name(name: object) -> None:
    """Refuse what cannot be stored as the name of leases."""
    if not is_text(name) or not 0 < len(str(name)) <= limits.NAME_CHARS_MAX:
        raise InvalidMessage(
            f"name is {name!a:.80}",
            f"use a string of 1 to {limits.NAME_CHARS_MAX} characters, or None",
        )


def lease_now(  # noqa: PLR0913  # who leases what, how much of it, and for how long
    engine: Engine,
    queue: Queue,
    count: int,
    timeout_ms: int | None,
    name: str | None,
    bytes_max: int | None = None,
    *,
    consumer: Consumer = OWN,
) -> list[tuple[Shard, Grants]]:
    """Grant what is ready (the lock is held); a name that is held gets its leases again.

    Args:
        engine: the engine.
        queue: the queue.
        count: most leases to grant.
        timeout_ms: how long they last; None takes the queue's.
        name: a name under which they can be read again.
        bytes_max: most bytes of bodies to grant together, but always one message.
        consumer: who leases.
    """
    if name:
        again = rereading.by_name(queue, name, bytes_max=bytes_max).granted
        if again:
            return permitted(engine, again, consumer)
    if engine.disk_full:
        engine.check_space_for_leases(
            min(count, sum(s.partition.depth[READY] for s in queue.shards))
        )
    now_ms = engine.now_ms()
    timeout = queue.spec.lease_timeout_ms if timeout_ms is None else timeout_ms
    out: list[tuple[Shard, Grants]] = []
    choice = _choice(engine, consumer, bytes_max if count > 1 else None)
    for shard in _in_turn(queue):
        if shard.faulty is not None or not shard.partition.depth[READY]:
            continue
        aside = shard.partition.aside
        grants = granting.lease(
            shard.partition, count, timeout, engine.nonce(), now_ms, name or "", choice=choice
        )
        engine.settle(shard, written=True)
        if shard.partition.aside is not aside:
            engine.simple.pop(queue.spec.name, None)
            engine.announce(queue, 1)
        if grants.seqs:
            out.append((shard, grants))
            count -= len(grants.seqs)
        if count == 0 or (choice is not None and choice.is_full):
            break
    if out:
        engine.write_now()
        queue.consumer = consumer.client or engine.config.client
        engine.keeping.note_reads(out)
    return out


def permitted(
    engine: Engine, held: list[tuple[Shard, Grants]], consumer: Consumer
) -> list[tuple[Shard, Grants]]:
    """Leases that are held, without those of messages the consumer may not be given (lock is held).

    Whoever knows a name may ask for it: the others stay with who leased them.
    """
    choice = _choice(engine, consumer)
    if choice is None:
        return held
    out: list[tuple[Shard, Grants]] = []
    for shard, grants in held:
        taken = {*choice.take(shard.partition, grants.seqs)}
        numbers = [i for i, seq in enumerate(grants.seqs) if seq in taken]
        if numbers:
            out.append((shard, grants.chosen(numbers)))
    return out


def _choice(engine: Engine, consumer: Consumer, bytes_max: int | None = None) -> Choice | None:
    """What a consumer may be given, as far as there is room for bodies; None: everything."""
    withheld = None
    if engine.devices is not None and engine.devices.is_restricted:
        withheld = partial(engine.keeping.withheld, consumer.client)
    if consumer.privileged and bytes_max is None and withheld is None:
        return None
    return Choice(withheld, bytes_max, privileged=consumer.privileged)


def _in_turn(queue: Queue) -> list[Shard]:
    """The partitions of a queue, another one first each time."""
    shards = queue.shards
    if len(shards) == 1:
        return shards
    start = queue.next_shard % len(shards)
    queue.next_shard += 1
    return shards[start:] + shards[:start]


def give_back(engine: Engine, shard: Shard, grants: Grants, rest_ms: int = 0) -> None:
    """Release grants nobody was told of, for others at once or a little later (lock is held)."""
    partition = shard.partition
    ready = partition.depth[READY]
    epoch = outflow.epoch_of(partition, grants)
    tokens = [
        (partition.pid, seq, row[13] + 1, epoch, grants.nonce)
        for seq, row in zip(grants.seqs, grants.rows, strict=True)
    ]
    leases.release(partition, tokens, engine.now_ms(), rest_ms)
    engine.settle(shard)
    engine.announce(shard.queue, partition.depth[READY] - ready)


def wait_for(
    engine: Engine,
    queue: Queue,
    count: int,
    wait_ms: int,
    timeout_ms: int | None,
    name: str | None,
) -> list[tuple[Shard, Grants]]:
    """Wait for a first message, up to `wait_ms` (the lock is held, and let go while waiting)."""
    until_ms = engine.now_ms() + wait_ms
    while True:
        left_ms = until_ms - engine.now_ms()
        if left_ms <= 0:
            return []
        engine.wait_for_arrival(queue, left_ms)
        engine.check_open()
        granted = lease_now(engine, queue, count, timeout_ms, name)
        if granted:
            return granted


def take_bodies(engine: Engine, granted: list[tuple[Shard, Grants]]) -> list[Delivery]:
    """Take bodies from RAM, None where they must be read, and what is shown (the lock is held)."""
    taken: list[Delivery] = []
    now_ms = engine.now_ms()
    for shard, grants in granted:
        resident = shard.resident
        payloads = resident.take_many(grants.seqs, grants.column("importance"))
        pairs = zip(grants.seqs, grants.rows, strict=True)
        alone = telling.in_log(engine, shard, grants.at_ms or now_ms)
        kept = alone or telling.kept(engine, shard, pairs)
        view = View.of(shard.partition, grants, now_ms)
        taken.append(Delivery(view, grants, payloads, kept))  # type: ignore[arg-type]  # see there
        ready = shard.partition.depth[READY]
        if not ready or shard.reading_ahead or shard.reads_at_once:
            continue
        if None in payloads or (resident.is_low and ready > resident.entries):
            engine.ask_ahead(shard)
    return taken


def deliver(
    engine: Engine, granted: list[tuple[Shard, Grants]], taken: list[Delivery]
) -> list[Lease]:
    """Read what is missing, then make leases (the lock is free)."""
    found = [one.leases() for one in fetch(engine, granted, taken)]
    return found[0] if len(found) == 1 else list(chain.from_iterable(found))


def fetch(
    engine: Engine, granted: list[tuple[Shard, Grants]], taken: list[Delivery]
) -> list[Delivery]:
    """Read what is missing (the lock is free)."""
    whole = [
        _complete(engine, shard, one) if None in one.payloads else one
        for (shard, _), one in zip(granted, taken, strict=True)
    ]
    return [one for one in whole if one.grants.seqs]


def _complete(engine: Engine, shard: Shard, taken: Delivery) -> Delivery:
    """Fill in bodies from the device; a body that is not what was published is never delivered."""
    grants = taken.grants
    payloads = cast("list[bytes | None]", taken.payloads)
    missing = [number for number, payload in enumerate(payloads) if payload is None]
    sought = [grants.seqs[i] for i in missing]
    read = read_bodies(engine, shard, sought)
    for number, payload in zip(missing, read, strict=True):
        payloads[number] = None if payload is AWAY else payload
    if None not in payloads:
        return taken
    good = [number for number, payload in enumerate(payloads) if payload is not None]
    away = {seq for seq, found in zip(sought, read, strict=True) if found is AWAY}
    if away:
        with engine.lock:
            resting = [i for i, seq in enumerate(grants.seqs) if seq in away]
            give_back(engine, shard, grants.chosen(resting), _AWAY_MS)
    bad = [
        grants.seqs[i]
        for i, payload in enumerate(payloads)
        if payload is None and grants.seqs[i] not in away
    ]
    if bad:
        _give_up(engine, shard, bad)
    return taken.chosen(good)


def read_bodies(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[Body]:
    """Bodies from log or devices, checked; None for one gone or damaged (the lock is free).

    The log is asked unless a device that is faster now has a copy, and for what that does not give.
    A body may be relocated while it is read; the row then tells the new place.
    """
    out = _from_the_fastest(engine, shard, seqs)
    todo = [i for i, payload in enumerate(out) if payload is None]
    for _ in range(3 if todo else 0):
        with engine.lock:
            rows = {i: row for i in todo if (row := shard.partition.index.read(seqs[i]))}
        elsewhere = [i for i, row in rows.items() if row[1] & ELSEWHERE]
        if elsewhere:
            brought = reading.read(engine, shard, [seqs[i] for i in elsewhere])
            for number, body in zip(elsewhere, brought, strict=True):
                out[number] = body
                del rows[number]
        places = [(row[9], row[10], row[11]) for row in rows.values()]
        for number, payload in zip(rows, _read_many(engine, places), strict=True):
            if payload is not None and outflow.is_intact(payload, rows[number]):
                out[number] = payload
        todo = [i for i in rows if out[i] is None]
        if not todo:
            break
    # Bytes that were never written are not damage.
    if todo and engine.journal.failed is None:
        instead = reading.read_instead(engine, shard, [seqs[i] for i in todo])
        for number, body in zip(todo, instead, strict=True):
            out[number] = body
    return out


def _from_the_fastest(engine: Engine, shard: Shard, seqs: Sequence[int]) -> list[Body]:
    """Bodies from devices that are faster than the log, the others from the log as rows are now."""
    devices, read_many = engine.devices, engine.journal.read_many
    if devices is None or not engine.keeping.readers.is_log_beaten(devices.states):
        return [*fetching.read_rows(engine, shard, seqs, read_many)]
    out: list[Body] = [*reading.read_faster(engine, shard, seqs)]
    left = [i for i, body in enumerate(out) if body is None]
    if left:
        found = fetching.read_rows(engine, shard, [seqs[i] for i in left], read_many)
        for number, body in zip(left, found, strict=True):
            out[number] = body
    return out


def _read_many(engine: Engine, places: list[tuple[int, int, int]]) -> list[bytes | None]:
    try:
        return list(engine.journal.read_many(places))
    except (DamagedRecord, OSError):
        if len(places) == 1:
            return [None]
    return [_read_many(engine, [place])[0] for place in places]


def _give_up(engine: Engine, shard: Shard, seqs: Sequence[int]) -> None:
    """Put messages whose body cannot be read on the record as damaged."""
    if engine.journal.failed is not None:
        # Bytes that were never written are not damage; what is durable is there after reopening.
        raise engine.journal.failed
    with engine.lock:
        partition = shard.partition
        gone = [(seq, row) for seq in seqs if (row := partition.index.read(seq))]
        partition.remove(gone, Reason.DAMAGED, engine.now_ms())
        engine.settle(shard)
        for seq in seqs:
            identity = outflow.message_id(partition.pid, seq)
            engine.damage.append(f"body of message {identity} does not match its checksum")
            log.error("damaged_body", message=identity, queue=shard.queue.spec.name)


def read_ahead(engine: Engine, shard: Shard) -> bool:
    """Bring bodies that are delivered next into RAM; False if enough are there (lock is free)."""
    fetcher = engine.keeping.fetcher
    if fetcher is not None and fetcher.is_busy_with(shard):
        return False  # what it brings is not there yet, and would be looked for again
    with engine.lock:
        partition = shard.partition
        depth = shard.resident.wanted(partition.depth[READY])
        if not depth or shard.faulty is not None:
            return False
        seqs = partition.order.peek(depth, engine.now_ms())
        importances = partition.index.column(np.array(seqs, dtype=np.uint64), "importance")
        wanted = [
            (seq, importance)
            for seq, importance in zip(seqs, importances.tolist(), strict=True)
            if importance
        ]
        missing = shard.resident.missing(wanted)
        if missing and fetcher is not None:
            missing = engine.keeping.fetch_ahead(shard, missing)
    if not missing:
        return False
    for start in range(0, len(missing), _AHEAD_ROWS):
        part = missing[start : start + _AHEAD_ROWS]
        seqs = [seq for seq, _ in part]
        payloads = read_bodies(engine, shard, seqs)
        with engine.lock:
            if not fetching.admit(shard, part, payloads):
                return True
    return True
