"""The fleet as its lake shows it: the last snapshot of each node, parameters, room and cost."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from pyspark.sql import types as T

from ebbmq.feed.settings import Settings
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import DAY_MS, GIB
from ebbmq_spark import soundness
from ebbmq_spark.lake import opened, visible
from ebbmq_spark.schemas import frame_of
from ebbmq_spark.transforms import parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq.feed.settings import DeviceRoom, QueueParameters
    from ebbmq_spark.lake import Lake, Where

#: Of kinds that several nodes may use at once.
_SHARED: Final = ("object", "sql", "grid")
#: How the key of a device begins that is no other node's.
OF_A_NODE: Final = "of a node"
#: Clocks that differ by less are taken to be the same.
_SAME_CLOCK_MS: Final = 60_000
#: A node that wrote nothing for so long is not there: it would refuse the plan.
_GONE_MS: Final = DAY_MS
_OF_NODE: Final = T.StructType().add("node", T.StringType()).add("now_ms", T.LongType())


class Snapshot(NamedTuple):
    """The last snapshot of a node that is complete."""

    node: str
    #: When it was begun, in queue time of the node: what is planned from it is dated by that.
    at_ms: int
    #: What queue time is at the instant of the run, about.
    now_ms: int
    files: tuple[str, ...]
    rows: int
    settings: Settings


class Fleet(NamedTuple):
    """All nodes of a lake that wrote a snapshot."""

    snapshots: list[Snapshot]
    manifests: list[Manifest]
    refused: dict[str, UnknownFeed]
    notes: list[str]
    #: The instant of the run, by the clock of this machine.
    at_ms: int = 0

    @property
    def files(self) -> list[str]:
        """All files of all snapshots."""
        return [file for each in self.snapshots for file in each.files]

    @property
    def rows(self) -> int:
        """Messages in all snapshots."""
        return sum(each.rows for each in self.snapshots)


def read(
    where: Where, now_ms: int, aside: Mapping[str, UnknownFeed] = MappingProxyType({})
) -> Fleet:
    """The last snapshot of each node that can be read.

    Args:
        where: the lake.
        now_ms: the instant of the run, by the clock of this machine.
        aside: manifests that are known to name a damaged file, and why.
    """
    lake = opened(where)
    found = visible(lake, CATALOG)
    wrong = {**dict(zip(found.refused_names, found.refused, strict=True)), **aside}
    last: dict[str, Manifest] = {}
    for each in sorted(found.manifests, key=lambda each: (each.boot, each.number), reverse=True):
        if each.node not in last and soundness.name_of(each) not in wrong:
            why = soundness.refused(lake, [each])
            wrong |= why
            if not why:
                last[each.node] = each
    refused = {name: why for name, why in wrong.items() if name.startswith(f"{CATALOG.name}/")}
    fleet = Fleet([], list(last.values()), refused, [], at_ms=now_ms)
    for node, manifest in sorted(last.items()):
        # A node that takes it away at this moment wrote a newer one a moment ago.
        seen_ms = lake.modified_ms(soundness.name_of(manifest)) or now_ms
        age_ms, skew_ms = now_ms - seen_ms, manifest.written_at_ms - seen_ms
        if age_ms > _GONE_MS:
            fleet.notes.append(f"node {node} wrote its last snapshot {age_ms // DAY_MS} days ago")
            continue
        if manifest.settings is None:
            fleet.notes.append(f"node {node} does not say what its queues ask for")
            continue
        if abs(skew_ms) >= _SAME_CLOCK_MS:
            fleet.notes.append(f"the clock of node {node} differs by {skew_ms / 1_000:.0f} s")
        for faulty in manifest.settings.faulty:
            fleet.notes.append(
                f"partition {faulty.partition} of queue {faulty.queue} of node {node} is faulty: "
                "its messages are not counted"
            )
        fleet.snapshots.append(_snapshot(lake, manifest, max(0, age_ms)))
    return fleet


def _snapshot(lake: Lake, manifest: Manifest, age_ms: int) -> Snapshot:
    begun_ms = manifest.first_at_ms or manifest.written_at_ms
    return Snapshot(
        manifest.node,
        begun_ms,
        (manifest.last_at_ms or begun_ms) + age_ms,
        tuple(lake.file(part.path) for part in manifest.parts),
        sum(part.rows for part in manifest.parts),
        manifest.settings or Settings(),
    )


def parameters_of(spark: SparkSession, fleet: Fleet) -> DataFrame:
    """One row a node and queue: the instant of the snapshot, and the parameters."""
    schema = T.StructType([*_OF_NODE.fields, *parameters.schema().fields])
    rows = [
        (each.node, each.at_ms, *values)
        for each in fleet.snapshots
        for values in parameters.rows_of(each.settings.queues)
    ]
    return frame_of(spark, rows, schema)


def queues(fleet: Fleet) -> list[QueueParameters]:
    """Every queue once; where nodes differ, as the first by name has it that adapts its rates."""
    found: dict[str, QueueParameters] = {}
    for each in fleet.snapshots:
        for queue in each.settings.queues:
            known = found.setdefault(queue.name, queue)
            if known.adapt is None and queue.adapt is not None:
                found[queue.name] = queue
    return list(found.values())


def device_key(node: str, device: DeviceRoom) -> tuple[str, ...]:
    """What tells devices of a fleet apart: a server or store that nodes use is the same for all.

    Where nobody says whether it is one, those of a kind that may be are told by their names.
    """
    if device.place:
        return device.kind, device.place
    if device.place is None and device.kind in _SHARED:
        return device.kind, "", device.name
    return OF_A_NODE, node, device.name


def by_key(fleet: Fleet) -> dict[tuple[str, ...], DeviceRoom]:
    """Every device once, of those that nodes share as the node sees it that has least room.

    As much is used of it as any of them has seen: others wrote since a node counted, and one that
    cannot reach it knows of nothing.
    """
    found: dict[tuple[str, ...], DeviceRoom] = {}
    for each in fleet.snapshots:
        for device in each.settings.devices:
            key = device_key(each.node, device)
            known = found.setdefault(key, device)
            least = device if device.free_bytes < known.free_bytes else known
            used = max(device.used_bytes, known.used_bytes)
            found[key] = msgspec.structs.replace(least, used_bytes=used)
    return found


def devices(fleet: Fleet) -> list[DeviceRoom]:
    """Every device once."""
    return list(by_key(fleet).values())


class Tier(NamedTuple):
    """What is on the devices of a tier, in all, and what a month of it costs."""

    used_bytes: int
    capacity_bytes: int
    #: Of one GiB, the mean over its devices.
    price: float
    #: Of a month, what is on each device at its own price.
    cost: float


def cost(fleet: Fleet) -> float:
    """What a month of all that is kept costs."""
    return sum(tier.cost for tier in tiers(fleet).values())


def prices(fleet: Fleet) -> dict[str, float]:
    """What a GiB and month costs, by tier; "", where nobody knows which, is the mean of devices."""
    every = [each.cost_per_gib_month for each in devices(fleet)]
    found = {name: tier.price for name, tier in tiers(fleet).items()}
    return found | {"": sum(every) / len(every) if every else 0.0}


def tiers(fleet: Fleet) -> dict[str, Tier]:
    """Use and cost by tier; devices without one are a tier of their name."""
    found: dict[str, list[DeviceRoom]] = {}
    for device in devices(fleet):
        found.setdefault(device.tier or device.name, []).append(device)
    return {
        name: Tier(
            sum(each.used_bytes for each in members),
            sum(each.capacity_bytes for each in members),
            sum(each.cost_per_gib_month for each in members) / len(members),
            sum(each.used_bytes * each.cost_per_gib_month for each in members) / GIB,
        )
        for name, members in sorted(found.items())
    }
