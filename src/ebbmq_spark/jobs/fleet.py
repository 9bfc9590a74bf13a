"""The fleet as its lake shows it: the last snapshot of each node, parameters, room and cost."""

from __future__ import annotations

import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from pyspark.sql import types as T

from ebbmq.errors import StorageFailed
from ebbmq.feed import layout, manifests, runs
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.settings import Settings
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import DAY_MS, GIB
from ebbmq_spark import soundness
from ebbmq_spark.lake import opened, visible
from ebbmq_spark.schemas import frame_of
from ebbmq_spark.transforms import parameters
from ebbmq_spark.transforms.plans import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.layout import Named
    from ebbmq.feed.manifests import Manifest
    from ebbmq.feed.settings import DeviceRoom, QueueParameters
    from ebbmq_spark.jobs.ways import Numbering, Ways
    from ebbmq_spark.lake import Lake, Where

#: Of kinds that several nodes may use at once.
_SHARED: Final = ("object", "sql", "grid")
#: Clocks that differ by less are taken to be the same.
_SAME_CLOCK_MS: Final = 60_000
#: A node that wrote nothing for so long is not there: it would refuse the plan.
_GONE_MS: Final = DAY_MS
_SNAPSHOTS: Final = (
    T.StructType()
    .add("node", T.StringType())
    .add("boot", T.LongType())
    .add("at_ms", T.LongType())
    .add("ended_ms", T.LongType())
    .add("now_ms", T.LongType())
)
_OF_NODE: Final = T.StructType().add("node", T.StringType()).add("now_ms", T.LongType())


class Snapshot(NamedTuple):
    """The last snapshot of a node that is complete."""

    node: str
    boot: int
    #: When it was begun, in queue time of the node, as everything here.
    at_ms: int
    #: When it was complete, or later.
    ended_ms: int
    #: What it is at the instant of the run, or somewhat less.
    now_ms: int
    files: tuple[str, ...]
    rows: int
    settings: Settings
    #: What the boot wrote before has a lower one.
    number: int = 0


class Fleet(NamedTuple):
    """All nodes of a lake that wrote a snapshot."""

    snapshots: list[Snapshot]
    manifests: list[Manifest]
    refused: dict[str, UnknownFeed]
    notes: list[str]
    #: What may have events after the snapshots, as `told_since` finds it.
    told: Sequence[Manifest] = ()
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

    @property
    def latest_ms(self) -> int:
        """What the clock that is farthest ahead says."""
        return max(self.clocks().values(), default=0)

    def clocks(self) -> dict[str, int]:
        """What queue time is by now, by node: not less than of anything that was told."""
        now = {each.node: each.now_ms for each in self.snapshots}
        for told in self.told:
            now[told.node] = max(now.get(told.node, 0), told.last_at_ms or 0)
        return now


def read(
    where: Where, now_ms: int, aside: Mapping[str, UnknownFeed] = MappingProxyType({})
) -> Fleet:
    """The last snapshot of each node that can be read; of a store that was renamed, the newest.

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
    lake_ms = _lake_ms(lake, now_ms)
    # A node that takes it away at this moment wrote a newer one a moment ago.
    seen = {
        node: lake.modified_ms(soundness.name_of(each)) or lake_ms for node, each in last.items()
    }
    renamed = _renamed(lake, sorted(last, key=lambda node: (seen[node], last[node].boot)))
    for node, manifest in sorted(last.items()):
        if node in renamed:
            fleet.notes.append(f"node {node} is called {renamed[node]} by now")
            continue
        seen_ms = seen[node]
        age_ms, skew_ms = lake_ms - seen_ms, manifest.written_at_ms - seen_ms
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
        fleet.snapshots.append(_snapshot(lake, manifest, lake_ms, seen_ms))
    return fleet


def _renamed(lake: Lake, nodes: Sequence[str]) -> dict[str, str]:
    """Names that a store had before, and the one it has by now.

    A name of which nobody can tell whose it is stands for a store of its own.

    Args:
        lake: where.
        nodes: by their last snapshots, the newest one last.
    """
    try:
        told = lake.read_many([layout.node_file(node) for node in nodes])
    except (OSError, StorageFailed):
        return {}
    stores = {node: _store(each) for node, each in zip(nodes, told, strict=True)}
    named = {store: node for node, store in stores.items() if store is not None}
    return {
        node: named[store]
        for node, store in stores.items()
        if store is not None and named[store] != node
    }


def _store(stored: bytes | None) -> str | None:
    """Which store writes as a node; None where that is not told."""
    try:
        return msgspec.json.decode(stored or b"{}", type=dict[str, str]).get("store")
    except ValueError:  # also of bytes that are no text
        return None


def _snapshot(lake: Lake, manifest: Manifest, lake_ms: int, seen_ms: int) -> Snapshot:
    """A snapshot, its instants in queue time, which a calendar that was set did not change.

    Args:
        lake: where.
        manifest: which.
        lake_ms: what the lake's clock says.
        seen_ms: when the manifest was written, by the lake's clock.
    """
    begun_ms, ended_ms = _begun_ms(manifest), manifest.last_at_ms or 0
    if ended_ms > begun_ms:
        now_ms = ended_ms + max(0, lake_ms - seen_ms)
    else:
        # Nobody says when it was complete. The first file is of soon after the begin.
        first_ms = lake.modified_ms(manifest.parts[0].path) if manifest.parts else None
        now_ms = begun_ms + max(0, lake_ms - (first_ms or seen_ms))
        # The calendar does, if it was not set meanwhile; too late leaves out nothing.
        ended_ms = manifest.written_at_ms if manifest.written_at_ms >= begun_ms else now_ms
    return Snapshot(
        manifest.node,
        manifest.boot,
        begun_ms,
        ended_ms,
        now_ms,
        tuple(lake.file(part.path) for part in manifest.parts),
        sum(part.rows for part in manifest.parts),
        manifest.settings or Settings(),
        manifest.number,
    )


def _lake_ms(lake: Lake, now_ms: int) -> int:
    """What the clock says that files of a lake are dated by; this machine's may be wrong."""
    name = f"{runs.RUNS}/{runs.CLOCK}{secrets.token_hex(8)}"
    try:
        lake.replace(name, b"")
        try:
            found = lake.modified_ms(name)
        finally:
            lake.delete([name])
    except (OSError, StorageFailed):  # it may be read, and no more
        return now_ms
    return now_ms if found is None else found


def _begun_ms(manifest: Manifest) -> int:
    """When a snapshot was begun; of one that does not say, its files are named by it."""
    if manifest.first_at_ms is not None:
        return manifest.first_at_ms
    told = [layout.told_in(part.path, "at") for part in manifest.parts]
    return min((int(each) for each in told if each), default=manifest.written_at_ms)


def told_since(fleet: Fleet, lake: Lake, aside: Mapping[str, UnknownFeed]) -> list[Manifest]:
    """What may have events after the snapshot of their node; what cannot be read is left out.

    Args:
        fleet: the snapshots.
        lake: where.
        aside: manifests that are known to name a damaged file, and why.
    """
    known = {each.node: each for each in fleet.snapshots}
    before: dict[str, list[Named]] = {}

    def is_later(told: Named) -> bool:
        snapshot = known.get(told.node)
        if snapshot is None or told.boot < snapshot.boot:
            return False
        if (told.boot, told.number) > (snapshot.boot, snapshot.number):
            return True
        before.setdefault(told.node, []).append(told)
        return False

    found = visible(lake, EVENTS, is_later).manifests
    meanwhile = _meanwhile(lake, known, before)
    if meanwhile:
        found += visible(lake, EVENTS, meanwhile.__contains__).manifests
    wrong = {**soundness.refused(lake, found), **aside}
    return [each for each in found if soundness.name_of(each) not in wrong]


def _meanwhile(
    lake: Lake, snapshots: Mapping[str, Snapshot], before: Mapping[str, list[Named]]
) -> set[Named]:
    """What was told before a snapshot was complete, and of after it began: the last of each node.

    Names are dated by the calendar, so that what they make visible is looked at, backwards.
    """
    left = {node: sorted(told, key=lambda each: each.number) for node, told in before.items()}
    found: set[Named] = set()
    while left:
        last = [told.pop() for told in left.values()]
        names = [layout.manifest_file(EVENTS.name, *each) for each in last]
        for each, name, stored in zip(last, names, lake.read_many(names), strict=True):
            if stored is None or _is_before(stored, name, snapshots[each.node].at_ms):
                del left[each.node]
            else:
                found.add(each)
        left = {node: told for node, told in left.items() if told}
    return found


def _is_before(stored: bytes, name: str, at_ms: int) -> bool:
    """Whether all that a manifest makes visible happened before an instant."""
    try:
        told = manifests.decode(stored, name)
    except UnknownFeed:
        return False
    return (told.written_at_ms if told.last_at_ms is None else told.last_at_ms) < at_ms


def snapshots_of(spark: SparkSession, fleet: Fleet) -> DataFrame:
    """Which snapshot each node has, and what its clock says, as `touched.since` takes it."""
    now = fleet.clocks()
    rows = [
        (each.node, each.boot, each.at_ms, each.ended_ms, now[each.node])
        for each in fleet.snapshots
    ]
    return frame_of(spark, rows, _SNAPSHOTS)


def parameters_of(spark: SparkSession, fleet: Fleet, ways: Ways) -> DataFrame:
    """One row a node and queue: the node's clock, how cases are numbered there, its parameters."""
    schema = T.StructType([*_OF_NODE.fields, *NUMBERED.fields, *parameters.schema().fields])
    now = fleet.clocks()
    rows: list[tuple[object, ...]] = []
    for each in fleet.snapshots:
        known: dict[tuple[str, ...], Numbering] = {}
        for queue, values in zip(
            each.settings.queues, parameters.rows_of(each.settings.queues), strict=True
        ):
            if queue.tiers not in known:
                known[queue.tiers] = ways.of(queue.tiers, each.settings.devices)
            *numbers, weights = known[queue.tiers]
            rows.append((each.node, now[each.node], *numbers, list(weights.items()), *values))
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
    return "of a node", node, device.name


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
