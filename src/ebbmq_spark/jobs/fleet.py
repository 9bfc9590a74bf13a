"""The fleet as its lake shows it: the last snapshot of each node, parameters, room and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import types as T

from ebbmq.feed import layout
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import DAY_MS, GIB
from ebbmq_spark.lake import opened, visible
from ebbmq_spark.transforms import parameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Manifest, UnknownFeed
    from ebbmq.feed.settings import DeviceRoom, QueueParameters, Settings
    from ebbmq_spark.lake import Lake, Where

#: Of kinds that several nodes may use at once; their name is the same on all of them.
_SHARED: Final = ("object", "sql", "grid")
#: Clocks that differ by less are taken to be the same.
_SAME_CLOCK_MS: Final = 60_000
#: A node that wrote nothing for so long is not there: it would refuse the plan.
_GONE_MS: Final = DAY_MS


class Snapshot(NamedTuple):
    """The last snapshot of a node that is complete."""

    node: str
    #: What the node's clock says at the instant of the run.
    now_ms: int
    files: tuple[str, ...]
    rows: int
    settings: Settings


class Fleet(NamedTuple):
    """All nodes of a lake that wrote a snapshot."""

    snapshots: list[Snapshot]
    refused: dict[str, UnknownFeed]
    notes: list[str]

    @property
    def files(self) -> list[str]:
        """All files of all snapshots."""
        return [file for each in self.snapshots for file in each.files]

    @property
    def rows(self) -> int:
        """Messages in all snapshots."""
        return sum(each.rows for each in self.snapshots)

    @property
    def latest_ms(self) -> int:
        """What the clock that is farthest ahead says."""
        return max((each.now_ms for each in self.snapshots), default=0)


def read(where: Where, now_ms: int) -> Fleet:
    """The last snapshot of each node.

    Args:
        where: the lake.
        now_ms: the instant of the run, by the clock of this machine.
    """
    lake = opened(where)
    found = visible(lake, CATALOG)
    last: dict[str, Manifest] = {}
    for each in found.manifests:
        known = last.get(each.node)
        if known is None or (known.boot, known.number) < (each.boot, each.number):
            last[each.node] = each
    refused = dict(zip(found.refused_names, found.refused, strict=True))
    fleet = Fleet([], refused, [])
    for node, manifest in sorted(last.items()):
        skew_ms, age_ms = _clock(lake, manifest, now_ms)
        if age_ms > _GONE_MS:
            fleet.notes.append(f"node {node} wrote its last snapshot {age_ms // DAY_MS} days ago")
            continue
        if manifest.settings is None:
            fleet.notes.append(f"node {node} does not say what its queues ask for")
            continue
        if skew_ms:
            fleet.notes.append(f"the clock of node {node} differs by {skew_ms / 1_000:.0f} s")
        files = tuple(lake.file(part.path) for part in manifest.parts)
        rows = sum(part.rows for part in manifest.parts)
        fleet.snapshots.append(Snapshot(node, now_ms + skew_ms, files, rows, manifest.settings))
    return fleet


def _clock(lake: Lake, manifest: Manifest, now_ms: int) -> tuple[int, int]:
    """How far a node's clock is ahead of the lake's, and how old its snapshot is by the latter."""
    name = layout.manifest_file(
        manifest.table, manifest.written_at_ms, manifest.node, manifest.boot, manifest.number
    )
    # A node that takes it away at this moment wrote a newer one a moment ago.
    seen_ms = lake.modified_ms(name) or now_ms
    skew_ms = manifest.written_at_ms - seen_ms
    return (0 if abs(skew_ms) < _SAME_CLOCK_MS else skew_ms), now_ms - seen_ms


def parameters_of(spark: SparkSession, fleet: Fleet) -> DataFrame:
    """One row a node and queue: its parameters, and what the node's clock says."""
    own = parameters.schema()
    schema = T.StructType(
        [T.StructField("node", T.StringType()), T.StructField("now_ms", T.LongType()), *own.fields]
    )
    rows = [
        (each.node, each.now_ms, *values)
        for each in fleet.snapshots
        for values in parameters.rows_of(each.settings.queues)
    ]
    return spark.createDataFrame(rows, schema)


def queues(fleet: Fleet) -> list[QueueParameters]:
    """Every queue once; where nodes differ, the parameters of the first by name count."""
    found: dict[str, QueueParameters] = {}
    for each in fleet.snapshots:
        for queue in each.settings.queues:
            found.setdefault(queue.name, queue)
    return list(found.values())


def capacity(spark: SparkSession, fleet: Fleet) -> DataFrame:
    """What may be written where: node, tier, pool, free_bytes; as `within_capacity` takes it."""
    rows = []
    shared = _shared(fleet)
    for each in fleet.snapshots:
        asked = {tier for queue in each.settings.queues for tier in queue.tiers}
        own = {device.tier for device in each.settings.devices if device.tier}
        # Where a node has no device there is no room.
        rows += [(each.node, tier, f"{tier} of {each.node}", 0) for tier in sorted(asked - own)]
        for tier in sorted(own):
            devices = [device for device in each.settings.devices if device.tier == tier]
            if all(device.kind in _SHARED for device in devices):
                # Nodes that share a device share what is free on it.
                free = sum(room.free_bytes for room in shared.values() if room.tier == tier)
                rows.append((each.node, tier, tier, free))
            else:
                free = sum(device.free_bytes for device in devices)
                rows.append((each.node, tier, f"{tier} of {each.node}", free))
    return spark.createDataFrame(rows, "node string, tier string, pool string, free_bytes long")


def _shared(fleet: Fleet) -> dict[str, DeviceRoom]:
    """Devices that several nodes may use, each once: as the node sees it that has least room."""
    found: dict[str, DeviceRoom] = {}
    for each in fleet.snapshots:
        for device in each.settings.devices:
            if device.kind in _SHARED:
                known = found.get(device.name)
                if known is None or device.free_bytes < known.free_bytes:
                    found[device.name] = device
    return found


def devices(fleet: Fleet) -> list[DeviceRoom]:
    """Every device once."""
    own = [
        device
        for each in fleet.snapshots
        for device in each.settings.devices
        if device.kind not in _SHARED
    ]
    return own + list(_shared(fleet).values())


class Tier(NamedTuple):
    """What is on the devices of a tier, in all, and what a month of it costs."""

    used_bytes: int
    capacity_bytes: int
    #: Of one GiB, the mean over its devices.
    price: float

    @property
    def cost(self) -> float:
        """Of a month."""
        return self.used_bytes / GIB * self.price


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
        )
        for name, members in sorted(found.items())
    }
