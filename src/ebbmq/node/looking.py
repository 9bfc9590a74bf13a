"""What people ask of a broker: how deep, how old, how fast, where is it, why did it go."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from ebbmq.core import row as rows
from ebbmq.core.row import DYING, LEASED, LOW48, READY, REPLICATING, SCHEDULED
from ebbmq.errors import InvalidMessage
from ebbmq.journal.segment import name_of
from ebbmq.model import LOSSES, REASON_TEXT, Reason, Removal, gone
from ebbmq.node import peeking
from ebbmq.node.devices import describing
from ebbmq.node.devices.settings import LOG
from ebbmq.node.keeping import telling
from ebbmq.node.outflow import STATE_NAMES, message_id, parse_id
from ebbmq.plain import is_number
from ebbmq.policy.decay import Score

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

    from ebbmq.core.partition import Partition, Row
    from ebbmq.model import DeviceStatus, QueueSpec
    from ebbmq.node.catalog import Damage, Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.removals import Reading

_PUT_BACK: Final = (
    "what only that has is not delivered; close the broker and put it back, or give up what it "
    "has: ebbmq doctor --accept-damage"
)
_IN_DOUBT: Final = "what has its body is missing, and may be put back: see health"
_DEPTHS = {
    "ready": READY,
    "leased": LEASED,
    "scheduled": SCHEDULED,
    "replicating": REPLICATING,
    "dying": DYING,
}


def queues(engine: Engine) -> list[QueueSpec]:
    """Every declared queue."""
    with engine.lock:
        engine.check_open()
        return [queue.spec for queue in engine.catalog.queues.values()]


def topics(engine: Engine) -> list[dict[str, Any]]:
    """Every declared topic with the queues subscribed to it."""
    with engine.lock:
        engine.check_open()
        return [
            {
                "topic": spec.name,
                "queues": list(queues),
                "max_age_ms": spec.max_age_ms,
                **{name: getattr(spec, name) for name in spec.__struct_fields__ if "score" in name},
            }
            for spec, queues in ((it.spec, it.queues) for it in engine.catalog.topics.values())
        ]


def stats(engine: Engine, name: str) -> dict[str, Any]:
    """Everything countable about a queue."""
    with engine.lock:
        engine.check_open()
        queue = engine.catalog.queue(name)
        now_ms = engine.now_ms()
        partitions = [shard.partition for shard in queue.shards]
        totals = _totals(partition.totals for partition in partitions)
        before = _totals(shard.totals_before for shard in queue.shards)
        residents = [shard.resident for shard in queue.shards]
        states = {
            shard.resident.state(shard.partition.live() - shard.partition.depth[LEASED])
            for shard in queue.shards
        }
        doubts = sum(p.in_doubt() for p in partitions)
        by_importance = [sum(p.by_importance[i] for p in partitions) for i in range(11)]
        return {
            "queue": name,
            "store_id": engine.directory.identity.told,
            "now_ms": now_ms,
            "depth": {
                **{key: sum(p.depth[state] for p in partitions) for key, state in _DEPTHS.items()},
                **({"in_doubt": doubts} if doubts else {}),
            },
            "by_importance": {i: count for i, count in enumerate(by_importance) if i and count},
            "oldest_age_ms": _oldest_age_ms(partitions, now_ms),
            "bytes": sum(p.body_bytes for p in partitions),
            "residency": next((s for s in ("paging", "paged") if s in states), "normal"),
            "cache": {
                "bytes": sum(r.bytes for r in residents),
                "hits": sum(r.hits for r in residents),
                "misses": sum(r.misses for r in residents),
            },
            "rates": queue.rates.mark(
                now_ms, tuple(totals[key] for key in ("published", "leased", "acked", "retried"))
            ),
            "totals": totals,
            "since_open": {key: count - before.get(key, 0) for key, count in totals.items()},
            "decay_factor": max(p.factor for p in partitions),
            "score": partitions[0].score.fields(),
            "score_acts": Score.of(queue.scored) == partitions[0].score,
            "paused": queue.paused,
            "partitions": [
                {
                    "id": f"{shard.partition.pid:x}",
                    "state": "ok" if shard.faulty is None else "faulty",
                    "why": shard.faulty,
                    "depth": shard.partition.live(),
                    "oldest_id": _oldest_id(shard.partition),
                    "newest_id": message_id(
                        shard.partition.pid, shard.partition.index.next_seq - 1
                    ),
                }
                for shard in queue.shards
            ],
        }


def _totals(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums of what partitions counted, under the names people know."""
    totals = {"overflow": 0, "dead_lettered": 0}
    for counted in counts:
        for key, count in counted.items():
            totals[key] = totals.get(key, 0) + count
    totals |= {f"undone_{reason}": gone(totals, reason) for reason in LOSSES}
    totals["overflowed"] = totals.pop("overflow")
    return totals


def _oldest_age_ms(partitions: list[Partition], now_ms: int) -> int:
    """Age of the oldest message that is there; rows of a page are in order of arrival."""
    oldest = now_ms
    for partition in partitions:
        for page, slots in partition.index.live_seqs():
            row = partition.index.read(page.number << 12 | int(slots[0]))
            if row is not None:
                oldest = min(oldest, row[5] & LOW48)
            break
    return max(0, now_ms - oldest)


def _oldest_id(partition: Partition) -> str | None:
    first = next(partition.index.live_after(-1), None)
    return None if first is None else message_id(partition.pid, first)


def removals(
    engine: Engine,
    name: str,
    *,
    reason: str | None,
    since_ms: int | None,
    after: str | None = None,
    count: int | None = None,
) -> list[Removal]:
    """The record of messages that left a queue other than by ack, also if it was deleted since."""
    codes = {text: code for code, text in REASON_TEXT.items()}
    if reason is not None and reason not in codes:
        raise InvalidMessage(f"reason is {reason!r}", f"use one of {', '.join(codes)}")
    if since_ms is not None and not is_number(since_ms, 0, sys.float_info.max):
        raise InvalidMessage(f"since_ms is {since_ms!r:.80}", "give an instant in milliseconds")
    with engine.lock:
        engine.check_open()
        pids = engine.catalog.pids_of(name)
        reading = _reading(engine)
    code = int(codes[reason]) if reason else None
    found = reading.find(pids, reason=code, since_ms=since_ms)
    if after is not None:
        pid, seq = _parsed(after)
        at = np.flatnonzero((found["pid"] == pid) & (found["seq"] == seq))
        # One that the bounded log no longer has was older than all it has.
        found = found[int(at[-1]) + 1 :] if len(at) else found
    return [_removal(record, name) for record in found[:count]]


def _reading(engine: Engine) -> Reading:
    """The removals up to now (the lock is held); what was told of is not undone by a kill."""
    if engine.journal.failed is None:
        engine.write_now()
    return engine.removals.reading()


def _parsed(identity: str) -> tuple[int, int]:
    parsed = parse_id(str(identity))
    if parsed is None:
        raise InvalidMessage(
            f"{identity!r:.80} is not a message id", "ids look like 1-2f, as receipts show them"
        )
    return parsed


def _removal(record: npt.NDArray[np.void] | Any, queue: str) -> Removal:
    moved = int(record["moved_seq"])
    return Removal(
        message_id(int(record["pid"]), int(record["seq"])),
        queue,
        REASON_TEXT[Reason(int(record["reason"]))],
        int(record["at_ms"]),
        int(record["importance"]),
        round(float(record["current"]), 4),
        int(record["enqueued_at_ms"]),
        int(record["failures"]),
        int(record["attempts"]),
        int(record["bytes"]),
        message_id(int(record["moved_pid"]), moved) if moved else None,
    )


def why(engine: Engine, identity: str) -> dict[str, Any]:
    """Where a message is, or why it left."""
    pid, seq = _parsed(identity)
    with engine.lock:
        engine.check_open()
        shard = engine.catalog.shards.get(pid)
    seen = None if shard is None else peeking.look(engine, shard, seq)
    with engine.lock:
        # It may have left, or its queue, while its body was read.
        shard = engine.catalog.shards.get(pid)
        row = None if shard is None else shard.partition.index.read(seq)
        queue, issued = _origin(engine, pid, shard)
        there = {} if shard is None or row is None else _there(engine, shard, seq, row)
        reading = _reading(engine) if row is None else None
        damage = engine.catalog.damage_to(pid, seq)
        story = {} if engine.devices is None else telling.story(engine, pid, seq)
    if engine.devices is not None and issued:
        story = telling.decided(engine, pid, seq) | story
    if row is not None:
        return {
            "id": identity,
            "queue": queue,
            **there,
            "type": seen.type if seen else None,
            "headers": dict(seen.headers) if seen else None,
            # What failed before it was moved here is told with its headers.
            **({"latency_history": list(seen.latency_history)} if seen else {}),
            "damaged": seen is None and not row[1] & rows.ELSEWHERE,
            **({"reason": _IN_DOUBT} if row[0] >= rows.IN_DOUBT else {}),
            **story,
        }
    assert reading is not None
    found = reading.find([pid], seq=seq)
    if len(found):
        removal = _removal(found[-1], queue or "a deleted queue")
        return {"id": identity, "queue": queue, "state": "removed", **_fields(removal), **story}
    if 0 < seq < issued:
        return {
            "id": identity,
            "queue": queue,
            "state": "gone",
            "reason": _how_lost(damage) if damage else "left; how is not known any more",
            **story,
        }
    return {"id": identity, "queue": queue, "state": "unknown", "reason": "never issued here"}


def _how_lost(damage: Damage) -> str:
    date = datetime.fromtimestamp(damage.found_at_ms / 1_000, UTC).date()
    return f"may have been lost to the damage of {date}: {damage.how}"


def _origin(engine: Engine, pid: int, shard: Shard | None) -> tuple[str | None, int]:
    """The queue a partition is or was of, and the first number not given out (lock is held)."""
    if shard is not None:
        return shard.queue.spec.name, shard.partition.index.next_seq
    deleted = engine.catalog.deleted_with(pid)
    if deleted is not None:
        return deleted.name, deleted.next_seqs[pid - deleted.first_pid]
    return None, 0


def _there(engine: Engine, shard: Shard, seq: int, row: Row) -> dict[str, Any]:
    """What is known of a message that is there without its body (the lock is held)."""
    partition, enqueued_at_ms, dead = shard.partition, row[5] & LOW48, row[6] & LOW48
    now_ms = engine.now_ms()
    (kept,) = telling.kept(engine, shard, [(seq, row)])
    return {
        "state": STATE_NAMES[row[0]],
        "importance": row[2],
        "current_importance": partition.current_importance(row, now_ms),
        "band": partition.band(row, now_ms),
        "failures": row[5] >> rows.HIGH,
        "attempt": row[13],
        "enqueued_at_ms": enqueued_at_ms,
        "ttl_ms": dead - enqueued_at_ms if dead else None,
        "decay_rate": row[4] / rows.RATE_UNIT,
        "deadline_ms": row[7] & LOW48 or None,
        "privileged": bool(row[1] & rows.PRIVILEGED),
        "bytes": row[11],
        "segment": row[9],
        "latency_history": list(partition.history(seq)),
        **msgspec.structs.asdict(kept),
    }


def _fields(removal: Removal) -> dict[str, Any]:
    return {
        name: getattr(removal, name)
        for name in removal.__struct_fields__
        if name not in ("id", "queue")
    }


def devices(engine: Engine) -> list[DeviceStatus]:
    """Every device, the node's own log first."""
    with engine.lock:
        engine.check_open()
        live = engine.live
    if engine.devices is None:
        return [describing.lone_log(engine.directory, engine.clock, live)]
    return engine.devices.describe()


def probe_device(engine: Engine, name: str) -> DeviceStatus:
    """Try a device now, and tell how it is.

    Raises:
        UnknownDevice: there is none of that name.
    """
    with engine.lock:
        engine.check_open()
        live = engine.live
    if engine.devices is not None:
        return engine.devices.probe(name)
    if name != LOG:
        raise describing.unknown(name, [LOG])
    return describing.lone_log(engine.directory, engine.clock, live, probe=True)


def journal(engine: Engine) -> dict[str, int]:
    """What the journal did since the broker was opened, and how large it is."""
    with engine.lock:
        engine.check_open()
        segments = engine.journal.segments()
        flushes, written_bytes = engine.journal.flushes, engine.journal.written_bytes
    return {
        "flushes": flushes,
        "written_bytes": written_bytes,
        "segments": len(segments),
        "bytes": sum(segment.used_bytes for segment in segments),
        "free_bytes": _free_bytes(engine.directory.path),
    }


def health(engine: Engine) -> dict[str, Any]:
    """Whether the broker is ready, and everything a person should look at."""
    problems = []
    with engine.lock:
        if engine.closed is not None:
            problems.append(engine.closed)
        elif engine.journal.failed is not None:
            problems.append(str(engine.journal.failed))
        if engine.clock_doubt:
            problems.append(engine.clock_doubt)
        for shard in engine.catalog.shards.values():
            if shard.faulty is not None:
                problems.append(f"partition {shard.partition.pid:x} is faulty: {shard.faulty}")
        if engine.doubted:
            files = [f"{name_of(n)} {what}" for n, what in sorted(engine.doubted.items())]
            problems.append(f"{', '.join(files)}: {_PUT_BACK}")
        damage = list(engine.damage)
        unconfigured = telling.unconfigured(engine)
    return {
        "ready": not problems,
        "problems": problems,
        "damage": damage,
        # Others are used instead, so that it can take work all the same.
        "devices": [
            *(engine.devices.troubles() if engine.devices is not None else ()),
            *unconfigured,
        ],
        # Messages do not depend on it.
        "feed": [
            *(engine.feed.troubles() if engine.feed is not None else ()),
            *engine.adviser.troubles(),
        ],
    }


def feed(engine: Engine) -> dict[str, int] | None:
    """What the feed did since the broker was opened; None where there is none."""
    return None if engine.feed is None else engine.feed.figures()


def _free_bytes(path: Path) -> int:
    """Space for processes without special rights."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize
