"""One of three devices fails under load: nothing confirmed is lost, nothing acked is back."""

from __future__ import annotations

import random
import threading
import uuid
from typing import TYPE_CHECKING, Any, cast

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import LOG
from ebbmq.errors import EbbError
from ebbmq.holding import opening
from tests.crash.copies import holdings, stored, supposed, wait_until_settled
from tests.crash.devices import First, Trio
from tests.crash.load import LEASE_TIMEOUT_MS, PATIENCE_S, Load, drain, read_all
from tests.crash.mounts import tmpfs
from tests.history import Options, check
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq.node.devices.describing import DeviceStatus
    from tests.history import Event
    from tests.servers import Postgres, Valkey, Weed

pytestmark = pytest.mark.crash

DISK_BYTES = 48 << 20
STRAINED = -50
MOVED = 50
#: One confirms once two devices have a message, the other at once and copies afterwards.
QUEUES = ("twice", "later")
OPTIONS = Options(resting=frozenset(QUEUES))
#: The log is none of those chosen: what was moved is on the three devices alone.
RULES = [
    {"id": "S", "weight": 80, "device": "sql", "when": "IMPORTANCE >= 1"},
    {"id": "G", "weight": 70, "device": "grid", "when": "IMPORTANCE >= 1"},
]
#: What happens to a device, and what that is called for each kind of them. A directory has no
#: process of its own to be killed (a broker that is killed with it is in test_device_kill), and a
#: server of which every call fails is one that was killed. An archive, which takes the place of the
#: file device, fails to write when its disk is full.
MATRIX = {
    "killed": {"sql": "killed", "grid": "killed", "object": "killed"},
    "frozen": {"file": "frozen", "sql": "frozen", "grid": "frozen", "object": "frozen"},
    "filled up": {"file": "full", "sql": "full", "grid": "full", "object": "full"},
    "EIO at each call": {"file": "failing"},
    "EIO at each write": {"file": "unwritable", "sql": "unwritable", "grid": "unwritable"},
    "wrong bytes": {"file": "wrong", "sql": "changed", "grid": "changed", "object": "changed"},
    "nothing": {"file": "nothing", "sql": "emptied", "grid": "emptied", "object": "emptied"},
}
#: Faults of an archive that are those of its server; the others are of one in a directory.
OF_THE_SERVER = ("object killed", "object frozen")


def faults(*happenings: str) -> tuple[str, ...]:
    """The faults of every kind of device."""
    return tuple(
        f"{kind} {what}" for happening in happenings for kind, what in MATRIX[happening].items()
    )


#: A device of which nothing is heard.
SILENT = faults("killed", "frozen", "EIO at each call")
#: A device that does not answer, or refuses.
OUTAGES = (*SILENT, *faults("filled up", "EIO at each write"))
#: A device that answers, and not with what it was given.
LIES = faults("wrong bytes", "nothing")
#: What people see while it lasts; what a server has lost shows when it is asked for it.
SEEN = (*OUTAGES, "file wrong", "file nothing")
#: What may happen to a broker without an archive.
ITS_FAULTS = [fault for fault in (*OUTAGES, *LIES) if not fault.startswith("object")]


@pytest.fixture
def first(request: pytest.FixtureRequest) -> First:
    """What the first device is: what a fault is about, if that is no other one."""
    case = getattr(request.node, "callspec", None)
    fault = "" if case is None else case.params.get("fault", "")
    if fault in OF_THE_SERVER:
        return cast("Weed", request.getfixturevalue("weed"))
    return "object" if fault.startswith("object") else "file"


@pytest.fixture
def trio(
    tmp_path: Path,
    postgres: Postgres,
    valkey_server: Valkey,
    first: First,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Trio]:
    space = postgres.directory / f"space_{uuid.uuid4().hex}"
    with tmpfs(tmp_path / "mnt", DISK_BYTES) as directory, tmpfs(space, DISK_BYTES) as space:
        trio = Trio(directory, space, postgres, valkey_server, first)
        monkeypatch.setattr(opening, "FileDisk", trio.disk)
        yield trio
        trio.close()


def open_broker(tmp_path: Path, trio: Trio) -> Broker:
    broker = Broker.open(
        tmp_path / "data",
        {
            "devices": trio.config,
            "rules": [
                {"id": "F", "weight": 90, "device": trio.name, "when": "IMPORTANCE > 5"},
                *RULES,
            ],
            "placement": {"repair_after_ms": 300},
            "segment_bytes": 1 << 20,
            "checkpoint_every_facts": 1_000,
            "upkeep_every_ms": 20,
        },
    )
    shared: dict[str, Any] = {"lease_timeout_ms": LEASE_TIMEOUT_MS, "cache_enabled": False}
    broker.declare(QueueSpec("twice", min_copies=2, **shared))
    broker.declare(QueueSpec("later", **shared))
    wait_until(lambda: all(each.usable for each in status(broker).values()), "opening")
    return broker


def status(broker: Broker) -> dict[str, DeviceStatus]:
    assert broker.engine.devices is not None
    return {each.name: each for each in broker.engine.devices.describe()}


def is_noticed(before: DeviceStatus, now: DeviceStatus) -> bool:
    """Whether people see that something is wrong with a device."""
    return now.errors > before.errors or not now.usable or now.status <= STRAINED


def wait_for(load: Load, count: int) -> None:
    """Let the load go on until so many more messages are confirmed."""
    wanted = load.confirmed + count
    wait_until(lambda: load.confirmed >= wanted or load.has_failed(), "publishing")


def off_the_log(broker: Broker, device: str) -> int:
    """How many messages are on a device and no more in the log."""
    found = holdings(broker).values()
    return sum(device in each.copies and LOG not in each.copies for each in found)


@pytest.mark.parametrize("fault", [*OUTAGES, *LIES])
def test_nothing_is_lost_or_back_when_a_device_is(tmp_path: Path, trio: Trio, fault: str) -> None:
    seed = sum(map(ord, fault))
    moments = random.Random(seed)
    device = fault.partition(" ")[0]
    with open_broker(tmp_path, trio) as broker:
        with Load(broker, QUEUES, seed) as load:
            wait_for(load, moments.randint(100, 300))
            wait_until(lambda: off_the_log(broker, device) > MOVED, "moving")
            before = status(broker)[device]
            with trio.suffering(fault):
                wait_for(load, moments.randint(50, 300))
                if fault in SEEN:
                    wait_until(lambda: is_noticed(before, status(broker)[device]), "being noticed")
                if fault in SILENT:
                    wait_until(lambda: not status(broker)[device].usable, "opening the circuit")
                    assert status(broker)[device].circuit != "closed"
                    wait_for(load, moments.randint(50, 100))
            wait_for(load, moments.randint(50, 100))
        wait_until(lambda: status(broker)[device].usable, "coming back")
        left = drain(broker, QUEUES)
        assert check([*load.events(), *left], OPTIONS) == []
        wait_until_settled(broker, "forgetting")
        assert stored(broker) == supposed(broker)


@pytest.mark.parametrize("fault", SILENT)
def test_every_message_can_be_had_while_a_device_is(tmp_path: Path, trio: Trio, fault: str) -> None:
    seed = sum(map(ord, fault))
    device = fault.partition(" ")[0]
    with open_broker(tmp_path, trio) as broker:
        with Load(broker, QUEUES, seed) as load:
            wait_until(lambda: off_the_log(broker, device) > MOVED, "moving")
        with trio.suffering(fault):
            left = drain(broker, QUEUES)
        assert check([*load.events(), *left], OPTIONS) == []
        # What it could not be told is what it must forget when it is back.
        wait_until_settled(broker, "forgetting")
        assert stored(broker) == supposed(broker) == {name: set() for name in trio.config}


def test_nothing_is_lost_or_back_when_one_device_after_another_fails(
    tmp_path: Path, trio: Trio, device_faults: int
) -> None:
    chance = random.Random(device_faults)
    suffered: list[str] = []
    events: list[Event] = []
    with open_broker(tmp_path, trio) as broker:
        for number in range(device_faults):
            suffered.append(chance.choice(ITS_FAULTS))
            with Load(broker, QUEUES, chance.randrange(1 << 32), str(number)) as load:
                wait_for(load, chance.randint(50, 200))
                with trio.suffering(suffered[-1]):
                    wait_for(load, chance.randint(50, 300))
            events += load.events()
            wait_until(lambda: all(each.usable for each in status(broker).values()), "returning")
            if suffered[-1] in LIES:
                # Nobody knows of damage that nobody reads: a second loss would be one too many.
                events += read_all(broker, QUEUES)
            wait_until_settled(broker, f"after {suffered}")
        events += drain(broker, QUEUES)
        assert check(events, OPTIONS) == [], f"seed {device_faults}: {suffered}"
        wait_until_settled(broker, "forgetting")
        assert stored(broker) == supposed(broker) == {name: set() for name in trio.config}


def test_a_publish_that_waits_for_copies_is_answered_when_the_broker_closes(
    tmp_path: Path, trio: Trio
) -> None:
    answers: list[EbbError] = []
    broker = open_broker(tmp_path, trio)

    def publish() -> None:
        try:
            broker.publish("twice", [Message(b"body", importance=9)])
        except EbbError as error:
            answers.append(error)

    publisher = threading.Thread(target=publish)
    # With one device more than the log it would have its copies, if that comes before the end.
    with trio.suffering("file frozen"), trio.suffering("sql frozen"), trio.suffering("grid frozen"):
        publisher.start()
        wait_until(lambda: any(each.pending for each in holdings(broker).values()), "publishing")
        broker.close()
        publisher.join(PATIENCE_S)
    assert [answer.code for answer in answers] == ["closed_broker"]
    with open_broker(tmp_path, trio) as broker:
        assert [lease.body for lease in broker.lease("twice", wait_ms=5_000)] == [b"body"]
