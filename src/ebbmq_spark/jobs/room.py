"""The room of a fleet: what may be written to which devices, of which nodes share some.

A node writes to its devices of a tier, whichever has room. So what it writes there is bounded by
the room on all of them together, and by that of every larger set of devices that another node of
the tier writes to: for that much may come from both. Nodes that have no device in common, neither
directly nor through others, do not bound each other.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import types as T

from ebbmq_spark.jobs import fleet as fleets
from ebbmq_spark.jobs.ways import several
from ebbmq_spark.schemas import frame_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.jobs.fleet import Fleet, Snapshot

    Keys = frozenset[tuple[str, ...]]

_ROOM: Final = (
    T.StructType()
    .add("room", T.StringType())
    .add("free_bytes", T.LongType())
    .add("part", T.DoubleType())
)
_CAPACITY: Final = (
    T.StructType()
    .add("node", T.StringType())
    .add("tier", T.StringType())
    .add("pool", T.StringType())
    .add("rooms", T.ArrayType(_ROOM))
)


class Room(NamedTuple):
    """A set of devices by a name, what is free there, and the part of writes that goes there."""

    room: str
    free_bytes: int
    part: float = 1.0


def capacity(
    spark: SparkSession, fleet: Fleet, texts: Mapping[str, Counter[str]] = MappingProxyType({})
) -> DataFrame:
    """What may be written where: node, tier, pool, rooms; as `within_capacity` takes it.

    Args:
        spark: where to run.
        fleet: the nodes.
        texts: as a plan names the tiers of several copies, and how many there are in each.
    """
    rows: list[tuple[object, ...]] = []
    pools: dict[tuple[Room, ...], str] = {}
    tiers = {tier for each in fleet.snapshots for tier in _tiers(each)}
    by_tier = {tier: _rooms(fleet, tier) for tier in tiers}
    for each in fleet.snapshots:
        asked = {tier for queue in each.settings.queues for tier in queue.tiers}
        own = _tiers(each)
        # Where a node has no device there is no room.
        found: dict[str, tuple[Room, ...]]
        found = {tier: (Room(f"{tier} of {each.node}", 0),) for tier in asked - own}
        found |= {tier: by_tier[tier][each.node] for tier in own}
        found |= {text: _of_several(found, texts[text]) for text in several(texts, found)}
        for tier, rooms in sorted(found.items()):
            alone = len(rooms) == 1 and rooms[0].room
            pool = pools.setdefault(rooms, alone or f"{tier}, {len(pools)}")
            rows.append((each.node, tier, pool, [room._asdict() for room in rooms]))
    return frame_of(spark, rows, _CAPACITY)


def _tiers(node: Snapshot) -> set[str]:
    return {device.tier for device in node.settings.devices if device.tier}


def _rooms(fleet: Fleet, tier: str) -> dict[str, tuple[Room, ...]]:
    """What bounds each node that has devices of a tier."""
    free = {key: device.free_bytes for key, device in fleets.by_key(fleet).items()}
    used = {
        each.node: frozenset(
            fleets.device_key(each.node, device)
            for device in each.settings.devices
            if device.tier == tier
        )
        for each in fleet.snapshots
        if tier in _tiers(each)
    }
    found: dict[str, list[Room]] = {node: [] for node in used}
    for number, keys in enumerate(_bounding(used)):
        nodes = [node for node, own in used.items() if own <= keys]
        whose = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes, {number}"
        room = Room(f"{tier} of {whose}", sum(free[key] for key in keys))
        for node in nodes:
            found[node].append(room)
    return {node: tuple(rooms) for node, rooms in found.items()}


def _bounding(used: Mapping[str, Keys]) -> list[Keys]:
    """The sets of devices that count: those of nodes, and of all that are connected by them."""
    connected: list[Keys] = []
    for keys in used.values():
        apart = [each for each in connected if not each & keys]
        connected = [*apart, keys.union(*(each for each in connected if each & keys))]
    return list(dict.fromkeys([*used.values(), *connected]))


def _of_several(rooms: Mapping[str, tuple[Room, ...]], copies: Counter[str]) -> tuple[Room, ...]:
    """What bounds copies that are written to several tiers."""
    parts: dict[tuple[str, int], float] = {}
    for tier, count in copies.items():
        for room in rooms[tier]:
            key = room.room, room.free_bytes
            parts[key] = parts.get(key, 0.0) + room.part * count / copies.total()
    return tuple(Room(*key, part) for key, part in parts.items())
