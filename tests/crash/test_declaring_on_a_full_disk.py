"""What is declared in memory is what is on record, also where the disk takes nothing more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import Overloaded, StorageFailed
from ebbmq.journal.disk import MemoryDisk
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.crash

CONFIG = {"segment_bytes": 65_536}
ROOM = 1 << 24
#: What makes something that was not there; the text makes each of many different from the others.
MAKING: dict[str, Callable[[Broker, str], object]] = {
    "declare": lambda broker, text: broker.declare(QueueSpec(text, partitions=3)),
    "declare with a dead queue": lambda broker, text: broker.declare(
        QueueSpec("q", dead_queue=text), change=True
    ),
    "declare a topic": lambda broker, text: broker.declare_topic(TopicSpec(text)),
    "subscribe": lambda broker, _: broker.subscribe("t", "other"),
    "set a factor": lambda broker, text: broker.set_decay_factor(
        "q", 2.0, broker.stats("q")["now_ms"] + 1_000_000, text
    ),
}
#: What helps on a full disk, or undoes what does.
HELPING: dict[str, Callable[[Broker, int], object]] = {
    "pause": lambda broker, n: broker.resume("q") if n % 2 else broker.pause("q"),
    "change": lambda broker, n: broker.declare(
        QueueSpec("q", default_ttl_ms=9_000_000 + n), change=True
    ),
}


def until_full(work: Callable[[], object]) -> None:
    """Repeat it until it is refused."""
    try:
        for _ in range(100_000):
            work()
    except Overloaded as error:
        if error.code == "disk_full":
            return
        raise
    raise AssertionError("it is never full")


class Store:
    """A store on a disk of which the size can be changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock()
        self.disk = MemoryDisk(ROOM)
        self.broker = self._open()
        for name in ("q", "other", "spare"):
            self.broker.declare(QueueSpec(name))
        self.broker.declare_topic(TopicSpec("t"))
        self.broker.subscribe("t", "q")
        self.publish(100)

    def _open(self) -> Broker:
        return Broker.open(
            self._path, config=CONFIG, clock=self._clock, disk=self.disk, threaded=False
        )

    def publish(self, count: int) -> None:
        self.broker.publish("q", [Message(bytes(500))] * count)

    def fill(self) -> None:
        """Publish until nothing more is taken."""
        self.disk.capacity -= self.disk.free_bytes()
        for count in (20, 1):
            until_full(partial(self.publish, count))

    def make_room(self) -> None:
        self.disk.capacity = ROOM

    def declared(self) -> dict[str, Any]:
        """All that is declared, and what follows from it."""
        broker = self.broker
        stats = [broker.stats(spec.name) for spec in broker.queues()]
        told = ("queue", "paused", "decay_factor", "depth")
        return {
            "queues": broker.queues(),
            "topics": broker.topics(),
            "stats": [{name: each[name] for name in told} for each in stats],
            "partitions": [[part["id"] for part in each["partitions"]] for each in stats],
        }

    def reopen(self, *, killed: bool) -> None:
        if killed:
            self.broker.engine.journal.write()
            self.disk.kill()
            self.broker.engine.directory.close()
        else:
            self.broker.close()
        self.broker = self._open()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("verb", MAKING)
def test_what_is_refused_is_neither_there_nor_after_a_restart(
    store: Store, verb: str, killed: bool
) -> None:
    store.fill()
    before = store.declared()
    for _ in range(2):
        with pytest.raises(Overloaded) as refused:
            MAKING[verb](store.broker, "new")
        assert refused.value.code == "disk_full"
        assert store.declared() == before
    store.reopen(killed=killed)
    assert store.declared() == before
    store.make_room()
    MAKING[verb](store.broker, "new")
    after = store.declared()
    assert after != before
    store.reopen(killed=killed)
    assert store.declared() == after


@pytest.mark.parametrize("verb", HELPING)
def test_what_helps_goes_on_until_only_acks_have_room(store: Store, verb: str) -> None:
    store.fill()
    before: dict[str, Any] = {}
    done = 0

    def help_on() -> None:
        nonlocal before, done
        before = store.declared()
        HELPING[verb](store.broker, done)
        assert store.declared() != before
        done += 1

    until_full(help_on)
    assert done
    assert store.declared() == before
    store.reopen(killed=True)
    assert store.declared() == before


def test_what_is_there_can_be_removed_on_a_full_disk(store: Store) -> None:
    store.fill()
    store.broker.unsubscribe("t", "q")
    store.broker.delete_topic("t")
    assert store.broker.purge("q")
    store.broker.delete("q")
    for _ in range(2):
        assert [spec.name for spec in store.broker.queues()] == ["other", "spare"]
        assert store.broker.topics() == []
        store.reopen(killed=True)


def test_a_queue_that_cannot_be_deleted_keeps_its_messages(store: Store) -> None:
    store.fill()
    until_full(lambda: store.broker.pause("spare"))
    depth = sum(store.broker.stats("q")["depth"].values())
    with pytest.raises(Overloaded) as refused:
        store.broker.delete("q")
    assert refused.value.code == "disk_full"
    assert sum(store.broker.stats("q")["depth"].values()) == depth
    store.reopen(killed=True)
    assert sum(store.broker.stats("q")["depth"].values()) == depth
    store.make_room()
    store.broker.delete("q")
    assert "q" not in [spec.name for spec in store.broker.queues()]


@pytest.mark.parametrize("verb", [*MAKING, *HELPING, "delete"])
def test_a_journal_that_has_failed_changes_nothing(store: Store, verb: str) -> None:
    before = store.declared()
    store.broker.engine.journal.stop(StorageFailed("a test says so"))
    work = {
        "delete": lambda: store.broker.delete("spare"),
        **{name: partial(make, store.broker, "new") for name, make in MAKING.items()},
        **{name: partial(change, store.broker, 0) for name, change in HELPING.items()},
    }
    with pytest.raises(StorageFailed):
        work[verb]()
    assert store.declared() == before
