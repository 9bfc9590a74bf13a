"""The demo's story: one stream of messages into two queues, with too few consumers for either.

Theory of operation. Producers publish every message twice, to a FIFO queue and to one whose
messages lose importance over their TTL. Each queue has its own consumers, equally many and equally
fast. The load starts calm, rises to `SURGE` times what the consumers can handle, calms down and
ends; a message that is acked within its TTL was on time. Clock, threads and disk are real; only
the work of a consumer is a sleep. The ledger notes what producers and consumers saw themselves, so
that the broker's own account can be held against it.

What it shows is the gain over FIFO. Most of that comes from ordering by importance at all: here
the important work alone is less than the consumers can handle, so that a queue with importance
but without decay gets it done in time as well. Decay lets go of the rest sooner.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ebbmq.model import Message, QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.node.broker import Broker

FIFO: Final = "fifo"
DECAYING: Final = "decaying"
QUEUES: Final = (FIFO, DECAYING)
IMPORTANT: Final = 8

PRODUCERS: Final = 3
CONSUMERS: Final = 8
CALM: Final = 0.6
SURGE: Final = 3.0
#: Shares of the whole time: calm until, surge until, calm until; then nothing new arrives.
CALM_UNTIL: Final = 0.10
SURGE_UNTIL: Final = 0.65
TRAFFIC_UNTIL: Final = 0.85
TTL_SHARE: Final = 0.14

#: How many of 100 messages have importance 1, 2, .. 10: most work is not important.
IMPORTANCE_WEIGHTS: Final = (14, 13, 12, 11, 10, 10, 9, 8, 7, 6)
BODY_BYTES: Final = (256, 2_048)
TICK_S: Final = 0.02
CALIBRATION_S: Final = 0.3
#: The consumers ask for this share of what one thread can publish, lease and ack by itself.
MACHINE_SHARE: Final = 0.1
RATE_MIN: Final = 40.0
RATE_MAX: Final = 400.0


@dataclass(frozen=True)
class Plan:
    """How long, how fast, how soon a message is worth nothing."""

    seconds: float
    service_rate: float
    seed: int = 1

    @property
    def ttl_ms(self) -> int:
        """Long enough for a prompt consumer, short beside the surge."""
        return round(self.seconds * TTL_SHARE * 1_000)

    @property
    def service_s(self) -> float:
        """How long one consumer works on one message."""
        return CONSUMERS / self.service_rate

    def load(self, at_s: float) -> float:
        """Arrivals as a multiple of what the consumers can handle."""
        share = at_s / self.seconds
        if share >= TRAFFIC_UNTIL:
            return 0.0
        return SURGE if CALM_UNTIL <= share < SURGE_UNTIL else CALM

    def phase(self, at_s: float) -> str:
        """What is going on, for people."""
        share = at_s / self.seconds
        if share < CALM_UNTIL:
            return "calm: consumers keep up"
        if share < SURGE_UNTIL:
            return f"overload: {SURGE:.0f} arrive for each one handled"
        return "calm again" if share < TRAFFIC_UNTIL else "nothing new arrives"


def specs(plan: Plan) -> list[QueueSpec]:
    """Both queues; they differ in nothing but the decay and the bands it moves through."""
    # One band as wide as all importances is what makes a queue of them first in, first out.
    return [
        QueueSpec.fifo(FIFO, band_width=10.0, dead_queue=None),
        QueueSpec.deadline(DECAYING, ttl_ms=plan.ttl_ms, dead_queue=None),
    ]


@dataclass
class Ledger:
    """What producers and consumers of one queue saw, by message id and second of the story."""

    confirmed: dict[str, tuple[float, int]] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)
    important_on_time: int = 0
    important_late: int = 0


class Story:
    """Producers and consumers at work on an open broker."""

    def __init__(self, broker: Broker, plan: Plan) -> None:
        self.broker = broker
        self.plan = plan
        self.ledgers = {queue: Ledger() for queue in QUEUES}
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._started_s = 0.0

    def now_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._started_s

    def run(self, watch: Callable[[float], None]) -> None:
        """Tell the story to its end, calling `watch` about five times a second.

        Raises:
            BaseException: whatever ended a producer or consumer.
        """
        work: list[Callable[[], None]] = [partial(self._publish, n) for n in range(PRODUCERS)]
        work += [partial(self._consume, queue) for queue in QUEUES for _ in range(CONSUMERS)]
        threads = [threading.Thread(target=self._guard, args=(part,)) for part in work]
        self._started_s = time.monotonic()
        try:
            for thread in threads:
                thread.start()
            while self.now_s() < self.plan.seconds and not self._stop.wait(0.2):
                watch(self.now_s())
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self.failures:
            raise self.failures[0]

    def _guard(self, work: Callable[[], None]) -> None:
        """A failure in one thread ends the story instead of passing unseen."""
        try:
            work()
        except BaseException as failure:
            self.failures.append(failure)
            self._stop.set()

    def _publish(self, number: int) -> None:
        """One producer: its share of the load, to both queues, each message confirmed."""
        chance = random.Random(self.plan.seed * 1_000 + number)  # noqa: S311  # traffic, not secrets
        due, last_s = 0.0, self.now_s()
        for turn in itertools.count():
            if self._stop.wait(TICK_S):
                return
            now_s = self.now_s()
            due += self.plan.load(now_s) * self.plan.service_rate * (now_s - last_s) / PRODUCERS
            last_s = now_s
            batch = [self._message(chance) for _ in range(int(due))]
            due -= len(batch)
            if batch:
                # Taking turns, so that neither queue always hears of a message first.
                for queue in QUEUES if turn % 2 else reversed(QUEUES):
                    self._publish_to(queue, batch)

    def _message(self, chance: random.Random) -> Message:
        return Message(
            chance.randbytes(chance.randint(*BODY_BYTES)),
            importance=chance.choices(range(1, 11), IMPORTANCE_WEIGHTS)[0],
            ttl_ms=self.plan.ttl_ms,
        )

    def _publish_to(self, queue: str, batch: list[Message]) -> None:
        # The clock starts before the call: waiting for the disk counts against being on time.
        at_s = self.now_s()
        receipts = self.broker.publish(queue, batch, confirm="synced")
        self.ledgers[queue].confirmed.update(
            (receipt.id, (at_s, message.importance or 0))
            for receipt, message in zip(receipts, batch, strict=True)
        )

    def _consume(self, queue: str) -> None:
        """One consumer: a message at a time, the same work for each."""
        ledger = self.ledgers[queue]
        done_s = 0.0
        while not self._stop.is_set():
            for lease in self.broker.lease(queue, count=1, wait_ms=100):
                # Time lost to a busy machine is made up for, or the load would be another one.
                now_s = self.now_s()
                done_s = max(done_s + self.plan.service_s, now_s + self.plan.service_s / 2)
                time.sleep(done_s - now_s)
                self.broker.ack(queue, [lease.token], confirm="written")
                ledger.acked[lease.id] = self.now_s()
                if lease.importance >= IMPORTANT:
                    # Nearly exact and good enough to watch; the report goes by the ledger.
                    late = time.time_ns() // 1_000_000 > lease.enqueued_at_ms + self.plan.ttl_ms
                    with self._counting:
                        ledger.important_late += late
                        ledger.important_on_time += not late


def calibrate(broker: Broker) -> float:
    """A service rate that this machine can keep for both queues with ease, messages a second."""
    queue = "calibration"
    broker.declare(QueueSpec(queue))
    message = Message(bytes(sum(BODY_BYTES) // 2))
    started_s = time.monotonic()
    cycles = 0
    while time.monotonic() - started_s < CALIBRATION_S:
        broker.publish(queue, [message], confirm="written")
        leases = broker.lease(queue, count=1)
        broker.ack(queue, [lease.token for lease in leases], confirm="written")
        cycles += 1
    rate = cycles / (time.monotonic() - started_s)
    broker.delete(queue)
    return min(RATE_MAX, max(RATE_MIN, rate * MACHINE_SHARE))
