"""META facts that cannot be read: no message is lost with them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core import facts as fact
from ebbmq.node import doctor
from tests.crash.journal_records import erase_header, forget_checkpoints, give_back, records
from tests.crash.reports import named
from tests.crash.test_damage_without_checkpoint import CALM

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash


def _killed(broker: Broker, directory: Path, target: Path) -> Path:
    """What a kill -9 leaves after a record that proves that all before it was synced."""
    for _ in range(2):
        broker.publish("a", [Message(b"proof")], confirm="synced")
    shutil.copytree(directory, target)
    return target


def _erase_declarations(directory: Path, which: slice) -> None:
    for record in [record for record in records(directory) if record.kind == fact.META][which]:
        erase_header(directory, record)


def _bodies(broker: Broker, queue: str) -> list[bytes]:
    return [lease.body for lease in broker.lease(queue, count=100)]


@pytest.fixture
def only_queue(tmp_path: Path) -> Path:
    """A store of which every declaration is lost."""
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a", max_attempts=1))
        broker.publish("a", [Message(b"%d" % n) for n in range(5)])
        copy = _killed(broker, tmp_path / "data", tmp_path / "copy")
    forget_checkpoints(copy)
    _erase_declarations(copy, slice(None))
    return copy


def test_messages_of_a_queue_whose_declaration_is_lost_are_served(only_queue: Path) -> None:
    problems = doctor.examine(only_queue).problems
    told = "the declaration of partition 1 cannot be read; its 7 messages are in queue "
    assert told + "'recovered-1'" in problems
    assert not named(problems)
    with Broker.open(only_queue, CALM) as broker:
        assert broker.health()["damage"] == problems
        assert [spec.name for spec in broker.queues()] == ["recovered-1"]
        leases = broker.lease("recovered-1", count=100)
        assert [lease.body for lease in leases] == [b"%d" % n for n in range(5)] + [b"proof"] * 2
        broker.retry("recovered-1", [lease.token for lease in leases])
        assert broker.stats("recovered-1")["depth"]["scheduled"] == 7
    with Broker.open(only_queue, CALM) as broker:
        assert broker.health()["damage"] == []
        assert broker.stats("recovered-1")["depth"]["scheduled"] == 7


def test_they_can_be_moved_to_their_queue_once_it_is_declared_again(only_queue: Path) -> None:
    with Broker.open(only_queue, CALM) as broker:
        broker.declare(QueueSpec("a"))
        (new,) = broker.publish("a", [Message(b"new")])
        assert new.id.startswith("2-")
        assert broker.redrive("recovered-1", to="a") == 7
        assert len(_bodies(broker, "a")) == 8
        broker.delete("recovered-1")
    with Broker.open(only_queue, CALM) as broker:
        assert [spec.name for spec in broker.queues()] == ["a"]


def test_a_name_that_is_taken_is_not_taken_again(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        broker.declare(QueueSpec("recovered-3"))
        broker.publish("recovered-3", [Message(b"mine")])
        broker.declare(QueueSpec("late"))
        broker.publish("late", [Message(b"late")])
        copy = _killed(broker, tmp_path / "data", tmp_path / "copy")
    forget_checkpoints(copy)
    _erase_declarations(copy, slice(-1, None))
    with Broker.open(copy, CALM) as broker:
        assert _bodies(broker, "recovered-3") == [b"mine"]
        assert _bodies(broker, "recovered-3-2") == [b"late"]
        assert _bodies(broker, "a") == [b"proof"] * 2


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_later_declaration_has_the_queue_by_its_name(
    tmp_path: Path, with_checkpoint: bool
) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        broker.engine.checkpoint()
        broker.declare(QueueSpec("b"))
        broker.publish("b", [Message(b"before")])
        broker.declare(QueueSpec("c"))
        broker.publish("b", [Message(b"after")])
        copy = _killed(broker, tmp_path / "data", tmp_path / "copy")
    if not with_checkpoint:
        forget_checkpoints(copy)
    _erase_declarations(copy, slice(-2, -1))
    assert not named(doctor.examine(copy).problems)
    with Broker.open(copy, CALM) as broker:
        assert [spec.name for spec in broker.queues()] == ["a", "b", "c"]
        assert _bodies(broker, "b") == [b"before", b"after"]
        assert len(broker.health()["damage"]) == 1


def test_a_checkpoint_does_not_hide_a_lost_declaration(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        broker.engine.checkpoint()
        broker.declare(QueueSpec("b"))
        broker.publish("b", [Message(b"kept")])
        copy = _killed(broker, tmp_path / "data", tmp_path / "copy")
    _erase_declarations(copy, slice(-1, None))
    with Broker.open(copy, CALM) as broker:
        assert _bodies(broker, "recovered-2") == [b"kept"]
        assert _bodies(broker, "a") == [b"proof"] * 2


def test_a_queue_without_messages_is_not_made(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        broker.declare(QueueSpec("b"))
        broker.publish("b", [Message(b"gone")])
        broker.ack("b", [lease.token for lease in broker.lease("b")], confirm="synced")
        copy = _killed(broker, tmp_path / "data", tmp_path / "copy")
    forget_checkpoints(copy)
    _erase_declarations(copy, slice(-1, None))
    with Broker.open(copy, CALM) as broker:
        assert [spec.name for spec in broker.queues()] == ["a"]
        broker.declare(QueueSpec("c"))
        (receipt,) = broker.publish("c", [Message(b"new")])
        assert receipt.id.startswith("3-"), "a number of a partition was used twice"


def test_relocated_messages_are_served_though_every_declaration_is_lost(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data", CALM) as broker:
        broker.declare(QueueSpec("a"))
        for n in range(200):
            broker.publish("a", [Message(b"%1500d" % n)], confirm="written")
        leases = broker.lease("a", count=200)
        done = [lease for n, lease in enumerate(leases) if n % 10]
        broker.ack("a", [lease.token for lease in done], confirm="synced")
        broker.release("a", [lease.token for lease in leases[::10]])
        give_back(broker, lambda: bool(list((tmp_path / "data/journal").glob("old-*"))))
        copy = _killed(broker, tmp_path / "data", tmp_path / "copy")
    forget_checkpoints(copy)
    _erase_declarations(copy, slice(None))
    with Broker.open(copy, CALM) as broker:
        expected = [lease.body for lease in leases[::10]] + [b"proof"] * 2
        assert sorted(_bodies(broker, "recovered-1")) == sorted(expected)
