"""Which rows of a plan come first: where there is not room for all, the most valuable.

Rows there is room for, with all that are worth more, can be taken in any order; that of their
numbers is the fastest. The others can have only what those leave, and are taken by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.block import SIZE
from ebbmq.node.advising.worth import all_ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ebbmq.node.advising.room import Room
    from ebbmq.node.advising.rows import Ints, Rows
    from ebbmq.node.advising.worth import Worth
    from ebbmq.node.engine import Engine

    Floats = npt.NDArray[np.float64]

#: Messages whose sizes are looked up under one hold of the lock.
_AT_ONCE: Final = 2_048
_LENGTH: Final = np.uint64((1 << 32) - 1)


def ranked(engine: Engine, room: Room, rows: Rows) -> tuple[Rows, Rows]:
    """Rows there is room for, by partition and number, and the rest, the most valuable first.

    The lock is free. What a row needs is taken to be all of its message, once on each device of
    its tier: what is not needed after all is left to the rest.
    """
    rows = in_order(rows)
    fits = np.ones(len(rows), dtype=bool)
    if engine.devices is None:
        return rows, rows[~fits]
    sizes = _sizes(engine, rows)
    by_value = np.argsort(-rows["value"], kind="stable")
    for tier in set(rows["to_tier"].tolist()):
        asks = rows["to_tier"] == tier
        left = _left(engine, room, tier)
        if sizes[asks].sum() > left:
            mine = by_value[asks[by_value]]
            fits[mine] = np.cumsum(sizes[mine]) <= left
    with engine.lock:
        pins_left = limits.PINS_MAX - len(engine.pins)
    fits[by_value[max(0, pins_left) :]] = False
    return rows[fits], rows[by_value[~fits[by_value]]]


def cut(engine: Engine, room: Room, worths: Mapping[str | None, Worth]) -> float | None:
    """A value such that there is room for all rows that are worth more; None if for all of them.

    Args:
        engine: whose devices.
        room: on them.
        worths: by tier, what rows are worth and how many bytes they are to write.
    """
    if engine.devices is None:
        return None
    found: list[float] = []
    for tier, worth in worths.items():
        every = worth.ranked()
        found += _first_beyond(every.values, every.sizes, _left(engine, room, tier))
    every = all_ranked(worths.values())
    with engine.lock:
        pins_left = limits.PINS_MAX - len(engine.pins)
    found += _first_beyond(every.values, every.counts, pins_left)
    return max(found, default=None)


def _first_beyond(values: Floats, needs: Floats | Ints, left: int) -> list[float]:
    """The value of the first, by order, that what is left is not enough for; none if it is."""
    through = np.cumsum(needs)
    first = int(np.searchsorted(through, max(0, left), side="right"))
    return [float(value) for value in values[first : first + 1]]


def in_order(rows: Rows) -> Rows:
    """Rows by partition and number: neighbours are looked at, told of and journaled together."""
    return rows[np.lexsort((rows["seq"], rows["pid"]))]


def _left(engine: Engine, room: Room, tier: str | None) -> int:
    """What every device of a tier has room for; of any tier, where a row names none."""
    assert engine.devices is not None
    states = engine.devices.states
    return min(
        (room.left(name) for name, state in states.items() if tier in (None, state.tier)), default=0
    )


def _sizes(engine: Engine, rows: Rows) -> Ints:
    """Bytes of each message, 0 where it is gone; rows of one partition are next to each other."""
    sizes = np.zeros(len(rows), dtype=np.int64)
    found = np.unique(rows["pid"], return_index=True, return_counts=True)
    for pid, first, count in zip(*(each.tolist() for each in found), strict=True):
        for at in range(first, first + count, _AT_ONCE):
            some = slice(at, min(at + _AT_ONCE, first + count))
            with engine.lock:
                engine.check_open()
                shard = engine.catalog.shards.get(pid)
                if shard is None or shard.faulty is not None:
                    break
                words = shard.partition.index.words_of(rows["seq"][some].astype(np.uint64))
            sizes[some] = words[:, SIZE] & _LENGTH
    return sizes
