"""Ten threads call every verb at once on messages whose leases run out: nothing else goes wrong."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import EbbError
from ebbmq.model import REASON_TEXT
from ebbmq.node.peeking import STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

THREADS: Final = 10
SWITCH_S: Final = 0.000_5
#: Longer than any call takes, on a machine that is merely busy.
PATIENCE_S: Final = 120.0
ROOM: Final = {"kind": "file", "capacity_bytes": 64 << 20, "stall_ms": 60_000}
DEVICES: Final[dict[str, Any]] = {
    "devices": {"ssd": ROOM, "hdd": ROOM},
    "rules": [
        {"id": "W-1", "weight": 50, "device": "ssd", "when": "SIZE < 1"},
        {"id": "W-2", "weight": 90, "device": "hdd", "when": "IMPORTANCE > 7"},
    ],
}
QUEUES: Final = ("work", "fading", "dead", "first", "second")
SPECS: Final = (
    QueueSpec("dead", max_messages=4_000, overflow="drop_lowest"),
    QueueSpec("work", max_messages=4_000, dead_queue="dead", max_attempts=20, retry_delay_ms=0),
    QueueSpec(
        "fading",
        max_messages=2_000,
        decay_rate=1.0,
        decay_unit_ms=2_000,
        band_width=0.5,
        failure_penalty=1,
        retry_delay_ms=20,
        score_access_bonus=1.0,
    ),
    QueueSpec("first", partitions=2, max_messages=2_000, overflow="drop_lowest"),
    QueueSpec("second", max_messages=2_000, default_ttl_ms=500, dead_queue="dead"),
)


class Callers:
    """Threads that call verbs drawn by chance until the time is up."""

    def __init__(self, broker: Broker, path: Path) -> None:
        self.broker = broker
        self.path = path
        self.failures: list[BaseException] = []
        self.calls = 0
        self._numbers = itertools.count()
        self._until_s = 0.0
        often: list[Callable[[random.Random], object]] = [
            self.publish, self.publish_topic, self.lease, self.lease, self.lease_one, self.ack,
            self.retry, self.release, self.extend, self.peek, self.peek, self.why, self.stats,
        ]  # fmt: skip
        seldom: list[Callable[[random.Random], object]] = [
            self.removals, self.redrive, self.purge, self.pause, self.declare, self.delete,
            self.backup, self.evict, self.look,
        ]  # fmt: skip
        self._verbs = often * 8 + seldom
        self._tokens: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        self._ids = ["1-1"]

    def run(self, seconds: float) -> None:
        self._until_s = time.monotonic() + seconds
        threads = [threading.Thread(target=self._call, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "a call does not return"

    def _call(self, seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < self._until_s and not self.failures:
            try:
                chance.choice(self._verbs)(chance)
            except EbbError as error:
                if error.code == "storage_failed":
                    self.failures.append(error)
            except BaseException as error:
                self.failures.append(error)
            self.calls += 1

    # What is published and leased

    def _messages(self, chance: random.Random) -> list[Message]:
        headers = chance.choice([None, {"a": "b"}])
        importance = chance.randint(1, 10)
        sizes = [chance.choice([0, 10, 2_000]) for _ in range(chance.choice([1, 1, 20, 100]))]
        return [Message(bytes(size), importance=importance, headers=headers) for size in sizes]

    def publish(self, chance: random.Random) -> None:
        level = chance.choice(["memory", "written", "synced"])
        receipts = self.broker.publish(chance.choice(QUEUES), self._messages(chance), level)
        self._ids = [receipt.id for receipt in receipts]

    def publish_topic(self, chance: random.Random) -> None:
        self.broker.publish_topic("news", self._messages(chance), "written")

    def lease(self, chance: random.Random) -> None:
        queue = chance.choice(QUEUES)
        count, timeout_ms = chance.choice([10, 100, 1_000]), chance.randint(30, 500)
        leases = self.broker.lease(queue, count, lease_timeout_ms=timeout_ms)
        self._tokens[queue] = [lease.token for lease in leases]

    def lease_one(self, chance: random.Random) -> None:
        queue, name = chance.choice(QUEUES), f"lease-{chance.randint(1, 20)}"
        if chance.random() < 0.5:
            self.broker.lease(queue, lease_timeout_ms=chance.randint(30, 500))
        else:
            self.broker.lease(queue, 20, name=name, lease_timeout_ms=chance.randint(30, 500))
            self.broker.read_lease(queue, name)

    def _some(self, chance: random.Random) -> tuple[str, list[str]]:
        queue = chance.choice(QUEUES)
        return queue, self._tokens[queue][: chance.choice([1, 50, 1_000])]

    def ack(self, chance: random.Random) -> None:
        queue, tokens = self._some(chance)
        self.broker.ack(queue, tokens, chance.choice(["memory", "written", "synced"]))

    def retry(self, chance: random.Random) -> None:
        self.broker.retry(*self._some(chance), delay_ms=chance.choice([None, 0, 50]))

    def release(self, chance: random.Random) -> None:
        self.broker.release(*self._some(chance))

    def extend(self, chance: random.Random) -> None:
        self.broker.extend(*self._some(chance), chance.randint(30, 500))

    # What is looked at

    def peek(self, chance: random.Random) -> None:
        queue, state = chance.choice(QUEUES), chance.choice(list(STATES))
        counted = chance.random() < 0.2
        seen = self.broker.peek(queue, chance.choice([10, 1_000]), state=state, counted=counted)
        if seen:
            self._ids = [message.id for message in seen]

    def why(self, chance: random.Random) -> None:
        self.broker.why(chance.choice(self._ids))

    def stats(self, chance: random.Random) -> None:
        self.broker.stats(chance.choice(QUEUES))

    def removals(self, chance: random.Random) -> None:
        self.broker.removals(chance.choice(QUEUES))

    def look(self, chance: random.Random) -> None:
        broker = self.broker
        broker.health(), broker.devices(), broker.queues(), broker.topics(), broker.journal()

    # What is seldom done

    def redrive(self, chance: random.Random) -> None:
        self.broker.redrive("dead", where=lambda message: message.failures < 3)

    def purge(self, chance: random.Random) -> None:
        self.broker.purge(chance.choice(QUEUES))

    def pause(self, chance: random.Random) -> None:
        queue = chance.choice(QUEUES)
        self.broker.pause(queue)
        self.broker.resume(queue)

    def declare(self, chance: random.Random) -> None:
        spec = chance.choice(SPECS)
        self.broker.declare(spec)
        self.broker.subscribe("news", chance.choice(["first", "second"]))

    def delete(self, chance: random.Random) -> None:
        name = f"short-{chance.randint(1, 3)}"
        self.broker.declare(QueueSpec(name, band_width=chance.choice([0.5, 1.0, 2.0])))
        self.broker.subscribe("news", name)
        self.broker.publish(name, self._messages(chance))
        self.broker.lease(name, 100, lease_timeout_ms=30)
        self.broker.peek(name, 100)
        self.broker.delete(name)

    def backup(self, chance: random.Random) -> None:
        self.broker.backup(self.path / f"backup-{next(self._numbers)}")

    def evict(self, chance: random.Random) -> None:
        device = chance.choice(["ssd", "hdd"])
        self.broker.evict_device(device, force=True, drain=False)
        self.broker.admit_device(device)


@pytest.fixture
def _switching() -> Iterator[None]:
    """Threads take turns far more often than they do by default."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def check_counts(broker: Broker) -> None:
    """What was published is there, or was acked, or left for a reason that is on the record."""
    for queue in QUEUES:
        stats = broker.stats(queue)
        totals = stats["totals"] | {"overflow": stats["totals"]["overflowed"]}
        left = {reason: totals[reason] for reason in REASON_TEXT.values()}
        there = sum(stats["depth"].values())
        assert totals["published"] == there + totals["acked"] + sum(left.values()), (queue, left)


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("config", [{}, DEVICES], ids=["log", "devices"])
def test_every_verb_at_once(
    tmp_path: Path, config: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    config = {**config, "upkeep_every_ms": 50, "checkpoint_every_facts": 5_000}
    with Broker.open(tmp_path / "data", config=config) as broker:
        for spec in SPECS:
            broker.declare(spec)
        broker.declare_topic(TopicSpec("news"))
        broker.subscribe("news", "first")
        broker.subscribe("news", "second")
        broker.publish("work", [Message(b"body")] * 4_000)
        before = {thread.name for thread in threading.enumerate()}
        callers = Callers(broker, tmp_path)
        callers.run(request.config.getoption("--at-once-seconds"))
        assert not callers.failures, callers.failures
        assert callers.calls > THREADS
        assert broker.health()["ready"], broker.health()
        assert before <= {thread.name for thread in threading.enumerate()}
        check_counts(broker)
    with Broker.open(tmp_path / "data", config=config) as broker:
        assert broker.health()["ready"], broker.health()
        check_counts(broker)
