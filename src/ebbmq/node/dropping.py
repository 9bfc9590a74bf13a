"""Rows that a start finds without the segment they were in: freed, or given up by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ebbmq import limits
from ebbmq.core.block import KIND, LOW32, STATE, WHERE
from ebbmq.core.row import FREE
from ebbmq.core.values import distinct_values
from ebbmq.journal.segment import OLD, numbers
from ebbmq.node.outflow import message_id

if TYPE_CHECKING:
    from ebbmq.core.index import Page
    from ebbmq.journal.disk import Disk
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses


def drop_without_segment(engine: Engine, losses: Losses, disk: Disk) -> None:
    """Free rows whose segment is gone: it went because they had, or it was taken away."""
    present = {*numbers(disk, old=False), *numbers(disk, old=True)}
    for number in engine.ranges.keys() - present:
        del engine.ranges[number]
    for shard in engine.catalog.shards.values():
        for page in shard.partition.index.pages.values():
            if not page.live or _segments_of(page) <= present:
                continue
            slots = page.live_slots()
            segments = page.view["segment"][slots]
            absent = set(distinct_values(segments).tolist()) - present
            gone = [
                slot
                for slot in slots[np.isin(segments, list(absent))].tolist()
                if not _is_missed(losses, shard, page, slot)
            ]
            page.view["state"][gone] = FREE
            page.live -= len(gone)
            page.dirty = True


def _is_missed(losses: Losses, shard: Shard, page: Page, slot: int) -> bool:
    """Whether a row whose segment is gone is of a message that had not left; it is given up."""
    pid, segment = shard.partition.pid, int(page.view["segment"][slot])
    seq = page.number * limits.PAGE_ROWS + slot
    identity = message_id(pid, seq)
    if seq in losses.doubtful.get(pid, ()):
        moved_to = losses.moved.get(pid, {}).get(seq, 0)
        losses.give_up(pid, seq, losses.of_relocated(pid, seq, moved_to))
    elif segment in losses.missing and segment in losses.segments:
        which = f"old segment {segment ^ OLD}" if segment & OLD else f"segment {segment}"
        problem = f"message {identity} was in {which}, which is missing"
        losses.give_up(pid, seq, problem)
    else:
        return False
    return True


def _segments_of(page: Page) -> set[int]:
    """The segments that the rows of a page name."""
    words = page.words
    segments = np.where(words[:, KIND] & np.uint64(STATE), words[:, WHERE] & np.uint64(LOW32), 0)
    changes = np.flatnonzero(segments[1:] != segments[:-1]) + 1
    # No segment has the number 0, which stands for rows that are not there.
    return {int(segments[0]), *segments[changes].tolist()} - {0}
