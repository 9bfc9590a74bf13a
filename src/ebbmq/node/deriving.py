"""What follows from the rows of a data directory: order, counts, shares, and what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core import copies
from ebbmq.core.rebuild import rebuild
from ebbmq.core.row import FREE, IN_DOUBT, SHARED
from ebbmq.model import Reason
from ebbmq.node import declaring
from ebbmq.node.keeping import restarting
from ebbmq.node.log import log
from ebbmq.node.outflow import message_id

if TYPE_CHECKING:
    from ebbmq.core.partition import Partition
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses

_FAULTY: Final = "a page of its checkpoint and records of its journal cannot be read"


def derive(
    engine: Engine, losses: Losses, now_ms: int, *, was_closed: bool, accept_damage: bool
) -> None:
    """Derive order, wheels, counts and shares; the engine's time is known."""
    for pid in losses.faulty():
        shard = engine.catalog.shards[pid]
        if accept_damage:
            _serve_what_is_left(shard)
        else:
            shard.faulty = _FAULTY
    _drop_without_body(engine, losses)
    restarting.mark_rows(engine)
    sharing: list[Partition] = []
    for shard in engine.catalog.shards.values():
        partition = shard.partition
        partition.epoch = engine.catalog.epoch
        partition.removes_by_age = engine.clock_doubt is None
        if not was_closed:
            # Numbers that were given out and lost with the tail are not given out again.
            next_seq = partition.index.next_seq
            shard.passed_over = range(next_seq, next_seq + limits.LOST_NUMBERS_MAX)
            partition.index.next_seq = shard.passed_over.stop
        if rebuild(partition, now_ms, reopened=True):
            sharing.append(partition)
        engine.live += partition.live()
        engine.residency.close(partition.pid)
        shard.resident = declaring.open_resident(engine, partition, shard.queue.spec)
    _share_bodies(engine, sharing)
    for queue in engine.catalog.queues.values():
        declaring.use_factors(engine, queue, now_ms)


def _serve_what_is_left(shard: Shard) -> None:
    """Give up what cannot be read of a partition; its numbers are not given out again."""
    partition = shard.partition
    partition.index.next_seq += limits.LOST_NUMBERS_MAX
    log.warning(
        "damage_accepted", queue=shard.queue.spec.name, partition=f"{partition.pid:x}", why=_FAULTY
    )


def _drop_without_body(engine: Engine, losses: Losses) -> None:
    """Give up messages whose body in the log is damaged and that no device has a copy of."""
    for pid, damaged in losses.bodiless.items():
        shard = engine.catalog.shards.get(pid)
        for seq, segment in damaged.items() if shard is not None else ():
            assert shard is not None
            index = shard.partition.index
            row = index.read(seq)
            if row is None or row[0] >= IN_DOUBT or row[9] != segment:
                continue
            name = copies.name_of(pid, seq)
            if engine.holdings.of(name).copies != {copies.LOG}:
                engine.holdings.copy_lost(name, copies.LOG)
                continue
            losses.give_up(pid, seq, f"message {message_id(pid, seq)} cannot be read")


def _share_bodies(engine: Engine, partitions: list[Partition]) -> None:
    """Count who needs each body that queues share."""
    shared: dict[int, tuple[int, int]] = {}
    for partition in partitions:
        for page, slots in partition.index.live_seqs():
            if not (page.view["flags"] & SHARED).any():
                continue
            view = page.view[slots] if page.thin is None else page.view
            for row in view[(view["flags"] & SHARED) != 0]:
                if row["state"] != FREE and row["length"]:
                    key = int(row["segment"]) << 32 | int(row["offset"])
                    shared[key] = (shared.get(key, (0, 0))[0] + 1, int(row["length"]))
    for key, (count, length) in shared.items():
        engine.sharing.share(key, count)
        segment = key >> 32
        engine.shared_bytes[segment] = engine.shared_bytes.get(segment, 0) + length


def let_go_of_unread(engine: Engine, losses: Losses) -> None:
    """Have messages that cannot be read leave their queues on the record; the journal is open."""
    for pid, seqs in losses.unread.items():
        shard = engine.catalog.shards.get(pid)
        if shard is None or shard.faulty is not None:
            continue  # nothing is left of it, or it is read again
        partition = shard.partition
        gone = [(seq, row) for seq in seqs if (row := partition.index.read(seq))]
        lost = sorted(set(seqs) - {seq for seq, _ in gone})
        partition.remove(gone, Reason.DAMAGED, engine.now_ms())
        partition.note_lost(lost, engine.now_ms())
        engine.live += len(lost)  # the facts take them off
        engine.settle(shard)
