"""The real broker on a disk in memory and a clock that stands still, driven by one random seed.

Everything that could differ between two runs comes from the seed: commands, time, what a crash
leaves on the disk, which sync fails. The trace is what the clients saw; tokens, which nobody may be
able to guess, are left out of it.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq import Broker, QueueSpec
from ebbmq.errors import StorageFailed
from ebbmq.journal.disk import MemoryDisk
from ebbmq.testing import ManualClock
from tests.history import (
    Drained,
    LeaseCall,
    Options,
    Restart,
    Sent,
    Settle,
    Violation,
    check,
)
from tests.recorder import MemoryKeeper, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ebbmq.model import Lease
    from tests.history import Event
    from tests.history.events import RestartKind

LEASE_TIMEOUT_MS: Final = 1_000
LONG_MS: Final = 20_000
CONFIG: Final = {"segment_bytes": 65_536, "checkpoint_every_facts": 100}
QUEUES: Final = (
    QueueSpec("plain", lease_timeout_ms=LEASE_TIMEOUT_MS, retry_delay_ms=0, max_attempts=0),
    QueueSpec("bands", lease_timeout_ms=LEASE_TIMEOUT_MS, retry_delay_ms=100, max_attempts=16),
    QueueSpec("split", lease_timeout_ms=LEASE_TIMEOUT_MS, partitions=3),
    QueueSpec("fading", lease_timeout_ms=LEASE_TIMEOUT_MS, decay_unit_ms=20_000),
    QueueSpec("failing", lease_timeout_ms=LEASE_TIMEOUT_MS, max_attempts=2, dead_queue="dead"),
    QueueSpec("dead", lease_timeout_ms=LEASE_TIMEOUT_MS, max_attempts=0),
    QueueSpec("parked", lease_timeout_ms=LEASE_TIMEOUT_MS),
)
NAMES: Final = tuple(spec.name for spec in QUEUES)
#: Nobody takes what is parked before the end, so that some segments outlive those after them, in
#: which it stands that other messages of theirs were acked.
USED: Final = tuple(name for name in NAMES if name != "parked")
BODY_BYTES: Final = (0, 0, 100, 8_000)
PARKED_BYTES: Final = (8_000,)
OPTIONS: Final = Options(
    max_attempts={"failing": 2, "bands": 16},
    dead_queues={"failing": "dead"},
    ordered=frozenset({"plain", "bands", "split"}),
)


class Simulation:
    """One data directory through many lives."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.keeper = MemoryKeeper()
        self.events: list[Event] = []
        self.held: dict[str, list[Lease]] = {name: [] for name in NAMES}
        self.spent: list[tuple[str, Lease]] = []
        self.lives = 0
        self.bodies = 0
        self.steps = 0
        self.open()

    def stamp(self) -> int:
        self.steps += 1
        return self.steps

    def open(self) -> None:
        """Begin a life in a copy of the directory, for the dead one still holds its lock."""
        before, self.lives = self.root / f"life-{self.lives}", self.lives + 1
        now = self.root / f"life-{self.lives}"
        if before.exists():
            shutil.copytree(before, now)
            (now / "lock").unlink(missing_ok=True)
            shutil.rmtree(before)
        self.clock = ManualClock(self.clock.wall_ms())
        self.broker = Broker.open(
            now, config=CONFIG, clock=self.clock, disk=self.disk, threaded=False
        )
        self.events += self.keeper.events()
        self.keeper = MemoryKeeper()
        self.recorder = Recorder(self.broker, self.keeper, self.stamp, self.clock.wall_ms)
        for spec in QUEUES:
            self.broker.declare(spec, change=True)  # its dead queue was made before it is declared

    def run(self, steps: int) -> list[Violation]:
        """Take so many steps, drain, and judge."""
        for _ in range(steps):
            try:
                self.step()
            except StorageFailed:
                self.restart(self.random.choice(("kill", "power")))
        # What is said of messages whose segment is still there must not be in a checkpoint only.
        self.restart("power", keep_checkpoints=0.0)
        self.drain()
        return check(self.history(), OPTIONS)

    def history(self) -> list[Event]:
        return self.events + self.keeper.events()

    def trace(self) -> str:
        """A digest of everything that was seen, without the tokens."""
        digest = hashlib.sha256()
        for event in self.history():
            digest.update(repr(_without_tokens(event)).encode())
        return digest.hexdigest()

    def step(self) -> None:
        commands: tuple[tuple[int, Callable[[], None]], ...] = (
            (300, self.publish),
            (10, self.park),
            (250, self.lease),
            (300, self.settle),
            (40, self.give_back),
            (40, self.settle_again),
            (120, self.advance),
            (30, self.read_removals),
            (30, self.broker.engine.upkeep),
            (12, lambda: self.restart("kill")),
            (12, lambda: self.restart("power")),
            (6, lambda: self.restart("clean")),
            (6, lambda: self.disk.fail_sync_after(self.random.randrange(20))),
            (3, lambda: self.disk.fail_write_after(self.random.randrange(20))),
        )
        (command,) = self.random.choices(
            [command for _, command in commands], [weight for weight, _ in commands]
        )
        command()

    def publish(self) -> None:
        sent = [self.sent(BODY_BYTES) for _ in range(self.random.randint(1, 5))]
        self.recorder.publish(
            self.random.choice(USED), sent, self.random.choice(("memory", "written", "synced"))
        )

    def park(self) -> None:
        sent = [self.sent(PARKED_BYTES) for _ in range(self.random.randint(4, 6))]
        self.recorder.publish("parked", sent, "synced")

    def sent(self, sizes: Sequence[int]) -> Sent:
        self.bodies += 1
        chance = self.random
        return Sent(
            body=b"%d " % self.bodies + bytes(chance.choice(sizes)),
            importance=chance.randint(1, 10),
            delay_ms=chance.choice((0, 0, 0, 0, 50, 2_000)),
            ttl_ms=chance.choice((None, None, None, None, 5_000)),
            decays=chance.random() < 0.1,
            producer_id=f"p{self.bodies}" if chance.random() < 0.1 else None,
        )

    def lease(self) -> None:
        name = self.random.choice(USED)
        timeout_ms = self.random.choice((LEASE_TIMEOUT_MS, LEASE_TIMEOUT_MS, 50, 9_000))
        self.held[name] += self.recorder.lease(name, self.random.randint(1, 9), timeout_ms)

    def settle(self) -> None:
        name = self.random.choice([name for name in NAMES if self.held[name]] or NAMES)
        held = self.held[name]
        self.random.shuffle(held)
        taken = [held.pop() for _ in range(min(len(held), self.random.randint(1, 9)))]
        if not taken:
            return
        share = self.random.random()
        if share < 0.6:
            self.recorder.ack(name, taken, self.random.choice(("memory", "written", "synced")))
        elif share < 0.75:
            self.recorder.retry(name, taken, self.random.choice((None, 0, 300)))
        elif share < 0.85:
            self.recorder.release(name, taken)
        elif share < 0.95:
            self.recorder.extend(name, taken, self.random.choice((10, 3_000, LONG_MS)))
            held += taken

    def give_back(self) -> None:
        """Take a good deal of a queue and hand back each message by itself."""
        name = self.random.choice(USED)
        for lease in self.recorder.lease(name, 30, LONG_MS):
            if self.random.random() < 0.2:
                self.recorder.retry(name, [lease], LONG_MS)
            else:
                self.recorder.release(name, [lease])
            self.spent.append((name, lease))

    def settle_again(self) -> None:
        """Try the token of a lease that was given back, in whatever life: it is refused."""
        if self.spent:
            name, lease = self.spent.pop(self.random.randrange(len(self.spent)))
            self.recorder.ack(name, [lease], "written")

    def advance(self) -> None:
        self.clock.advance(self.random.choice((1, 10, 100, 999, 1_000, 5_000, 60_000)))

    def read_removals(self) -> None:
        self.recorder.removals(self.random.choice(NAMES))

    def restart(self, kind: RestartKind, keep_checkpoints: float = 0.5) -> None:
        """End this life and begin the next one, with the checkpoints as likely as that."""
        if kind == "clean":
            self.broker.close()
        elif kind == "kill":
            self.disk.kill()
        else:
            self.disk.crash(self.random)
        self.events.append(Restart(self.stamp(), kind))
        if self.random.random() >= keep_checkpoints:
            self.delete_checkpoints()
        self.open()

    def delete_checkpoints(self) -> None:
        """A checkpoint makes opening quick; nothing may depend on having one."""
        for name in self.disk.names():
            if name.startswith("checkpoint-"):
                self.disk.delete(name)

    def drain(self) -> None:
        """Let time pass until everything that is left was leased once more."""
        found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in NAMES}
        for _ in range(1_000):
            for name in NAMES:
                leases = self.recorder.lease(name, 1_000, LEASE_TIMEOUT_MS)
                found[name] += [(lease.id, lease.body) for lease in leases]
                self.broker.ack(name, [lease.token for lease in leases])
            if not any(sum(self.broker.stats(name)["depth"].values()) for name in NAMES):
                break
            self.clock.advance(1_000)
        for name in NAMES:
            self.recorder.removals(name)
        self.events += [Drained(self.stamp(), name, tuple(got)) for name, got in found.items()]
        self.broker.close()


def _without_tokens(event: Event) -> Event:
    """An event as it would be in every run of its seed."""
    if isinstance(event, Settle):
        return msgspec.structs.replace(event, token="")
    if isinstance(event, LeaseCall):
        grants = tuple(msgspec.structs.replace(grant, token="") for grant in event.grants)
        return msgspec.structs.replace(event, grants=grants)
    return event
