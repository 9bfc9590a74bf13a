"""Segments that are gone, emptied or cut: what they had waits in doubt until they are put back."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.node import doctor
from tests.crash.copies import stored, wait_until_settled
from tests.crash.devices import MIB
from tests.crash.journal_records import give_back, records, young
from tests.crash.reports import named
from tests.crash.test_damage_without_checkpoint import CALM
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.crash

COUNT = 150
WITH_FILE = CALM | {
    "devices": {"disk": {"kind": "file", "capacity_bytes": 64 * MIB}},
    "rules": [{"id": "all", "weight": 9, "device": "disk", "when": "SIZE >= 0"}],
}
HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": os.remove,
    "emptied": lambda path: os.truncate(path, 0),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
}


def body(number: int) -> bytes:
    return b"%1500d" % number


def fill(broker: Broker, spec: QueueSpec | None = None) -> dict[str, bytes]:
    """Messages in several segments, each in a record of its own."""
    broker.declare(spec or QueueSpec("q"))
    sent: dict[str, bytes] = {}
    for number in range(COUNT):
        (receipt,) = broker.publish("q", [Message(body(number))], confirm="synced")
        sent[receipt.id] = body(number)
    return sent


def left_by(end: str, data: Path, target: Path, config: dict[str, Any]) -> dict[str, bytes]:
    """A store that was closed, or left by a kill -9 with or without a checkpoint."""
    with Broker.open(data, config) as broker:
        sent = fill(broker)
        if end == "killed":
            broker.engine.checkpoint()
        broker.publish("q", [Message(b"proof")], confirm="synced")
        if end != "closed":
            shutil.copytree(data, target)
    if end == "closed":
        shutil.copytree(data, target)
    return sent


def segment(directory: Path, number: int) -> Path:
    return directory / "journal" / f"young-{number:010}.seg"


def harmed(directory: Path, aside: Path, harm: str, number: int = 2) -> set[str]:
    """Harm a segment; returns the messages whose bodies went with it. A copy is put aside."""
    path = segment(directory, number)
    shutil.copy2(path, aside)
    mine = [record for record in records(directory) if record.position >> 32 == number]
    HARMS[harm](path)
    size = path.stat().st_size if path.exists() else 0
    return {
        identity for record in mine if record.end & 0xFFFF_FFFF > size for identity in record.brings
    }


def take(broker: Broker) -> dict[str, bytes]:
    leases = broker.lease("q", count=10_000)
    return {lease.id: lease.body for lease in leases if lease.body != b"proof"}


def see(broker: Broker) -> dict[str, bytes]:
    found = broker.peek("q", 10_000)
    return {seen.id: seen.body for seen in found if len(seen.body) > len(b"proof")}


def ack_all(broker: Broker) -> None:
    broker.ack("q", [lease.token for lease in broker.lease("q", count=10_000)], confirm="synced")


def is_accounted_for(broker: Broker) -> bool:
    """Published = live + acked + removals, since the store was opened; a kill forgets totals."""
    stats = broker.stats("q")
    since, gone = stats["since_open"], len(broker.removals("q"))
    there = sum(stats["depth"].values()) + since["acked"] + gone - since["published"]
    return there == COUNT + 1


def check_doubt(directory: Path, lost: set[str], config: dict[str, Any] = CALM) -> Broker:
    """Open a store: see that exactly these are in doubt, and named by everybody."""
    report = doctor.examine(directory)
    assert named(report.problems) == lost
    assert not report.clean
    broker = Broker.open(directory, config)
    health = broker.health()
    assert named(health["damage"]) == lost
    assert not health["ready"]
    assert "put it back" in health["problems"][0]
    assert broker.stats("q")["depth"].get("in_doubt", 0) == len(lost)
    assert {broker.why(identity)["state"] for identity in lost} == {"in_doubt"}
    return broker


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_a_lost_segment_had_waits_until_it_is_put_back(
    tmp_path: Path, end: str, harm: str
) -> None:
    store, again, aside = tmp_path / "store", tmp_path / "again", tmp_path / "aside"
    sent = left_by(end, tmp_path / "data", store, CALM)
    lost = harmed(store, aside, harm)
    assert 10 < len(lost) < COUNT // 2
    with check_doubt(store, lost) as broker:
        assert take(broker).keys() == sent.keys() - lost
        broker.engine.upkeep()
        broker.engine.checkpoint()
        assert is_accounted_for(broker)
        shutil.copytree(store, again)
    for directory in (store, again):  # closed, and killed
        with check_doubt(directory, lost) as broker:
            # More segments come, and space is given back beside the one that is missed.
            fill(broker, QueueSpec("q"))
            broker.publish("q", [Message(b"proof")])
            ack_all(broker)
            give_back(broker, lambda: young(directory)[-1] > 4)  # noqa: B023  # called here
            assert is_accounted_for(broker)
        shutil.copy2(aside, segment(directory, 2))
        assert doctor.examine(directory).problems == []
        with Broker.open(directory, CALM) as broker:
            assert broker.health()["damage"] == []
            assert broker.health()["ready"]
            assert take(broker).items() >= {i: sent[i] for i in lost}.items()
            assert broker.stats("q")["depth"].get("in_doubt", 0) == 0
            ack_all(broker)
            assert is_accounted_for(broker)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_only_acceptance_removes_what_is_in_doubt_and_on_the_record(
    tmp_path: Path, end: str, harm: str
) -> None:
    store = tmp_path / "store"
    left_by(end, tmp_path / "data", store, CALM)
    lost = harmed(store, tmp_path / "aside", harm)
    check_doubt(store, lost).close()
    with Broker.open(store, CALM, accept_damage=True) as broker:
        assert broker.health()["ready"]
        assert {(each.id, each.reason) for each in broker.removals("q")} == {
            (identity, "damaged") for identity in lost
        }
        assert {broker.why(identity)["reason"] for identity in lost} == {"damaged"}
        assert is_accounted_for(broker)
    assert doctor.examine(store).problems == []
    with Broker.open(store, CALM) as broker:
        assert broker.health()["damage"] == []
        assert not take(broker).keys() & lost


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_a_device_has_is_served_from_there_and_is_not_deleted(
    tmp_path: Path, end: str, harm: str
) -> None:
    data, store = tmp_path / "data", tmp_path / "store"
    with Broker.open(data, WITH_FILE) as broker:
        sent = fill(broker, QueueSpec("q", min_copies=2))
        wait_until_settled(broker, "copying")
        if end == "killed":
            broker.engine.checkpoint()
            broker.publish("q", [Message(b"proof")], confirm="synced")
            shutil.copytree(data, store)
    if end == "closed":
        shutil.copytree(data, store)
    assert harmed(store, tmp_path / "aside", harm)
    assert not doctor.examine(store).clean
    for is_first in (True, False):
        with Broker.open(store, WITH_FILE) as broker:
            if is_first or harm == "deleted":
                assert not broker.health()["ready"]
            assert broker.stats("q")["depth"].get("in_doubt", 0) == 0
            assert see(broker) == sent
    with Broker.open(store, WITH_FILE, accept_damage=True) as broker:
        assert broker.removals("q") == []
    with Broker.open(store, WITH_FILE) as broker:
        assert broker.health()["ready"]
        assert see(broker) == sent


@pytest.mark.parametrize("harm", HARMS)
def test_what_no_checkpoint_knows_is_there_again_once_its_segment_is(
    tmp_path: Path, harm: str
) -> None:
    store, aside = tmp_path / "store", tmp_path / "aside"
    sent = left_by("killed without a checkpoint", tmp_path / "data", store, CALM)
    lost = harmed(store, aside, harm)
    for _ in range(2):
        assert lost <= named(doctor.examine(store).problems)
        with Broker.open(store, CALM) as broker:
            assert not broker.health()["ready"]
            assert see(broker).keys() == sent.keys() - lost
            broker.engine.checkpoint()
    shutil.copy2(aside, segment(store, 2))
    with Broker.open(store, CALM) as broker:
        assert broker.health()["ready"]
        assert see(broker) == sent


def test_the_number_of_a_missing_segment_is_not_taken_by_another(tmp_path: Path) -> None:
    store, aside = tmp_path / "store", tmp_path / "aside"
    sent = left_by("closed", tmp_path / "data", store, CALM)
    last = max(record.position >> 32 for record in records(store) if record.brings)
    lost = harmed(store, aside, "deleted", last)
    assert lost
    with Broker.open(store, CALM) as broker:
        broker.publish("q", [Message(b"more")], confirm="synced")
        assert not segment(store, last).exists()
        assert last < young(store)[-1]
    shutil.copy2(aside, segment(store, last))
    with Broker.open(store, CALM) as broker:
        assert broker.health()["ready"]
        assert see(broker) == sent


def test_copies_that_an_older_store_does_not_know_are_kept_and_counted(tmp_path: Path) -> None:
    data, older = tmp_path / "data", tmp_path / "older"
    with Broker.open(data, WITH_FILE) as broker:
        fill(broker)
        wait_until_settled(broker, "copying")
        shutil.copytree(data, older)
        for number in range(20):
            broker.publish("q", [Message(body(number))], confirm="synced")
        broker.declare(QueueSpec("new"))
        broker.publish("new", [Message(body(1))], confirm="synced")
        wait_until_settled(broker, "copying")
    shutil.rmtree(older / "devices")
    shutil.copytree(data / "devices", older / "devices")

    def kept(broker: Broker) -> int:
        return next(each for each in broker.devices() if each.name == "disk").unclaimed

    with Broker.open(older, WITH_FILE) as broker:
        wait_until(lambda: kept(broker) == 21, "comparing")
        assert len(stored(broker)["disk"]) == COUNT + 21
