"""Reading a faulty partition again: what could not be read once may be readable later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.core.rebuild import rebuild
from ebbmq.node.directory import Directory
from ebbmq.node.engine import Engine
from ebbmq.node.keeping import restarting
from ebbmq.node.log import log
from ebbmq.node.recovery import Recovery
from ebbmq.node.removals import NoRemovals

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk


def retry_faulty(engine: Engine, disks: tuple[Disk, Disk]) -> int:
    """Read the store again beside the running engine; returns how many partitions are well again.

    A faulty partition takes no requests, so nothing of it has changed on disk meanwhile.
    """
    with engine.lock:
        engine.journal.write()
    copy = Engine(engine.config, engine.clock, Directory.of(engine.directory), NoRemovals())
    recovery = Recovery(copy, *disks)
    recovery.read()
    restarting.mark_rows(copy)
    still_faulty = recovery.faulty()
    mended = 0
    with engine.lock:
        for pid, shard in engine.catalog.shards.items():
            if shard.faulty is None or pid in still_faulty or pid not in copy.catalog.shards:
                continue
            partition = copy.catalog.shards[pid].partition
            partition.epoch = engine.catalog.epoch
            partition.removes_by_age = engine.clock_doubt is None
            rebuild(partition, engine.now_ms(), reopened=True)
            partition.tell = shard.partition.tell
            engine.live += partition.live() - shard.partition.live()
            shard.partition = partition
            shard.faulty = None
            mended += 1
            log.warning("partition_well_again", partition=f"{pid:x}")
            engine.announce(shard.queue, partition.live())
        engine.keeping.is_short = True
    return mended
