"""Writing messages into the old generation with all that is known of them; their rows point there.

Thin segments are emptied so, and a body that was on other devices only comes back to the log so.
Rows are read, changed and put back many at once: what has left the log is hardly more than its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core.block import Block
from ebbmq.core.row import ELSEWHERE, RELOCATED, ROW, SHARED
from ebbmq.journal.segment import OLD

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

    Rows = npt.NDArray[np.void]

_PLACE: Final = ("segment", "offset", "length")


def relocate(
    engine: Engine, shard: Shard, seqs: Sequence[int], bodies: Sequence[bytes], *, home: bool
) -> None:
    """Copy rows and bodies, then switch the rows (the lock is held).

    The clock fact in front moves the journal's position on, so that a page copied to a checkpoint
    before the switch is older than the relocation, and one copied after is not. Rows in the record
    hold the offset of their body in its payload; recovery knows the rest.

    Args:
        engine: the engine.
        shard: the partition.
        seqs: messages that are there.
        bodies: what to write of each; nothing of a body that is and stays elsewhere.
        home: the bodies come from other devices: from now on the log has them.
    """
    partition = shard.partition
    numbers = np.array(seqs, dtype=np.uint64)
    words = partition.index.words_of(numbers)
    before = Block(words.copy()).as_rows()
    rows = Block(words).as_rows()
    as_of = engine.note_clock()
    # The copy is this row's own, also where the body was shared.
    cleared = SHARED | ELSEWHERE if home else SHARED
    rows["flags"] = rows["flags"] & (0xFF ^ cleared) | RELOCATED
    ends = np.cumsum([len(body) for body in bodies])
    starts = fact.relocate_bodies_at(len(seqs)) + np.concatenate(([0], ends[:-1]))
    rows["segment"] = 0
    rows["offset"] = starts
    told = fact.relocate(partition.pid, as_of, seqs, rows.tobytes(), bodies)
    segment, payload_at = engine.journal.append_old(*told)
    rows["segment"] = segment
    rows["offset"] = payload_at + starts
    partition.index.put_rows(numbers, words)
    _count(engine, shard, before, rows)
    engine.note_range(segment, partition.pid, min(seqs), max(seqs) - min(seqs) + 1)
    _note_moved(engine, partition.pid, rows, seqs)
    if partition.histories:
        partition.note_states([seq for seq in seqs if seq in partition.histories])
    engine.settle(shard)


def _note_moved(engine: Engine, pid: int, rows: Rows, seqs: Sequence[int]) -> None:
    """Have the log say which messages the old segment has, should that be lost."""
    if engine.disk_full:
        engine.unlisted.add(int(rows["segment"][0]))
    else:
        engine.append(moved_facts(pid, rows, seqs))


def moved_facts(pid: int, rows: Rows, seqs: Sequence[int]) -> list[fact.Fact]:
    """Facts that say in which old segments rows are, those that are in one."""
    by_place: dict[tuple[int, int], list[int]] = {}
    ends: dict[int, int] = {}
    # A body that is elsewhere has its place in the log, and no bytes there.
    sizes = np.where(rows["flags"] & ELSEWHERE, 0, rows["length"]).astype(np.int64)
    stops = (rows["offset"] + sizes).tolist()
    for seq, segment, stop in zip(seqs, rows["segment"].tolist(), stops, strict=True):
        if segment & OLD:
            by_place.setdefault((segment, seq // limits.PAGE_ROWS), []).append(seq)
            ends[segment] = max(ends.get(segment, 0), stop)
    return [fact.moved(pid, place[0], ends[place[0]], some) for place, some in by_place.items()]


def _count(engine: Engine, shard: Shard, before: Rows, after: Rows) -> None:
    """What rows took in the log is free, and what they take now is not."""
    ledger = shard.partition.ledger
    shared = before["flags"] & SHARED != 0
    if shared.any():
        places = before[shared]
        engine.let_go(zip(*(places[name].tolist() for name in _PLACE), strict=True))
    own = before[~shared]
    for segment in set(own["segment"].tolist()):
        ledger[segment] -= _log_bytes(own[own["segment"] == segment])
    segment = int(after["segment"][0])
    ledger[segment] = ledger.get(segment, 0) + _log_bytes(after)


def _log_bytes(rows: Rows) -> int:
    """What messages that share nothing take in the log."""
    here = rows["flags"] & ELSEWHERE == 0
    return len(rows) * ROW.size + int(rows["length"][here].sum(dtype=np.int64))
