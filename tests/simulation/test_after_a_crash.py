"""What must hold after a crash, one scenario each, on a disk that loses all that was not synced."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core import facts as fact
from ebbmq.errors import StorageFailed
from ebbmq.journal.disk import MemoryDisk
from ebbmq.journal.segment import name_of
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"segment_bytes": 65_536}


class NothingKept:
    """The worst luck: of what was not synced a crash keeps nothing."""

    def random(self) -> float:
        return 0.0


class Lives:
    """A broker that is crashed and opened again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = 0
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.broker = self._open(root / "0")

    def _open(self, directory: Path) -> Broker:
        return Broker.open(directory, CONFIG, self.clock, disk=self.disk, threaded=False)

    def crash(self, kind: str) -> Broker:
        """The dead broker still holds its lock, so the next one gets a copy of the directory."""
        if kind == "power":
            self.disk.crash(NothingKept())
        else:
            self.disk.kill()
        before = self._root / str(self._number)
        self._number += 1
        after = self._root / str(self._number)
        shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock"))
        self.clock = ManualClock(self.clock.wall_ms())
        self.broker = self._open(after)
        return self.broker


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize(("kind", "level"), [("kill", "memory"), ("power", "written")])
def test_the_id_of_a_lost_message_is_not_given_to_another(
    lives: Lives, kind: str, level: str, has_checkpoint: bool
) -> None:
    lives.broker.declare(QueueSpec("q"))
    lives.broker.publish("q", [Message(b"safe")])
    if has_checkpoint:
        lives.broker.engine.checkpoint()
    lost = lives.broker.publish("q", [Message(b"lost")] * 3, confirm=level)  # type: ignore[arg-type]  # a table
    broker = lives.crash(kind)
    new = broker.publish("q", [Message(b"new")] * 5)
    assert not {receipt.id for receipt in lost} & {receipt.id for receipt in new}


def test_a_removal_that_a_power_cut_undid_is_not_on_record(lives: Lives) -> None:
    lives.broker.declare(QueueSpec("q"))
    (receipt,) = lives.broker.publish("q", [Message(b"m", ttl_ms=1_000)])
    lives.clock.advance(1_000)
    assert [removal.id for removal in lives.broker.removals("q")] == [receipt.id]
    broker = lives.crash("power")
    lives.clock.advance(0)
    removals = [removal.id for removal in broker.removals("q")]
    peeked = [peeked.id for peeked in broker.peek("q", 10)]
    assert removals + peeked == [receipt.id]


def test_removals_after_a_power_cut_are_on_record_where_the_log_was_cut_short(
    lives: Lives,
) -> None:
    lives.broker.declare(QueueSpec("q"))
    lives.broker.publish("q", [Message(b"first", ttl_ms=1_000)])
    lives.broker.publish("q", [Message(bytes(500))] * 50, confirm="memory")
    lives.clock.advance(1_000)
    assert len(lives.broker.removals("q")) == 1
    broker = lives.crash("power")
    (second,) = broker.publish("q", [Message(b"second", ttl_ms=1_000)])
    lives.clock.advance(1_000)
    assert second.id in [removal.id for removal in broker.removals("q")]


def test_the_removals_log_says_nothing_about_a_message_that_is_there(lives: Lives) -> None:
    lives.broker.declare(QueueSpec("q"))
    lives.broker.publish("q", [Message(b"gone", ttl_ms=1_000)] * 3, confirm="memory")
    lives.clock.advance(1_000)
    assert len(lives.broker.removals("q")) == 3
    broker = lives.crash("power")
    broker.publish("q", [Message(b"new")] * 5)
    removed = {removal.id for removal in broker.removals("q")}
    assert not removed & {peeked.id for peeked in broker.peek("q", 10)}


def test_relocated_messages_are_found_without_a_checkpoint(lives: Lives) -> None:
    broker = lives.broker
    broker.declare(QueueSpec("dense"))
    broker.publish("dense", [Message(bytes(1_000))] * 60)
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(bytes(1_000))] * 600)
    leases = broker.lease("q", count=600)
    stragglers = [lease.id for lease in leases[::60]]
    done = [lease.token for lease in leases if lease.id not in stragglers]
    broker.ack("q", done, confirm="synced")
    broker.engine.upkeep()
    names = lives.disk.names()
    assert any(name.startswith("old-") for name in names), "nothing was relocated"
    assert "young-0000000001.seg" in names
    for name in names:
        if not name.endswith(".seg"):
            lives.disk.delete(name)
    broker = lives.crash("power")
    assert broker.stats("dense")["depth"]["ready"] == 60
    leased = broker.peek("q", 100, state="leased")
    assert [peeked.id for peeked in leased] == stragglers


def test_what_a_failed_sync_left_in_the_cache_is_synced_before_it_is_delivered(
    lives: Lives,
) -> None:
    lives.broker.declare(QueueSpec("q"))
    lives.disk.fail_sync_after(0)
    with pytest.raises(StorageFailed):
        lives.broker.publish("q", [Message(b"m")], confirm="synced")
    delivered = [lease.id for lease in lives.crash("kill").lease("q")]
    broker = lives.crash("power")
    # The lease was only written, so a power cut may undo it: the message is there either way.
    there = [*broker.peek("q", 10), *broker.peek("q", 10, state="leased")]
    assert [peeked.id for peeked in there] == delivered


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_producer_is_remembered_although_the_segment_of_its_message_is_gone(
    lives: Lives, kind: str
) -> None:
    broker = lives.broker
    broker.declare(QueueSpec("q"))
    (first,) = broker.publish("q", [Message(b"x", id="mine")])
    for _ in range(20):
        broker.publish("q", [Message(bytes(30_000))])
    while leases := broker.lease("q", 100):
        broker.ack("q", [lease.token for lease in leases], confirm="synced")
    lives.clock.advance(1_000)
    assert "young-0000000001.seg" not in " ".join(lives.disk.names())
    (again,) = lives.crash(kind).publish("q", [Message(b"x", id="mine")])
    assert (again.id, again.duplicate) == (first.id, True)


def test_a_removal_that_was_told_of_is_not_undone_by_a_kill(lives: Lives) -> None:
    broker = lives.broker
    broker.declare(QueueSpec("q"))
    (receipt,) = broker.publish("q", [Message(b"x", ttl_ms=100)])
    lives.clock.advance(1_000)
    (removal,) = broker.removals("q")
    assert broker.why(receipt.id)["reason"] == removal.reason == "expired"
    assert lives.crash("kill").lease("q") == []


def tear_a_relocation(broker: Broker, disk: MemoryDisk, kept: float) -> None:
    """Begin to relocate every message, and write only so much of the record."""
    engine = broker.engine
    (shard,) = engine.catalog.shards.values()
    partition = shard.partition
    seqs = [seq for seq in range(1, partition.index.next_seq) if partition.index.read(seq)]
    images = b"".join(bytes(partition.index.row_bytes(seq)) for seq in seqs)
    bodies = [bytes([seq % 256]) * 1_000 for seq in seqs]
    told = fact.relocate(partition.pid, engine.note_clock(), seqs, images, bodies)
    segment, at = engine.journal.append_old(*told)
    size = sum(map(len, told[4]))
    file = disk.open(name_of(segment))
    file.write(at + int(size * kept), [bytes(size - int(size * kept))])
    file.sync()
    engine.journal.wait("synced", engine.journal.position)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.08, 0.5, 0.9])
def test_a_relocation_that_a_kill_cut_short_is_never_taken_for_damage(
    lives: Lives, kept: float
) -> None:
    lives.broker.declare(QueueSpec("q"))
    bodies = [bytes([seq]) * 1_000 for seq in range(1, 6)]
    lives.broker.publish("q", [Message(body) for body in bodies])
    for _ in range(3):
        tear_a_relocation(lives.broker, lives.disk, kept)
        assert lives.crash("kill").health()["damage"] == []
    assert [lease.body for lease in lives.broker.lease("q", 10)] == bodies
