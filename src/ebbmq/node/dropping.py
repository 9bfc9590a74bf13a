"""Rows that a start finds without their bodies: freed, given up, in doubt, or served elsewhere.

A segment that was given back went because its messages had left. One that should be there and is
not, or not all of it, may be put back: its messages keep their rows and wait in doubt, unless a
device has a copy.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.block import FLAGS_BIT, KIND, LOW32, SIZE, STATE, WHERE
from ebbmq.core.copies import LOG, name_of
from ebbmq.core.row import ELSEWHERE, FREE, IN_DOUBT
from ebbmq.journal.segment import name_of as file_of
from ebbmq.journal.segment import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbmq.core.index import Page
    from ebbmq.journal.disk import Disk
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses

#: What may be wrong with a segment as a whole.
MISSING: Final = "is missing"
CUT_SHORT: Final = "is cut short"
_HALF: Final = np.uint64(32)
_LOW32: Final = np.uint64(LOW32)
_STATE: Final = np.uint64(STATE)
_ELSEWHERE: Final = np.uint64(ELSEWHERE << FLAGS_BIT)


def sort_out_rows(engine: Engine, losses: Losses, disk: Disk) -> None:
    """Find the rows whose bodies are not where they should be, and what becomes of them."""
    sizes = {n: size_of(disk, n) for old in (False, True) for n in numbers(disk, old=old)}
    for shard in engine.catalog.shards.values():
        for page in shard.partition.index.pages.values():
            if page.live:
                _sort_out(engine, losses, shard, page, sizes)
    for number in engine.ranges.keys() - sizes.keys() - engine.doubted.keys():
        del engine.ranges[number]
    losses.name_doubts()


def size_of(disk: Disk, number: int) -> int:
    """The bytes there are of a segment."""
    with closing(disk.open(file_of(number))) as file:
        return file.size()


def _sort_out(
    engine: Engine, losses: Losses, shard: Shard, page: Page, sizes: Mapping[int, int]
) -> None:
    kinds, where = page.words[:, KIND], page.words[:, WHERE]
    segments = np.where(kinds & _STATE, where & _LOW32, 0)
    ends = (where >> _HALF) + (page.words[:, SIZE] & _LOW32)
    changes = np.flatnonzero(segments[1:] != segments[:-1]) + 1
    # No segment has the number 0, which stands for rows that are not there.
    named = {int(segments[0]), *segments[changes].tolist()} - {0}
    if ends.max() <= min(sizes.get(number, -1) for number in named):
        return
    ends[kinds & _ELSEWHERE != 0] = 0
    for number in sorted(named):
        mine = (segments == number) & (ends > sizes.get(number, -1))
        slots = np.flatnonzero(mine).tolist()
        if slots and number in sizes:
            engine.doubted.setdefault(number, CUT_SHORT)
        for slot in slots:
            _find_place(engine, losses, shard, page, slot)
            page.dirty = True
    page.live = int(np.count_nonzero(page.view["state"]))


def _find_place(engine: Engine, losses: Losses, shard: Shard, page: Page, slot: int) -> None:
    """Say what becomes of a row whose segment has not its body, or is gone."""
    pid, segment = shard.partition.pid, int(page.view["segment"][slot])
    seq = page.number * limits.PAGE_ROWS + slot
    name = name_of(pid, seq)
    if seq in losses.doubtful.get(pid, ()):
        moved_to = losses.moved.get(pid, {}).get(seq, 0)
        if moved_to not in engine.doubted:
            losses.give_up(pid, seq, losses.of_relocated(pid, seq, moved_to))
            return
        segment = moved_to
    elif segment not in engine.doubted:
        page.view["state"][slot] = FREE
        return
    elif page.view["flags"][slot] & ELSEWHERE or engine.holdings.of(name).copies != {LOG}:
        engine.holdings.copy_lost(name, LOG)
        losses.homeless.setdefault(pid, []).append(seq)
        return
    page.view["state"][slot] |= IN_DOUBT
    losses.doubts.setdefault((pid, segment), []).append(seq)
