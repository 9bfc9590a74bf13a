"""Relocated messages that cannot be read any more: each is named, by an opening and by doctor."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.node import doctor
from tests.crash.journal_records import (
    erase_header,
    flip_header,
    forget_checkpoints,
    give_back,
    old,
    old_records,
)
from tests.crash.reports import certain, named
from tests.crash.test_damage_without_checkpoint import CALM

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.model import Lease
    from tests.crash.journal_records import Record

pytestmark = pytest.mark.crash

QUEUES = ("a", "b")


@dataclass
class Store:
    """A directory as a kill -9 left it, with old segments, and the messages in it."""

    directory: Path
    there: set[str]
    #: A checkpoint has the rows of everything that was relocated.
    is_in_pages: bool

    def copy(self, target: Path) -> Path:
        """Another one like it."""
        shutil.copytree(self.directory, target)
        return target

    def of(self, number: int) -> set[str]:
        """The messages that an old segment has, less those that left or were moved on."""
        found: dict[str, int] = {}
        for record in old_records(self.directory):
            found |= dict.fromkeys(record.brings, record.position >> 32)
        return {identity for identity in self.there if found.get(identity) == number}


def _publish_and_thin(broker: Broker, queue: str) -> list[Lease]:
    """Publish and ack most of it; returns what is left, which stays leased."""
    for n in range(120):
        broker.publish(queue, [Message(b"%1500d" % n)], confirm="written")
    leases = broker.lease(queue, count=10_000)
    done = [lease.token for n, lease in enumerate(leases) if n % 4]
    broker.ack(queue, done, confirm="synced")
    return leases[::4]


def _relocate(broker: Broker, directory: Path, until: int) -> dict[str, list[Lease]]:
    """Have messages relocated until old segments have this number; returns those that are left."""
    kept: dict[str, list[Lease]] = {name: [] for name in QUEUES}
    deadline = time.monotonic() + 30
    while not old(directory) or old(directory)[-1] < until:
        assert time.monotonic() < deadline, "too little was relocated"
        for name in QUEUES:
            kept[name] += _publish_and_thin(broker, name)
        broker.engine.upkeep()
    return kept


@pytest.fixture(scope="module", params=["no checkpoint", "an early one", "a late one"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Old segments of two queues, the first ones given back, of the others a part left."""
    root = tmp_path_factory.mktemp("relocated")
    directory = root / "data"
    there: set[str] = set()
    with Broker.open(directory, CALM) as broker:
        for name in QUEUES:
            broker.declare(QueueSpec(name, max_attempts=0, lease_timeout_ms=86_400_000))
        gone = _relocate(broker, directory, 3)
        if request.param == "an early one":
            broker.engine.checkpoint()
        kept = _relocate(broker, directory, 7)
        for name in QUEUES:
            done = gone[name] + kept[name][::5]
            broker.ack(name, [lease.token for lease in done], confirm="synced")
        give_back(broker, lambda: old(directory)[0] > 2)
        if request.param == "a late one":
            broker.engine.checkpoint()
        for name in QUEUES:
            left = [lease for n, lease in enumerate(kept[name]) if n % 5]
            broker.ack(name, [lease.token for lease in left[::7]], confirm="synced")
            rest = [lease for n, lease in enumerate(left) if n % 7]
            broker.release(name, [lease.token for lease in rest])
            there |= {lease.id for lease in rest}
        for _ in range(2):
            there.add(broker.publish("a", [Message(b"proof")], confirm="synced")[0].id)
        shutil.copytree(directory, root / "killed")
    if request.param == "no checkpoint":
        forget_checkpoints(root / "killed")
    return Store(root / "killed", there, request.param == "a late one")


def _check(
    directory: Path, lost: set[str], there: set[str], *, may_return: bool = False
) -> list[str]:
    """See that exactly these are named, by doctor and by an opening, and exactly those served.

    What may return is named again, until it did.
    """
    examined = doctor.examine(directory).problems
    assert named(examined) == lost, (sorted(named(examined) ^ lost), examined)
    with Broker.open(directory, CALM) as broker:
        told: list[str] = broker.health()["damage"]
        # Bodies of what a checkpoint has are read when they are delivered.
        assert set(told) == {text for text in examined if not text.startswith("body of")}
        got = {lease.id for name in QUEUES for lease in broker.lease(name, count=10_000)}
        assert got == there
        assert named(broker.health()["damage"]) == lost
    with Broker.open(directory, CALM) as broker:
        assert named(broker.health()["damage"]) == (lost if may_return else set())
        assert broker.health()["ready"] is not may_return
    return told


def _check_returned(store: Store, directory: Path, lost: set[str], number: int) -> None:
    """Put a segment back into one store that was opened, and accept its loss in another."""
    accepted = directory.with_name(f"{directory.name} accepted")
    shutil.copytree(directory, accepted)
    with Broker.open(accepted, CALM, accept_damage=True) as broker:
        gone = {each.id: each.reason for name in QUEUES for each in broker.removals(name)}
        assert gone.keys() <= lost
        assert set(gone.values()) <= {"damaged"}
        for identity in lost - gone.keys():
            assert broker.why(identity)["reason"].startswith("may have been lost to the damage of")
    with Broker.open(accepted, CALM) as broker:
        assert broker.health() == {**broker.health(), "ready": True, "damage": []}
    name = f"old-{number:010}.seg"
    shutil.copy2(store.directory / "journal" / name, directory / "journal" / name)
    with Broker.open(directory, CALM) as broker:
        assert broker.health() == {**broker.health(), "ready": True, "damage": []}
        assert {lease.id for name in QUEUES for lease in broker.lease(name, count=10_000)} == lost


def test_nothing_is_said_of_old_segments_that_were_given_back(store: Store, tmp_path: Path) -> None:
    assert old(store.directory)[0] > 1, "none was"
    assert _check(store.copy(tmp_path / "copy"), set(), store.there) == []


def test_an_old_segment_that_is_missing_costs_the_messages_in_it_which_are_named(
    store: Store, tmp_path: Path
) -> None:
    named_in_all = 0
    for number in old(store.directory):
        copy = store.copy(tmp_path / str(number))
        (copy / "journal" / f"old-{number:010}.seg").unlink()
        lost = store.of(number | 1 << 31)
        told = _check(copy, lost, store.there - lost, may_return=True)
        assert f"journal old segment {number} is missing" in told
        _check_returned(store, copy, lost, number)
        named_in_all += len(lost)
    assert named_in_all > 50


def test_numbers_of_old_segments_that_are_missing_are_not_used_again(
    store: Store, tmp_path: Path
) -> None:
    copy = store.copy(tmp_path / "copy")
    last = old(copy)[-1]
    (copy / "journal" / f"old-{last:010}.seg").unlink()
    with Broker.open(copy, CALM) as broker:
        _relocate(broker, copy, last + 1)
        assert last not in old(copy)


def test_an_old_segment_that_was_cut_short_costs_what_was_cut_off(
    store: Store, tmp_path: Path
) -> None:
    for number in old(store.directory)[-2:]:
        copy = store.copy(tmp_path / str(number))
        mine = [r for r in old_records(copy) if r.position >> 32 == number | 1 << 31]
        cut = mine[len(mine) // 2]
        os.truncate(copy / "journal" / f"old-{number:010}.seg", cut.position & 0xFFFF_FFFF)
        lost = store.of(number | 1 << 31)
        kept = {i for record in mine if record.position < cut.position for i in record.brings}
        lost -= kept
        assert lost
        _check(copy, lost, store.there - lost, may_return=True)
        _check_returned(store, copy, lost, number)


def _relocations(store: Store, place: str) -> list[Record]:
    """Records of old segments, of which some are destroyed."""
    found = old_records(store.directory)
    others = [r for r in found if r.position >> 32 != found[-1].position >> 32]
    places = {"middle": others[1:-1:3], "last": found[-1:]}
    return places.get(place, others[::4] + found[-1:])


@pytest.mark.parametrize("place", ["middle", "last", "some and last"])
def test_relocations_whose_header_is_lost_cost_their_messages_which_are_named(
    store: Store, tmp_path: Path, place: str
) -> None:
    copy = store.copy(tmp_path / "copy")
    lost: set[str] = set()
    for record in _relocations(store, place):
        erase_header(copy, record)
        lost |= record.brings & store.of(record.position >> 32)
    if store.is_in_pages:
        lost = set()  # the rows are known, and bodies as they were
    assert lost or store.is_in_pages
    _check(copy, lost, store.there - lost)


@pytest.mark.parametrize("place", ["middle", "last", "some and last"])
def test_a_flipped_bit_in_the_header_of_a_relocation_is_mended(
    store: Store, tmp_path: Path, place: str
) -> None:
    copy = store.copy(tmp_path / "copy")
    for record in _relocations(store, place):
        flip_header(copy, record)
    assert _check(copy, set(), store.there) == []


def test_where_to_name_all_would_take_much_the_span_of_a_missing_old_segment_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbmq.node.compaction._MOVED_BYTES", 1 << 40)
    directory, killed = tmp_path / "data", tmp_path / "killed"
    with Broker.open(directory, CALM) as broker:
        for name in QUEUES:
            broker.declare(QueueSpec(name, max_attempts=0, lease_timeout_ms=86_400_000))
        kept = _relocate(broker, directory, 5)
        # Once more, so that nothing of what is left is in young segments only.
        _relocate(broker, directory, old(directory)[-1] + 2)
        assert broker.engine.unlisted, "all of them are named"
        for name, leases in kept.items():
            broker.release(name, [lease.token for lease in leases])
        shutil.copytree(directory, killed)
    forget_checkpoints(killed)
    number = old(killed)[0]
    waiting = {lease.id for leases in kept.values() for lease in leases}
    lost = Store(killed, waiting, is_in_pages=False).of(number | 1 << 31)
    assert lost
    (killed / "journal" / f"old-{number:010}.seg").unlink()
    examined = doctor.examine(killed).problems
    with Broker.open(killed, CALM) as broker:
        told: list[str] = broker.health()["damage"]
        got = {lease.id for name in QUEUES for lease in broker.lease(name, count=10_000)}
    assert set(told) == set(examined)
    assert f"journal old segment {number} is missing" in told
    assert lost <= named(told)
    assert named(certain(told)) <= lost, "somebody is called lost who is not"
    assert waiting - lost <= got
    assert not lost & got
