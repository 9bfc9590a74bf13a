"""How fast do messages move between devices in the background, and does delivery notice?

Messages of 1 KiB cross a threshold of their queue's decay score all at once, from the log to a file
device, and from there to another one, while 10,000 a second are published, leased and acked in
batches of 100. How late a batch is done is counted from when it was due; told is the median of the
rounds' p99. As in a server, what was loaded is out of the garbage collector's sight.
"""

from __future__ import annotations

import gc
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from bench.clock import JumpingClock
from bench.holding import copies, file_device, is_quiet, open_holding
from bench.load import BATCH, DAY_MS, FILL_BATCH, HOUR_MS, KIB, fifo_messages
from bench.row import Row, at_least, at_most, stated
from bench.run import wait_until
from ebbmq import Broker, QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.run import Run

MOVES_PER_S: Final = 20_000
DELIVERED_PER_S: Final = 10_000
P99_RATIO: Final = 2.0
#: What the operator allows for it: a quarter more than is to be reached.
BYTES_PER_S: Final = MOVES_PER_S * KIB * 5 // 4
LIVE: Final = "live"
PATIENCE_S: Final = 600.0
DEVICES: Final = {
    "log": {"tier": "fast"},
    "second": file_device(tier="middle"),
    "third": file_device(tier="slow"),
}


def measure(run: Run) -> list[Row]:
    """Rounds of delivery alone, with moves out of the log, and with moves between devices."""
    count, rounds = run.scale(100_000, 10_000), run.scale(5, 2)
    scene = _Scene(run, count)
    try:
        for number in range(rounds):
            scene.round(number)
            run.progress("rounds", number + 1, rounds)
    finally:
        scene.broker.close()
    return scene.rows()


class _Scene:
    """A broker with one live queue, and one queue a round whose messages move."""

    def __init__(self, run: Run, count: int) -> None:
        self._run, self._count = run, count
        self._clock = JumpingClock()
        config = {
            "devices": DEVICES,
            "placement": {"move_bytes_per_s": BYTES_PER_S},
            "upkeep_every_ms": 50,
        }
        self.broker: Final[Broker] = open_holding(run.fresh("moves"), config, self._clock)
        self.broker.declare(QueueSpec(LIVE, lease_timeout_ms=HOUR_MS))
        gc.freeze()
        self._batch = fifo_messages(BATCH, KIB)
        #: The p99 of each round: the machine may stall in one of them.
        self._p99_ms: dict[str, list[float]] = {"": [], "second": [], "third": []}
        self._rates: dict[str, list[float]] = {"second": [], "third": []}

    def round(self, number: int) -> None:
        """Fill a queue, deliver for a while, then move all of it, twice."""
        name = f"moving {number}"
        self._fill(name)
        until = time.perf_counter() + self._run.scale(5, 1)
        self._deliver("", lambda: time.perf_counter() < until)
        for device, days in (("second", 3), ("third", 3)):
            self._clock.jump(days * DAY_MS)
            started = time.perf_counter()
            self._deliver(device, partial(self._moves_on, device))
            self._rates[device].append(self._count / (time.perf_counter() - started))
            self._quieten()
        self._empty(name)

    def _moves_on(self, device: str) -> bool:
        return copies(self.broker, device) < self._count

    def _fill(self, name: str) -> None:
        self.broker.declare(fading(name))
        for size in self._run.steps("filling", self._count, FILL_BATCH):
            self.broker.publish(name, fifo_messages(size, KIB), confirm="written")
        self._quieten()

    def _empty(self, name: str) -> None:
        self._quieten()
        self.broker.purge(name)
        self._quieten()

    def _quieten(self) -> None:
        assert wait_until(lambda: is_quiet(self.broker), PATIENCE_S)

    def _deliver(self, what: str, goes_on: Callable[[], bool]) -> None:
        """Publish, lease and ack batches, each when it is due, while something goes on."""
        broker, batch = self.broker, self._batch
        late_ms: list[float] = []
        due = time.perf_counter()
        while goes_on():
            due += BATCH / DELIVERED_PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            broker.publish(LIVE, batch, confirm="written")
            leases = broker.lease(LIVE, BATCH)
            broker.ack(LIVE, [lease.token for lease in leases], confirm="written")
            late_ms.append((time.perf_counter() - due) * 1_000)
        self._p99_ms[what].append(statistics.quantiles(late_ms, n=100)[98])

    def rows(self) -> list[Row]:
        """What came of it."""
        settings = {
            "messages": self._count,
            "body": KIB,
            "delivered_per_s": DELIVERED_PER_S,
            "move_bytes_per_s": BYTES_PER_S,
        }
        p99 = {what: statistics.median(found) for what, found in self._p99_ms.items()}
        to_second, to_third = (statistics.median(rates) for rates in self._rates.values())
        title = f"while {DELIVERED_PER_S:,} a second are delivered"
        return [
            at_least(f"moves log to file, {title}", to_second, "msg/s", MOVES_PER_S, **settings),
            at_least(f"moves file to file, {title}", to_third, "msg/s", MOVES_PER_S, **settings),
            stated("delivery of 100, p99, no moves", p99[""], "ms", **settings),
            *(
                at_most(
                    f"delivery of 100, p99, moves {way} against none",
                    p99[device] / p99[""],
                    "x",
                    P99_RATIO,
                    **settings,
                    p99_ms=round(p99[device], 2),
                )
                for device, way in (("second", "log to file"), ("third", "file to file"))
            ),
        ]


def fading(name: str) -> QueueSpec:
    """A queue whose messages leave the log after two days, and the second device after five."""
    return QueueSpec(
        name,
        score_per_day=10.0,
        score_medium=20.0,
        score_high=50.0,
        tiers=("fast", "middle", "slow"),
    )
