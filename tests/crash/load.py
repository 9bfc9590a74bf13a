"""Publishers and consumers that keep on whatever happens, and the record of what they saw."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final

from ebbmq.errors import Overloaded
from tests.history import Drained, Event, Sent
from tests.recorder import MemoryKeeper, Recorder

if TYPE_CHECKING:
    from ebbmq import Broker
    from ebbmq.model import Lease

PATIENCE_S: Final = 60.0
LEASE_TIMEOUT_MS: Final = 120_000
_SIZES: Final = (10, 300, 4_000)
_FILLER: Final = bytes(range(256)) * 16


class _User(threading.Thread):
    """A thread with a record of its own, which ends with its load."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(daemon=True)
        self.keeper = MemoryKeeper()
        self.failure: BaseException | None = None
        self.chance = random.Random(f"{load.seed} {number}")
        self.load = load
        self.number = number
        self.recorder = Recorder(load.broker, self.keeper, time.monotonic_ns)

    def run(self) -> None:
        try:
            while not self.load.stopping.is_set():
                self.call()
        except BaseException as error:
            self.failure = error

    def call(self) -> None:
        raise NotImplementedError


class _Publisher(_User):
    count = 0

    def call(self) -> None:
        queue = self.chance.choice(self.load.queues)
        sent = [self._sent() for _ in range(self.chance.randint(1, 8))]
        timeout_ms = self.chance.choice((None, 200))
        outcome = "unknown"
        try:
            outcome = self.recorder.publish(queue, sent, "synced", timeout_ms=timeout_ms)
        except Overloaded as error:
            if error.code not in {"confirm_timeout", "copy_timeout"}:
                raise
        if outcome == "ok":
            self.load.confirmed += len(sent)
        # So many that consumers stay behind, and not so many that nothing else is done.
        self.load.stopping.wait(0.002 if self.load.backlog() < self.load.backlog_max else 0.02)

    def _sent(self) -> Sent:
        self.count += 1
        name = f"{self.load.name}.{self.number}.{self.count} ".encode()
        return Sent(
            name + _FILLER[: self.chance.choice(_SIZES)],
            importance=self.chance.randint(1, 10),
            replicas=2,
        )


class _Consumer(_User):
    def call(self) -> None:
        if self.load.backlog() < self.load.backlog_max // 2:
            self.load.stopping.wait(0.005)
            return
        queue = self.chance.choice(self.load.queues)
        leases = self.recorder.lease(queue, self.chance.randint(1, 70), LEASE_TIMEOUT_MS)
        if not leases:
            self.load.stopping.wait(0.002)
            return
        self.chance.shuffle(leases)
        kept = len(leases) if self.chance.random() < 0.8 else len(leases) // 2
        self.recorder.ack(queue, leases[:kept], "synced")
        if leases[kept:]:
            self.recorder.release(queue, leases[kept:])


class Load:
    """Some publishers and consumers of one broker, from `with` to its end."""

    def __init__(
        self, broker: Broker, queues: tuple[str, ...], seed: int, name: str = "", backlog: int = 300
    ) -> None:
        self.broker = broker
        self.queues = queues
        self.seed = seed
        self.name = name
        self.backlog_max = backlog
        self.confirmed = 0
        self.stopping = threading.Event()
        self._users = [_Publisher(self, n) for n in range(2)] + [_Consumer(self, 2)]

    def backlog(self) -> int:
        """How many messages are in the queues."""
        return sum(sum(self.broker.stats(queue)["depth"].values()) for queue in self.queues)

    def has_failed(self) -> bool:
        """Whether one of them met what it cannot go on with."""
        return any(user.failure is not None for user in self._users)

    def __enter__(self) -> Load:
        for user in self._users:
            user.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        deadline = time.monotonic() + PATIENCE_S
        for user in self._users:
            user.join(max(0.0, deadline - time.monotonic()))
        failures = [user.failure for user in self._users if user.failure is not None]
        if failures:
            raise failures[0]
        assert not any(user.is_alive() for user in self._users), "a call never came back"

    def events(self) -> list[Event]:
        """What was seen."""
        return [event for user in self._users for event in user.keeper.events()]


def read_all(broker: Broker, queues: tuple[str, ...]) -> list[Event]:
    """Lease everything there is, and give it back."""
    keeper = MemoryKeeper()
    recorder = Recorder(broker, keeper, time.monotonic_ns)
    deadline = time.monotonic() + PATIENCE_S
    for name in queues:
        leased: list[Lease] = []
        while broker.stats(name)["depth"]["leased"] < sum(broker.stats(name)["depth"].values()):
            assert time.monotonic() < deadline, broker.stats(name)["depth"]
            leased += recorder.lease(name, 1_000, LEASE_TIMEOUT_MS, wait_ms=5)
        if leased:
            recorder.release(name, leased)
    return keeper.events()


def drain(broker: Broker, queues: tuple[str, ...]) -> list[Event]:
    """Lease and ack everything there is until nothing is left in any state."""
    keeper = MemoryKeeper()
    recorder = Recorder(broker, keeper, time.monotonic_ns)
    found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in queues}
    deadline = time.monotonic() + PATIENCE_S
    while any(sum(broker.stats(name)["depth"].values()) for name in queues):
        assert time.monotonic() < deadline, {name: broker.stats(name)["depth"] for name in queues}
        for name in queues:
            leases = recorder.lease(name, 1_000, LEASE_TIMEOUT_MS, wait_ms=5)
            found[name] += [(lease.id, lease.body) for lease in leases]
            broker.ack(name, [lease.token for lease in leases], confirm="synced")
    for name in queues:
        recorder.removals(name)
    stamp = time.monotonic_ns()
    return keeper.events() + [Drained(stamp, name, tuple(got)) for name, got in found.items()]
