"""What may be written where: the room of a fleet, whose nodes share some of their devices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ebbmq.feed import layout
from ebbmq.feed.settings import DeviceRoom, QueueParameters, Settings
from ebbmq.model import AdaptSpec
from ebbmq_spark.jobs.bounding import Limits, bounded, room_of
from ebbmq_spark.jobs.fleet import (
    Fleet,
    Snapshot,
    by_key,
    cost,
    prices,
    queues,
    read,
    tiers,
)
from tests.pipeline.lakes import DAY_MS, Node
from tests.pipeline.rows import NOW_MS
from tests.pipeline.test_plans import actions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TIERS = ("ssd", "hdd", "s3")
QUEUE = msgspec.convert(
    {
        **dict.fromkeys(QueueParameters.__struct_fields__, 1),
        "name": "q", "tiers": TIERS, "on_faded": "archive", "adapt": None, "max_replicas": None,
    },
    QueueParameters, strict=False,
)  # fmt: skip


def room(
    name: str, kind: str, tier: str, free_bytes: int, *, usable: bool = True, **more: Any
) -> DeviceRoom:
    told = {
        "name": name, "kind": kind, "tier": tier, "durable": True, "usable": usable,
        "used_bytes": 7, "capacity_bytes": 7 + free_bytes, "cost_per_gib_month": 0.1,
    }  # fmt: skip
    return DeviceRoom(**{**told, **more})


def test_rates_of_a_queue_go_by_the_first_node_on_which_they_adapt() -> None:
    adapts = [None, AdaptSpec(raise_above_ms=10, lower_below_ms=5), AdaptSpec(), None]
    told = [
        node(name)._replace(settings=Settings(queues=(msgspec.structs.replace(QUEUE, adapt=each),)))
        for name, each in zip("abcd", adapts, strict=True)
    ]
    assert [each.adapt for each in queues(Fleet(told, [], {}, []))] == [adapts[1]]
    assert [each.adapt for each in queues(Fleet(told[::3], [], {}, []))] == [None]


def node(name: str, *devices: DeviceRoom) -> Snapshot:
    return Snapshot(name, 0, 0, (), 0, Settings(queues=(QUEUE,), devices=devices))


@pytest.mark.parametrize("set_ms", [-2 * DAY_MS, 0, 2 * DAY_MS])
def test_what_a_node_says_the_time_is_does_not_depend_on_its_calendar(
    tmp_path: Path, set_ms: int
) -> None:
    with Node(tmp_path, "a", 1_700_000_000_000, {"snapshot_every_ms": 0}) as one:
        one.work()
        one.clock.ahead_ms = set_ms
        began_s = time.time()
        one.broker.engine.feed.ask_snapshot()
        one.clock.advance(10)
        told_ms = one.broker.engine.now_ms()
    fleet = read(tmp_path / "lake", time.time_ns() // 1_000_000)
    took_ms = int((time.time() - began_s) * 1_000) + 1_000
    (found,) = fleet.snapshots
    assert found.at_ms == told_ms
    assert told_ms <= found.now_ms <= told_ms + took_ms


def test_a_snapshot_without_messages_has_instants_all_the_same(tmp_path: Path) -> None:
    with Node(tmp_path, "a", NOW_MS) as one:
        one.clock.ahead_ms = -3 * DAY_MS
        one.clock.advance(10)
        told_ms = one.broker.engine.now_ms()
    (found,) = read(tmp_path / "lake", time.time_ns() // 1_000_000).snapshots
    assert (found.rows, found.at_ms) == (0, told_ms + 10)
    assert found.at_ms <= found.now_ms


def rooms(*nodes: Snapshot) -> dict[tuple[str, str], tuple[str, int]]:
    """The pool that a tier of a node writes to, and what is free there."""
    pools, free_bytes = room_of(Fleet(list(nodes), [], {}, []))
    return {where: (pool, free_bytes[pool]) for where, pool in pools.items()}


def test_a_node_has_the_room_of_its_devices_and_none_in_a_tier_without_them() -> None:
    found = rooms(
        node(
            "a",
            room("log", "log", "ssd", 100),
            room("one", "file", "hdd", 30),
            room("two", "file", "hdd", 12),
            room("away", "file", "hdd", 1_000, usable=False),
        ),
    )
    assert found == {
        ("a", "ssd"): ("ssd of a", 100),
        ("a", "hdd"): ("hdd of a", 42),
        ("a", "s3"): ("s3 of a", 0),
    }


def test_a_device_that_nodes_share_counts_once_as_who_sees_least_room_on_it_sees_it(
    spark: SparkSession,
) -> None:
    found = rooms(
        node("a", room("cold", "object", "s3", 100)),
        node("b", room("cold", "object", "s3", 90), room("own", "file", "s3", 10)),
    )
    assert found["a", "s3"] == found["b", "s3"]
    assert found["a", "s3"][1] == 100
    plan = actions(spark, *((f"m{n}", "archive", "s3", 1, 5.0) for n in range(300)))
    both = plan.unionAll(plan.selectExpr("'b' AS node", *plan.columns[1:]))
    shared = [node(name, room("cold", "object", "s3", 100)) for name in "ab"]
    limits = Limits(room_of(Fleet(shared, [], {}, [])), None, {})
    assert 80 < bounded(both, limits).plan.count() <= 100


def test_of_a_device_that_nodes_share_as_much_is_used_as_any_of_them_has_seen() -> None:
    def seen(used_bytes: int, capacity_bytes: int = 100, *, usable: bool = True) -> DeviceRoom:
        return room(
            "cold", "object", "s3", 0, usable=usable, place="s3://one",
            used_bytes=used_bytes, capacity_bytes=capacity_bytes,
        )  # fmt: skip

    def found(*views: DeviceRoom) -> tuple[int, int]:
        fleet = Fleet(
            [node(name, each) for name, each in zip("abc", views, strict=True)], [], {}, []
        )
        (device,) = by_key(fleet).values()
        assert tiers(fleet)["s3"].used_bytes == device.used_bytes
        return device.used_bytes, device.free_bytes

    # Who counted before the others wrote does not matter, wherever it stands.
    assert found(seen(40), seen(90), seen(50)) == (90, 10)
    # Nor what a node may use of it: room is what is left of the least.
    assert found(seen(40, 95), seen(90, 200), seen(50, 400)) == (90, 5)
    # Nor one that cannot reach it, except that it writes nothing there.
    assert found(seen(0, usable=False), seen(90), seen(50)) == (90, 0)


def test_nodes_without_a_device_in_common_do_not_bound_each_other() -> None:
    found = rooms(
        node("a", room("archive-a", "object", "s3", 0)),
        node("b", room("archive-b", "object", "s3", 100)),
        node("c", room("archive-b", "object", "s3", 100), room("own", "file", "s3", 1)),
    )
    assert found["a", "s3"][1] == 0
    assert found["b", "s3"] == found["c", "s3"]
    assert found["b", "s3"][1] == 101


@pytest.mark.parametrize("kind", ["sql", "object", "grid"])
def test_a_device_is_shared_by_nodes_that_name_the_same_place(kind: str) -> None:
    def of(*places: str | None) -> Fleet:
        nodes = [
            node(name, room("disk", kind, "s3", 90, used_bytes=10, place=place))
            for name, place in zip("ab", places, strict=True)
        ]
        return Fleet(nodes, [], {}, [])

    def seen(fleet: Fleet) -> tuple[int, int]:
        pools = {pool for (_, tier), pool in room_of(fleet).pools.items() if tier == "s3"}
        return tiers(fleet)["s3"].used_bytes, len(pools)

    assert seen(of("", "")) == (20, 2)
    assert seen(of("s3://one", "s3://two")) == (20, 2)
    assert seen(of("s3://one", "s3://one")) == (10, 1)
    # Of brokers that do not say it: by the name, as their kind may be shared.
    assert seen(of(None, None)) == (10, 1)


def test_what_a_month_costs_is_what_each_device_has_at_its_own_price() -> None:
    gib = 1 << 30
    cheap = room("cheap", "file", "hdd", 0, used_bytes=100 * gib, cost_per_gib_month=1.0)
    dear = room("dear", "file", "hdd", 0, used_bytes=2 * gib, cost_per_gib_month=9.0)
    fleet = Fleet([node("a", cheap, dear)], [], {}, [])
    assert cost(fleet) == 118.0
    assert prices(fleet)["hdd"] == 5.0


def test_a_price_is_the_mean_of_a_tier_and_where_that_is_not_known_of_all() -> None:
    def priced(name: str, tier: str, price: float) -> DeviceRoom:
        return msgspec.structs.replace(
            room(name, "file", tier, 0, usable=name != "away"),
            used_bytes=1 << 30,
            cost_per_gib_month=price,
        )

    devices = priced("log", "ssd", 0.5), priced("x", "hdd", 0.75), priced("away", "hdd", 0.25)
    fleet = Fleet([node("a", *devices), node("b", priced("log", "ssd", 1.5))], [], {}, [])
    assert prices(fleet) == {"ssd": 1.0, "hdd": 0.5, "": 0.75}
    assert cost(fleet) == 3.0
    assert prices(Fleet([], [], {}, [])) == {"": 0.0}


def test_partitions_that_a_snapshot_lacks_are_noted(tmp_path: Path) -> None:
    with Node(tmp_path, "a") as one:
        one.work()
    lake = tmp_path / "lake"
    paths = sorted((lake / "catalog" / layout.MANIFESTS).rglob("*.json"))

    def noted(faulty: list[dict[str, Any]] | None) -> list[str]:
        for path in paths:
            told = msgspec.json.decode(path.read_bytes())
            told["settings"].pop("faulty")
            if faulty is not None:
                told["settings"]["faulty"] = faulty
            path.write_bytes(msgspec.json.encode(told))
        return [each for each in read(lake, NOW_MS).notes if "faulty" in each]

    assert noted([{"queue": "q", "partition": 3}]) == [
        "partition 3 of queue q of node a is faulty: its messages are not counted"
    ]
    assert noted(None) == []  # as older brokers wrote it
