"""How fast does a broker apply a plan, and does delivery notice?

A plan from a lake asks for a move of every message of a backlog. Each row is checked against the
present, what fits is journaled and handed to the mover, which copies meanwhile at the pace it has
by default. Beside it somebody leases and acks from another queue.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from bench.holding import file_device
from bench.load import FILL_BATCH, fifo_messages
from bench.row import Row, at_least, at_most, stated
from ebbmq import Broker, QueueSpec
from ebbmq.feed import layout, manifests
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import Manifest, Part
from ebbmq.feed.plans import PLANS
from ebbmq.feed.runs import RUNS, Record, encode, record_file

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

MESSAGES: Final = 200_000
QUICK_MESSAGES: Final = 20_000
BODY_BYTES: Final = 256
BAR: Final = 20_000
#: What a lease and its ack may take, 99 times of 100, while a plan is applied.
LEASE_MS: Final = 50
RUN: Final = "bench"
HOUR_MS: Final = 3_600_000
QUEUE: Final = QueueSpec(
    "backlog", score_per_day=10.0, score_medium=50, score_high=100, tiers=("near", "far")
)
OTHER: Final = QueueSpec("other")


def measure(run: Run) -> list[Row]:
    """Actions a second, rows in force a second, and leases of others meanwhile."""
    count, path = run.scale(MESSAGES, QUICK_MESSAGES), run.fresh("apply")
    config = {
        "node": "n1",
        "feed": {"lake": str(path / "lake"), "plans_every_ms": 0, "snapshot_every_ms": 0},
        "devices": {"log": {"tier": "near"}, "second": file_device(tier="far")},
    }
    with Broker.open(path / "data", config) as broker:
        broker.declare(QUEUE)
        broker.declare(OTHER)
        ids = _fill(run, broker, count)
        _write_plan(path / "lake", ids)
        with _Consumer(broker) as consumer:
            rate = _rate(run, broker, "applied", count)
        again = _rate(run, broker, "in_force", count)
    settings = {"rows": count, "body_bytes": BODY_BYTES}
    return [
        at_least("applying a plan", rate, "actions/s", BAR, **settings),
        stated("applying it again", again, "rows/s", **settings),
        at_most(
            "lease + ack of another queue meanwhile, p99",
            consumer.p99_ms,
            "ms",
            LEASE_MS,
            leases=len(consumer.times_ms),
        ),
    ]


def _fill(run: Run, broker: Broker, count: int) -> list[str]:
    ids: list[str] = []
    messages = fifo_messages(FILL_BATCH, BODY_BYTES)
    for size in run.steps(f"filling {count:,}", count, FILL_BATCH):
        ids += [each.id for each in broker.publish(QUEUE.name, messages[:size], confirm="memory")]
    return ids


def _write_plan(lake: Path, ids: list[str]) -> None:
    now_ms = time.time_ns() // 1_000_000
    same: dict[str, Any] = {
        "node": "n1",
        "queue": QUEUE.name,
        "partition": 0,
        "generation": 0,
        "action": "move",
        "from_tier": "near",
        "to_tier": "far",
        "target": 1,
        "bytes": BODY_BYTES,
        "value": 1.0,
        "policy_version": 1,
        "decided_at_ms": now_ms,
        "until_ms": now_ms + HOUR_MS,
    }
    schema = schema_of(PLANS)
    columns = {name: pa.repeat(pa.scalar(value), len(ids)) for name, value in same.items()}
    columns["message_id"] = pa.array(ids)
    columns["reason"] = pa.array([f"decay score {n % 997 / 100:.2f}" for n in range(len(ids))])
    absent = pa.nulls(len(ids))
    table = pa.table(
        [columns.get(each.name, absent).cast(each.type) for each in schema], schema=schema
    )
    path = lake / layout.plan_file(RUN, 0)
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    part = Part(layout.plan_file(RUN, 0), len(ids), path.stat().st_size)
    manifest = Manifest(
        table=PLANS.name,
        version=PLANS.version,
        node=layout.PIPELINE,
        boot=0,
        number=1,
        written_at_ms=now_ms,
        parts=(part,),
    )
    place = lake / layout.manifest_file(PLANS.name, now_ms, layout.PIPELINE, 0, 1)
    place.parent.mkdir(parents=True)
    place.write_bytes(manifests.encode(manifest))
    record = Record(run=RUN, kind="plan", started_at_ms=now_ms, ended_at_ms=now_ms)
    (lake / RUNS).mkdir()
    (lake / record_file(RUN)).write_bytes(encode(record))


def _rate(run: Run, broker: Broker, outcome: str, count: int) -> float:
    started = time.perf_counter()
    (told,) = broker.apply_plans(
        RUN, progress=lambda now: run.progress("applying", now.rows, count)
    )
    took_s = time.perf_counter() - started
    assert getattr(told, outcome) == told.rows == count, told
    return count / took_s


class _Consumer:
    """Publishes, leases and acks one message after the other, and notes how long that took."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.times_ms: list[float] = []

    def __enter__(self) -> _Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def p99_ms(self) -> float:
        """What 99 of 100 took at most."""
        return sorted(self.times_ms)[len(self.times_ms) * 99 // 100]

    def _work(self) -> None:
        (message,) = fifo_messages(1, BODY_BYTES)
        while not self._stop.is_set():
            self._broker.publish(OTHER.name, [message], confirm="memory")
            started = time.perf_counter()
            leases = self._broker.lease(OTHER.name, 1)
            self._broker.ack(OTHER.name, [each.token for each in leases])
            self.times_ms.append((time.perf_counter() - started) * 1_000)
            self._stop.wait(0.001)
