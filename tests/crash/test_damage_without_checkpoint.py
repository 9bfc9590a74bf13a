"""Records that lost their header, read without a checkpoint: what was in them is named exactly."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.core import facts as fact
from ebbmq.node import doctor
from tests.crash.journal_records import (
    bringing,
    erase_header,
    forget_checkpoints,
    give_back,
    records,
    young,
)
from tests.crash.reports import certain, named
from tests.crash.worker import CONFIG

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.journal_records import Record

pytestmark = pytest.mark.crash

#: Checkpoints never, and nothing is compacted but when a test says so.
CALM = CONFIG | {"checkpoint_every_facts": 10**9, "upkeep_every_ms": 86_400_000}


def _publish(broker: Broker, queue: str, count: int, body_bytes: int = 10) -> list[str]:
    """Messages, each in a record of its own."""
    return [
        broker.publish(queue, [Message(b"%*d" % (body_bytes, n))], confirm="synced")[0].id
        for n in range(count)
    ]


def _take_all(broker: Broker, queues: list[str]) -> set[str]:
    return {lease.id for queue in queues for lease in broker.lease(queue, count=10_000)}


def _leave(broker: Broker, directory: Path, target: Path) -> Path:
    """What a kill -9 leaves at this moment; a later declaration proves that all was synced."""
    broker.declare(QueueSpec("end"))
    broker.publish("end", [Message(b"a later record proves it")], confirm="synced")
    shutil.copytree(directory, target)
    forget_checkpoints(target)
    return target


def _check(directory: Path, lost: set[str], there: set[str], queues: list[str]) -> list[str]:
    """See that exactly these are named, by doctor and by an opening, and exactly those served."""
    examined = doctor.examine(directory).problems
    assert named(examined) == lost, examined
    with Broker.open(directory, CALM) as broker:
        told: list[str] = broker.health()["damage"]
        assert set(told) == set(examined)
        assert _take_all(broker, queues) == there
    return told


def test_what_was_lost_before_the_last_declaration_is_named(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        ids = _publish(broker, "a", 10)
        broker.declare(QueueSpec("b"))
        ids += _publish(broker, "a", 10) + _publish(broker, "b", 10)
        copy = _leave(broker, tmp_path / "data", tmp_path / "copy")
    lost = {ids[n] for n in (0, 3, 4, 9, 15, 20, 29)}
    for record in [bringing(copy, identity) for identity in lost]:
        erase_header(copy, record)
    _check(copy, lost, set(ids) - lost, ["a", "b"])
    for _ in range(2):
        with Broker.open(copy, CALM) as broker:
            assert broker.health()["damage"] == []
            assert {broker.why(identity)["reason"] for identity in lost} == {"damaged"}


def test_what_a_topic_told_is_named_in_every_queue(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare_topic(TopicSpec("news"))
        for name in ("a", "b"):
            broker.declare(QueueSpec(name))
            broker.subscribe("news", name)
        _publish(broker, "b", 3)
        for n in range(6):
            broker.publish_topic("news", [Message(b"%d.%d" % (n, i)) for i in range(4)])
        copy = _leave(broker, tmp_path / "data", tmp_path / "copy")
    told = [record for record in records(copy) if len(record.brings) == 8]
    every = {identity for record in records(copy) for identity in record.brings} - {"3-1"}
    for record in (told[0], told[3]):
        erase_header(copy, record)
    lost = told[0].brings | told[3].brings
    _check(copy, lost, every - lost, ["a", "b"])


def test_numbers_that_were_passed_over_after_a_kill_are_not_named(tmp_path: Path) -> None:
    directory = tmp_path / "0"
    ids: list[list[str]] = []
    for life in range(4):
        with Broker.open(directory, CALM) as broker:
            broker.declare(QueueSpec("a"))
            broker.declare(QueueSpec(f"of life {life}"))
            ids.append(_publish(broker, "a", 6))
            directory = _leave(broker, directory, tmp_path / str(life + 1))
    # The first, the last and one in the middle of a life.
    lost = {ids[0][5], ids[1][0], ids[2][5], ids[2][2], ids[3][0]}
    for record in [bringing(directory, identity) for identity in lost]:
        erase_header(directory, record)
    there = {identity for life in ids for identity in life} - lost
    _check(directory, lost, there, ["a"])


def test_what_was_acked_is_not_named(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        broker.publish("a", [Message(b"%d" % n) for n in range(10)])
        leases = broker.lease("a", count=5)
        broker.ack("a", [lease.token for lease in leases[::2]], confirm="synced")
        broker.declare(QueueSpec("b"))
        broker.ack("a", [leases[1].token], confirm="synced")
        copy = _leave(broker, tmp_path / "data", tmp_path / "copy")
    (record,) = [record for record in records(copy) if len(record.brings) == 10]
    erase_header(copy, record)
    acked = {leases[n].id for n in (0, 1, 2, 4)}
    _check(copy, record.brings - acked, set(), ["a", "b"])


def _has_holes(directory: Path) -> bool:
    """Whether segments are gone at the beginning, and between others, too."""
    found = young(directory)
    return found[0] > 1 and found[-1] - found[0] >= len(found) + 2


def _reclaim_some(broker: Broker, directory: Path) -> set[str]:
    """Have segments given back that lie between others; returns the ids that are left."""
    left: set[str] = set()
    kept: dict[str, list[str]] = {"a": [], "b": []}
    for name in kept:
        broker.declare(QueueSpec(name))
    for band in range(6):
        for n in range(60):
            left |= {broker.publish(name, [Message(b"%1500d" % n)])[0].id for name in kept}
        for name in kept:
            leases = broker.lease(name, count=60)
            if band % 2 == 0:
                broker.ack(name, [lease.token for lease in leases], confirm="synced")
                left -= {lease.id for lease in leases}
            else:
                kept[name] += [lease.token for lease in leases]
    for name, tokens in kept.items():
        broker.release(name, tokens)
    give_back(broker, lambda: _has_holes(directory))
    return left


@pytest.mark.parametrize("which", ["first", "last", "both"])
def test_what_was_given_back_is_not_named_with_what_is_lost_beside_it(
    tmp_path: Path, which: str
) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        there = _reclaim_some(broker, tmp_path / "data")
        copy = _leave(broker, tmp_path / "data", tmp_path / "copy")
    found = [record for record in records(copy) if record.brings - {"3-1"}]
    segments = {record.position >> 32 for record in found}
    lost: set[str] = set()
    for segment in sorted(segments):
        mine = [record for record in found if record.position >> 32 == segment]
        chosen = {"first": mine[:3], "last": mine[-3:], "both": mine[:1] + mine[-2:]}[which]
        for record in chosen:
            erase_header(copy, record)
            lost |= record.brings & there
    assert lost
    _check(copy, lost, there - lost, ["a", "b"])


def test_a_segment_that_is_missing_costs_the_messages_in_it_which_are_named(
    tmp_path: Path,
) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        ids = _publish(broker, "a", 200, 1_500)
        copy = _leave(broker, tmp_path / "data", tmp_path / "copy")
    found = records(copy)
    for number in (1, 3):
        lost = {i for record in found if record.position >> 32 == number for i in record.brings}
        assert lost
        damaged = tmp_path / f"without {number}"
        shutil.copytree(copy, damaged)
        (damaged / "journal" / f"young-{number:010}.seg").unlink()
        told = _check(damaged, lost, set(ids) - lost, ["a"])
        assert f"journal segment {number} is missing" in told


def test_the_last_messages_of_a_store_that_was_closed_are_named(tmp_path: Path) -> None:
    with Broker.open(tmp_path, CALM) as broker:
        for name in ("a", "b"):
            broker.declare(QueueSpec(name))
        ids = [_publish(broker, name, 5) for name in ("a", "b")]
    forget_checkpoints(tmp_path)
    lost = {*ids[0][3:], ids[1][4]}
    for record in [bringing(tmp_path, identity) for identity in lost]:
        erase_header(tmp_path, record)
    _check(tmp_path, lost, {*ids[0], *ids[1]} - lost, ["a", "b"])


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_after_a_kill_what_may_have_been_the_last_messages_of_a_queue_is_told(
    tmp_path: Path, with_checkpoint: bool
) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        for name in ("a", "b", "c"):
            broker.declare(QueueSpec(name))
        if with_checkpoint:
            broker.engine.checkpoint()
        ids = [_publish(broker, name, 5) for name in ("a", "b", "c")]
        _publish(broker, "c", 2)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = tmp_path / "copy"
    for identity in (ids[0][4], ids[1][4], ids[2][4]):
        erase_header(copy, bringing(copy, identity))
    examined = doctor.examine(copy).problems
    assert "what cannot be read may have been the last messages of 'a', 'b'" in examined
    assert named(examined) == {ids[2][4]}
    with Broker.open(copy, CALM) as broker:
        assert set(broker.health()["damage"]) == set(examined)


@dataclass
class Store:
    """A directory without checkpoints after a few lives, and what is in it."""

    directory: Path
    there: set[str]
    records: list[Record]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Queues that were declared early and late, a topic, half of it acked and much given back."""
    root = tmp_path_factory.mktemp("lives")
    chance = random.Random(11)
    directory, queues = root / "0", ["a", "b"]
    there: set[str] = set()
    for life in range(4):
        with Broker.open(directory, CALM) as broker:
            broker.declare_topic(TopicSpec("news"))
            for name in queues[:2]:
                broker.declare(QueueSpec(name))
                broker.subscribe("news", name)
            for number in range(90):
                if number == 40:
                    queues.append(f"of life {life}")
                    broker.declare(QueueSpec(queues[-1]))
                    if life % 2:
                        broker.subscribe("news", queues[-1])
                _work(broker, queues, chance, there)
            give_back(broker, lambda: young(directory)[0] > life + 1)  # noqa: B023  # called here
            if life % 2:
                directory = _leave(broker, directory, root / str(life + 1))
                there |= {peeked.id for peeked in broker.peek("end", 10)}
    found = records(directory)
    every = {identity for record in found for identity in record.brings}
    assert len({record.position >> 32 for record in found}) > 4
    assert len(there - every) < len(there) / 2, "nearly all was relocated"
    return Store(directory, there, found)


def _work(broker: Broker, queues: list[str], chance: random.Random, there: set[str]) -> None:
    batch = [Message(chance.randbytes(chance.choice((5, 500, 2_500)))) for _ in range(3)]
    if chance.random() < 0.3:
        told = broker.publish_topic("news", batch[: chance.randint(1, 3)], confirm="synced")
        there |= {receipt.id for each in told.values() for receipt in each}
    else:
        receipts = broker.publish(chance.choice(queues), batch, confirm="synced")
        there |= {receipt.id for receipt in receipts}
    queue = chance.choice(queues)
    leases = broker.lease(queue, count=4)
    broker.ack(queue, [lease.token for lease in leases], confirm="synced")
    there -= {lease.id for lease in leases}


@pytest.mark.parametrize("declarations", ["kept", "hit like others", "all erased"])
@pytest.mark.parametrize("seed", range(24))
def test_whatever_records_are_erased_what_was_in_them_is_named_exactly(
    store: Store, tmp_path: Path, seed: int, declarations: str
) -> None:
    chance = random.Random(f"{seed} {declarations}")
    copy = tmp_path / "copy"
    shutil.copytree(store.directory, copy)
    usable = [record for record in store.records[:-3] if record.kind != fact.META]
    metas = [record for record in store.records if record.kind == fact.META]
    if declarations == "hit like others":
        usable += metas
    for record in chance.sample(usable, chance.choice((1, 2, 8, 30))):
        erase_header(copy, record)
    if declarations == "all erased":
        for record in metas:
            erase_header(copy, record)
    kept = {record.position for record in records(copy)}
    erased = [record for record in store.records if record.position not in kept]
    brought = {identity for record in erased for identity in record.brings}
    ended = {i for record in store.records if record.position in kept for i in record.ends}
    acks_lost = {identity for record in erased for identity in record.ends} - ended
    lost = brought & store.there
    examined = doctor.examine(copy).problems
    told = named(certain(examined))
    if declarations == "kept":
        assert lost <= told, sorted(lost - told)
    elif declarations == "hit like others":
        assert lost <= named(examined), sorted(lost - named(examined))
    # Of what was acked, what lost its ack as well cannot be told from what is lost.
    assert told - lost <= brought & acks_lost, sorted(told - lost)
    with Broker.open(copy, CALM) as broker:
        assert set(broker.health()["damage"]) == set(examined)
        got = _take_all(broker, [spec.name for spec in broker.queues()])
    assert store.there - lost <= got
    assert got - store.there <= acks_lost
