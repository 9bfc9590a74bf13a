"""A process that works with a broker until it is killed, and records each call as it goes."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from ebbmq import Broker
from ebbmq.errors import EbbError
from ebbmq.model import QueueSpec
from tests.crash.faults import Fault, FaultyDisk
from tests.crash.points import Point, kill_at
from tests.history import events
from tests.recorder import FileKeeper, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.model import Lease

LEASE_TIMEOUT_MS: Final = 80
#: Longer than it takes to open the store again, so that it is seen what a restart made of it.
LONG_MS: Final = 600
MAX_ATTEMPTS: Final = 3
FILLER: Final = bytes(range(256)) * 16

#: Small enough that a life of some milliseconds rolls segments, checkpoints and compacts.
CONFIG: Final = {"segment_bytes": 65_536, "checkpoint_every_facts": 150, "upkeep_every_ms": 3}

QUEUES: Final = {
    spec.name: spec
    for spec in (
        QueueSpec("plain", lease_timeout_ms=LEASE_TIMEOUT_MS, retry_delay_ms=4),
        QueueSpec("bands", lease_timeout_ms=LEASE_TIMEOUT_MS, retry_delay_ms=4),
        QueueSpec("split", lease_timeout_ms=LEASE_TIMEOUT_MS, retry_delay_ms=4, partitions=3),
        QueueSpec(
            "failing.dead", lease_timeout_ms=LEASE_TIMEOUT_MS, retry_delay_ms=4, max_attempts=0
        ),
        QueueSpec(
            "failing",
            lease_timeout_ms=LEASE_TIMEOUT_MS,
            retry_delay_ms=2,
            max_attempts=MAX_ATTEMPTS,
            dead_queue="failing.dead",
        ),
    )
}


class OldLease(msgspec.Struct, frozen=True):
    """A lease that was given back, or that a restart came after."""

    queue: str
    token: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one life of the worker does; `repeat` was published before with an unknown outcome."""

    directory: str
    record: str
    life: int
    seed: int
    threads: int = 3
    calls: int = 400
    levels: tuple[events.Level, ...] = ("memory", "written", "written", "synced")
    fault: Fault | None = None
    point: Point | None = None
    config: dict[str, Any] = msgspec.field(default_factory=lambda: dict(CONFIG))
    #: What publishers ask for, one of these for each message.
    replicas: tuple[int | None, ...] = (None,)
    #: What the queues ask for.
    min_copies: int = 1
    repeat: tuple[tuple[str, events.Sent], ...] = ()
    #: Leases of the life before, whatever became of them.
    old: tuple[OldLease, ...] = ()
    #: Whether messages are handed back one by one and leased for long: what becomes of a lease is
    #: told at `written`, which neither a power cut nor a full disk has to keep.
    hands_back: bool = True


class Client:
    """One thread's view of the broker, driven by a seeded mix of calls."""

    def __init__(self, recorder: Recorder, job: Job, thread: int) -> None:
        self._recorder = recorder
        self._job = job
        self._name = f"{job.life}.{thread}"
        self._random = random.Random(f"{job.seed} {self._name}")
        self._count = 0
        self._held: dict[str, list[Lease]] = defaultdict(list)
        self._repeatable = list(job.repeat) if thread == 0 else []
        self._old = list(job.old) if thread == 0 else []

    def run(self) -> None:
        for _ in range(self._job.calls):
            self._choose()()

    def _choose(self) -> Callable[[], None]:
        share = self._random.random()
        rare = (
            (0.02, True, self._read_removals),
            (0.06, bool(self._repeatable), self._repeat),
            (0.09, self._job.hands_back, self._give_back),
            (0.12, self._job.hands_back and bool(self._old), self._ack_old),
        )
        for below, is_possible, call in rare:
            if share < below and is_possible:
                return call
        if share < 0.40:
            return self._publish
        if share < 0.60 or not any(self._held.values()):
            return self._lease
        return self._settle

    def _publish(self) -> None:
        queue = self._random.choice([*QUEUES])
        sent = [self._sent() for _ in range(self._random.randint(1, 6))]
        self._repeatable += [(queue, s) for s in sent if s.producer_id is not None]
        self._recorder.publish(queue, sent, self._random.choice(self._job.levels))

    def _repeat(self) -> None:
        queue, sent = self._repeatable.pop(self._random.randrange(len(self._repeatable)))
        self._recorder.publish(queue, [sent], self._random.choice(self._job.levels))

    def _read_removals(self) -> None:
        self._recorder.removals(self._random.choice([*QUEUES]))

    def _sent(self) -> events.Sent:
        self._count += 1
        key = f"{self._name}.{self._count}"
        filler = FILLER[: self._random.choice((0, 10, 300, 4_000))]
        return events.Sent(
            body=key.encode() + b" " + filler,
            importance=self._random.randint(1, 10),
            delay_ms=self._random.choice((0, 0, 0, 0, 0, 0, 0, 5, 25)),
            ttl_ms=self._random.choice((None, None, None, None, None, None, 60)),
            producer_id=key if self._random.random() < 0.1 else None,
            replicas=self._random.choice(self._job.replicas),
        )

    def _lease(self) -> None:
        queue = self._random.choice([*QUEUES])
        count, wait_ms = self._random.randint(1, 8), self._random.choice((0, 0, 2))
        self._held[queue] += self._recorder.lease(queue, count, LEASE_TIMEOUT_MS, wait_ms=wait_ms)

    def _give_back(self) -> None:
        """Take a good deal of a queue and hand back each message by itself."""
        queue = self._random.choice([*QUEUES])
        for number, lease in enumerate(self._recorder.lease(queue, 50, LONG_MS)):
            if number % 8 == 0:
                self._recorder.retry(queue, [lease], LONG_MS)
            else:
                self._recorder.release(queue, [lease])
            self._old.append(OldLease(queue, lease.token))

    def _ack_old(self) -> None:
        """Refused if it was given back, in this life or before; accepted if it still runs."""
        old = self._old.pop(self._random.randrange(len(self._old)))
        self._recorder.ack(old.queue, [old], self._random.choice(self._job.levels))

    def _settle(self) -> None:
        queue = self._random.choice([queue for queue, held in self._held.items() if held])
        held = self._held[queue]
        self._random.shuffle(held)
        taken = [held.pop() for _ in range(min(len(held), self._random.randint(1, 6)))]
        share = self._random.random()
        if share < 0.65:
            self._recorder.ack(queue, taken, self._random.choice(self._job.levels))
        elif share < 0.80:
            self._recorder.retry(queue, taken, self._random.choice((None, 0, 3)))
        elif share < 0.88:
            self._recorder.release(queue, taken)
        elif share < 0.94:
            self._recorder.extend(
                queue,
                taken,
                self._random.choice((2 * LEASE_TIMEOUT_MS, LONG_MS))
                if self._job.hands_back
                else 2 * LEASE_TIMEOUT_MS,
            )
            held += taken


def run(job: Job) -> None:
    """Open the broker, declare the queues and let every thread make its calls."""
    disk = FaultyDisk.real(job.directory, job.fault) if job.fault else None
    if job.point is not None:
        kill_at(job.point)
    with Broker.open(job.directory, config=job.config, disk=disk) as broker:
        for spec in QUEUES.values():
            broker.declare(replace(spec, min_copies=job.min_copies), change=True)
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=_run_client, args=(broker, job, number, failures))
            for number in range(job.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def _run_client(broker: Broker, job: Job, number: int, failures: list[BaseException]) -> None:
    keeper = FileKeeper(Path(job.record) / f"calls-{job.life}-{number}.jsonl")
    try:
        Client(Recorder(broker, keeper, time.monotonic_ns), job, number).run()
    except EbbError as error:
        failures.append(error)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Job))
