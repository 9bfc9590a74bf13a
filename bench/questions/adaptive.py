"""What does adaptive holding save beside three fixed copies, or two, and what does it risk?

All are real brokers with the same six devices and the same traffic of some days, on a clock that is
moved by the hour. Without adaptivity every message has three copies on fast disks until it is
consumed, or two, which also survive the loss of any one device. With it an important message has
two, for half a day on fast disks and then on slow ones; any other has one, which goes to a slow
disk and then to the archive. What is counted are the bytes of copies at each hour; what a log has
not compacted yet is not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench import trace
from bench.holding import GIB, file_device, is_quiet, object_device, open_holding
from bench.load import HOUR_MS, KIB
from bench.row import Row, at_most, stated
from bench.run import wait_until
from bench.trace import IMPORTANT, QUEUES, READ_AGAIN
from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import name_of
from ebbmq.node.outflow import parse_id
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.run import Run
    from bench.trace import Arrival
    from ebbmq.model import Lease

FAST: Final = "fast"
FAST_SHARE: Final = 0.6
COST_SHARE: Final = 0.7
#: Per GiB and month: SSD, hard disk and object store as large providers sell them.
PRICES: Final = {FAST: 0.08, "slow": 0.045, "archive": 0.023}
TIERS: Final = (FAST, "slow", "archive")
DEVICES: Final[dict[str, dict[str, Any]]] = {
    "log": {"tier": FAST},
    "ssd1": file_device(tier=FAST),
    "ssd2": file_device(tier=FAST),
    "hdd1": file_device(tier="slow"),
    "hdd2": file_device(tier="slow"),
    "cold": object_device(tier="archive"),
}
#: So that what is read after hours is not all in RAM.
CACHE_BYTES: Final = 1024 * KIB


class Kept(NamedTuple):
    """A message that is stored."""

    size: int
    importance: int


class Found:
    """What came of one way of holding messages."""

    def __init__(self) -> None:
        self.byte_hours: Counter[str] = Counter()
        self.copy_hours = self.message_hours = self.published_bytes = 0
        self.reads: Counter[str] = Counter()
        #: Messages that at some hour had all they have on one device.
        self.at_risk: set[int] = set()
        self.important_at_risk: set[int] = set()

    def fast_byte_days(self) -> float:
        """Bytes on the fast tier times days."""
        return sum(n for device, n in self.byte_hours.items() if _tier(device) == FAST) / 24

    def cost(self, hours: int) -> float:
        """A month of what is held on average, for each TiB published a day."""
        held = sum(PRICES[_tier(device)] * n / GIB for device, n in self.byte_hours.items()) / hours
        return held * 1_024 * GIB / (self.published_bytes / hours * 24)

    def read_fast(self) -> float:
        """The share of reads that came from RAM or the fast tier."""
        return (self.reads["ram"] + self.reads[FAST]) / self.reads.total()


def measure(run: Run) -> list[Row]:
    """The same traffic, held each way."""
    hours, mean = 24 * run.scale(10, 6), run.scale(60, 10)
    found = {name: _held(run, name, hours, mean) for name in WAYS}
    fixed, two, adaptive = found.values()
    settings = {"hours": hours, "messages_per_hour": mean, "prices": PRICES}
    rows = [
        at_most(
            "fast-tier byte-days against three fixed copies",
            adaptive.fast_byte_days() / fixed.fast_byte_days(),
            "x",
            FAST_SHARE,
            **settings,
        ),
        at_most(
            "cost against three fixed copies",
            adaptive.cost(hours) / fixed.cost(hours),
            "x",
            COST_SHARE,
            **settings,
        ),
        stated(
            "fast-tier byte-days against two fixed copies",
            adaptive.fast_byte_days() / two.fast_byte_days(),
            "x",
        ),
        stated("cost against two fixed copies", adaptive.cost(hours) / two.cost(hours), "x"),
    ]
    for name, one in found.items():
        rows += _told(name, one, hours)
    return rows


def _told(name: str, found: Found, hours: int) -> list[Row]:
    """One line of the table for each figure."""
    risk = f"importance >= {IMPORTANT}, unreadable after any one loss"
    return [
        stated(f"{name}: fast tier", found.fast_byte_days() / GIB, "GiB-days"),
        stated(f"{name}: copies of a message", found.copy_hours / found.message_hours, "copies"),
        stated(f"{name}: cost per TiB published a day", found.cost(hours), "a month"),
        stated(f"{name}: reads from RAM or fast tier", found.read_fast(), "share"),
        at_most(f"{name}: {risk}", len(found.important_at_risk), "messages", 0),
        stated(f"{name}: any importance, the same", len(found.at_risk), "messages"),
    ]


def _fixed(copies: int) -> Callable[[str], QueueSpec]:
    return lambda name: QueueSpec(name, tiers=(FAST,), min_copies=copies, cache_bytes=CACHE_BYTES)


def _adaptive(name: str) -> QueueSpec:
    """Half a day on the fast tier; only what is not important goes to one copy in the archive."""
    return QueueSpec(
        name,
        tiers=TIERS,
        min_copies=2 if name == "orders" else 1,
        score_per_day=10.0,
        score_access_bonus=10.0,
        score_medium=5.0,
        score_high=10.0 if name == "readings" else 1e9,
        cache_bytes=CACHE_BYTES,
    )


#: By name: the queues, and how many copies a publisher asks for, by importance.
WAYS: Final[dict[str, tuple[Callable[[str], QueueSpec], Callable[[int], int]]]] = {
    "three fixed copies": (_fixed(3), lambda _: 3),
    "two fixed copies": (_fixed(2), lambda _: 2),
    "adaptive": (_adaptive, lambda importance: 2 if importance >= IMPORTANT else 1),
}


def _held(run: Run, name: str, hours: int, mean: int) -> Found:
    """Let the traffic pass hour by hour."""
    spec, replicas = WAYS[name]
    clock = ManualClock()
    found, kept = Found(), dict[int, Kept]()
    ages: dict[str, dict[int, int]] = defaultdict(dict)
    with open_holding(run.fresh(name), {"devices": DEVICES}, clock) as broker:
        for queue in QUEUES:
            broker.declare(spec(queue))
        for hour, arrivals in enumerate(trace.hours(hours, mean)):
            for queue in QUEUES:
                some = [each for each in arrivals if each.queue == queue]
                _publish(broker, queue, some, kept, replicas)
                found.published_bytes += sum(each.size for each in some)
                ages[queue][hour] = len(some)
                _consume(broker, queue, _due(ages[queue], hour, queue), kept, found)
            _read_again(broker, found)
            clock.advance(HOUR_MS)
            assert wait_until(lambda: is_quiet(broker), 120)
            _count(broker, kept, found)
            run.progress(f"{name}, hours", hour + 1, hours)
    return found


def _publish(
    broker: Broker,
    queue: str,
    some: list[Arrival],
    kept: dict[int, Kept],
    replicas: Callable[[int], int],
) -> None:
    if not some:
        return
    messages = [
        Message(bytes(each.size), importance=each.importance, replicas=replicas(each.importance))
        for each in some
    ]
    receipts = broker.publish(queue, messages)
    for each, receipt in zip(some, receipts, strict=True):
        kept[_name(receipt.id)] = Kept(each.size, each.importance)


def _due(ages: dict[int, int], hour: int, queue: str) -> int:
    """How many messages of a queue are old enough to be consumed."""
    latest = hour - QUEUES[queue][1] // HOUR_MS
    return sum(ages.pop(each) for each in list(ages) if each <= latest)


def _consume(broker: Broker, queue: str, count: int, kept: dict[int, Kept], found: Found) -> None:
    leases = _lease(broker, queue, count, found) if count else []
    assert len(leases) == count
    broker.ack(queue, [lease.token for lease in leases])
    for lease in leases:
        del kept[_name(lease.id)]


def _read_again(broker: Broker, found: Found) -> None:
    leases = _lease(broker, "orders", READ_AGAIN, found)
    broker.release("orders", [lease.token for lease in leases])


def _lease(broker: Broker, queue: str, count: int, found: Found) -> list[Lease]:
    before = broker.stats(queue)["cache"]["hits"]
    leases = broker.lease(queue, count)
    hits = broker.stats(queue)["cache"]["hits"] - before
    found.reads["ram"] += hits
    # Those that were not in RAM are the later ones: what is delivered first is brought there first.
    found.reads.update(lease.tier or "" for lease in leases[hits:])
    return leases


def _count(broker: Broker, kept: dict[int, Kept], found: Found) -> None:
    """An hour of everything that is stored; then what the loss of any one device would cost."""
    with broker.engine.lock:
        copies = {name: broker.engine.holdings.of(name).copies for name in kept}
    for name, devices in copies.items():
        size, importance = kept[name]
        for device in devices:
            found.byte_hours[device] += size
        found.copy_hours += len(devices)
        if len(devices) < 2:
            found.at_risk.add(name)
            if importance >= IMPORTANT:
                found.important_at_risk.add(name)
    found.message_hours += len(copies)


def _name(message_id: str) -> int:
    parts = parse_id(message_id)
    assert parts is not None
    return name_of(*parts)


def _tier(device: str) -> str:
    tier: str = DEVICES[device]["tier"]
    return tier
