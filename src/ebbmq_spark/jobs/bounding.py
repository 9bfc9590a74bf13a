"""A plan kept within the room and the money of a fleet, and how much of it was left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.feed.runs import Action
from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.transforms import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyspark.sql import DataFrame

    from ebbmq_spark.jobs.fleet import Fleet
    from ebbmq_spark.transforms.bounds import Where

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

#: Sums that differ by less may be the same, added up in another order.
_SAME: Final = 1e-9


class Room(NamedTuple):
    """What may be written: the pool of devices of each tier of a node, and what is free there."""

    pools: Mapping[Where, str]
    free_bytes: Mapping[str, int]


class Limits(NamedTuple):
    """What a plan has to keep within."""

    #: Without, there is room for everything.
    room: Room | None
    #: What the cost of a month may grow by, below zero what it has to shrink by; None for no bound.
    money: float | None
    #: Of a GiB and month by tier.
    prices: Mapping[str, float]


class Bounded(NamedTuple):
    """A plan within its limits, and what is not in it for want of room and of money."""

    plan: DataFrame
    left_out: dict[str, Action]


class Cut(NamedTuple):
    """From which step on downwards there is nothing left, and what that leaves out."""

    #: Of room, by pool.
    refused_from: dict[str, int]
    #: Of money; what saves needs none.
    unfunded_from: int | None
    left_out: dict[str, Action]


def room_of(fleet: Fleet) -> Room:
    """The room of a fleet: a pool is a tier of a node, or of all nodes that share a device of it.

    A node without a device of a tier that its queues name has no room there.
    """
    free = {key: device.free_bytes for key, device in fleets.by_key(fleet).items()}
    pools: dict[Where, str] = {}
    members: dict[str, set[tuple[str, ...]]] = {}
    for each in fleet.snapshots:
        used: dict[str, set[tuple[str, ...]]]
        used = {tier: set() for queue in each.settings.queues for tier in queue.tiers}
        for device in each.settings.devices:
            if device.tier:
                used.setdefault(device.tier, set()).add(fleets.device_key(each.node, device))
        for tier, keys in used.items():
            shared = sorted(key for key in keys if key[0] != fleets.OF_A_NODE)
            pool = f"{tier} of {' '.join(shared[0]) if shared else each.node}"
            pools[each.node, tier] = pool
            members.setdefault(pool, set()).update(keys)
    return Room(pools, {pool: sum(map(free.__getitem__, keys)) for pool, keys in members.items()})


def bounded(plan: DataFrame, limits: Limits) -> Bounded:
    """Keep to what there is room and money for, the most valuable first.

    One pass over the plan, beside that of whoever writes it. What lacks both counts as lacking
    money.
    """
    money, room = limits.money, limits.room or Room({}, {})
    if money is None and limits.room is None:
        return Bounded(plan, {})
    prices = {} if money is None else limits.prices
    lines = bounds.histogram(plan, room.pools, prices).toArrow()
    refused_from, unfunded_from, left_out = cut(lines, room.free_bytes, money)
    if unfunded_from is not None:
        plan = bounds.affordable(plan, prices, unfunded_from)
    if refused_from:
        of_tiers = {
            where: refused_from[pool] for where, pool in room.pools.items() if pool in refused_from
        }
        plan = bounds.fitting(plan, of_tiers)
    return Bounded(plan, left_out)


def cut(lines: pa.Table, free_bytes: Mapping[str, int], money: float | None) -> Cut:
    """Cut off what there is neither room nor money for, the least valuable first.

    Args:
        lines: as `histogram` makes them.
        free_bytes: by pool; one that is not named has no bound.
        money: what the cost of a month may grow by; below zero it has to shrink. What actions save
            can be spent on others, if there is room to save it.
    """
    lines = lines.sort_by([("step", "descending")]).combine_chunks()
    names = ("step", "costs", "actions", "bytes", "cost")
    step, costs, actions, size, cost = (
        lines.column(name).to_numpy(zero_copy_only=False) for name in names
    )
    encoded = lines.column("pool").combine_chunks().dictionary_encode()
    pool = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    free = [free_bytes.get(name) for name in encoded.dictionary.to_pylist()]
    unfunded_from, left_out = None, dict[str, Action]()
    paid = np.ones(len(step), dtype=bool)
    if money is not None:
        fits = step > _refused_from(pool, step, size, free)[pool]
        left = money * (1 + math.copysign(_SAME, money)) - cost[fits & ~costs].sum()
        short = np.flatnonzero(costs & (np.cumsum(np.where(fits & costs, cost, 0.0)) > left))
        if len(short):
            unfunded_from = int(step[short[0]])
            # What is not paid for takes no room from what saves.
            paid = ~costs | (step > unfunded_from)
            left_out["money"] = Action(int(actions[~paid].sum()), int(size[~paid].sum()))
    refused = _refused_from(pool, step, np.where(paid, size, 0), free)
    lacking = paid & (step <= refused[pool])
    if lacking.any():
        left_out["room"] = Action(int(actions[lacking].sum()), int(size[lacking].sum()))
    found = zip(encoded.dictionary.to_pylist(), refused.tolist(), strict=False)
    return Cut({name: int(at) for name, at in found if at > -math.inf}, unfunded_from, left_out)


def _refused_from(pool: Ints, step: Ints, size: Ints, free: list[int | None]) -> Floats:
    """By pool, and at last for what has none: from which step on downwards there is no room."""
    found = np.full(len(free) + 1, -math.inf)
    for number, most in enumerate(free):
        mine = np.flatnonzero(pool == number)
        over = len(mine) if most is None else np.searchsorted(size[mine].cumsum(), most, "right")
        if over < len(mine):
            found[number] = step[mine[over]]
    return found
