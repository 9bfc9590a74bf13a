"""The engines that the bench compares plan the same: else who does less would seem faster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq.bench import catalogs, other_engines
from ebbmq.feed import layout
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import Part
from ebbmq.feed.plans import ACTIONS
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import DAY_MS, GIB
from ebbmq.node.feeding import arrays
from ebbmq_spark.jobs.running import Arguments, run_plan
from ebbmq_spark.lake import visible
from tests.pipeline.lakes import counted, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = 6_000
QUEUE = catalogs.settings(0).queues[0]
STATES = ("ready", "ready", "ready", "leased", "scheduled", "waiting")
#: Of no tier, and of one that the queue does not name, too.
PLACES = (*catalogs.TIERS, None, "tape")
#: Ages at which the score is at a threshold, or a message was too young to be judged until lately.
EDGES_MS = (
    int(QUEUE.score_medium / QUEUE.score_per_day * DAY_MS),
    int(QUEUE.score_high / QUEUE.score_per_day * DAY_MS),
    QUEUE.evaluate_every_ms - 30_000,
    QUEUE.evaluate_every_ms + 600_000,
    -DAY_MS,
)


def messages(now_ms: int) -> pa.Table:
    """Messages with all that a plan is made by, in all combinations that chance finds."""
    chance = np.random.default_rng(7)

    def one_of(*values: Any) -> list[Any]:
        return [values[at] for at in chance.integers(0, len(values), ROWS)]

    ages = np.where(
        chance.random(ROWS) < 0.2, one_of(*EDGES_MS), chance.integers(0, 40 * DAY_MS, ROWS)
    )
    columns = {
        "node": [catalogs.NODE] * ROWS,
        "queue": one_of("queue-00", "queue-15"),
        "partition": one_of(0, 1),
        "message_id": [f"1-{number:x}" for number in range(ROWS)],
        "generation": one_of(0, 1, 7),
        "state": one_of(*STATES),
        "importance": chance.integers(1, 11, ROWS),
        "decay_rate": one_of(0.0, 0.1, 0.5, 1.0),
        "ttl_ms": one_of(None, DAY_MS, 60 * DAY_MS),
        "bytes": chance.integers(0, 4_000, ROWS),
        "enqueued_at_ms": now_ms - ages,
        "access_rate": one_of(0.0, 0.0, 0.3, 20.0, 500.0),
        "access_at_ms": now_ms - chance.integers(-DAY_MS, 5 * DAY_MS, ROWS),
        "replicas": one_of(1, 2, 3),
        "replica_target": one_of(1, 2, 3, 4),
        "copies": one_of(0, 1, 2, 3, 4),
        "tier": one_of(*PLACES),
        "policy_version": one_of(1, 2),
    }
    same = {"boot": 1, "at_ms": now_ms, "attempts": 0, "failures": 0, "decay_score": 0.0}
    columns |= {name: [value] * ROWS for name, value in same.items()}
    held = [(), ("ssd",), ("hdd",), ("s3", "hdd"), ("ssd", "s3"), ("ssd", "tape"), catalogs.TIERS]
    columns |= {"durable": [True] * ROWS, "devices": one_of(*held)}
    schema = schema_of(CATALOG)
    filled = [
        pa.array(columns.get(name, [None] * ROWS), schema.field(name).type) for name in schema.names
    ]
    return pa.Table.from_arrays(filled, schema=schema)


def lake_of(root: Path, table: pa.Table, now_ms: int) -> Path:
    path = layout.catalog_file(now_ms, catalogs.NODE, 1, 0)
    data = arrays.encode(table, is_by_review=True)
    (root / path).parent.mkdir(parents=True)
    (root / path).write_bytes(data)
    catalogs.publish(root, [Part(path, ROWS, len(data))], now_ms, 1, GIB)
    return root


def by_message(plan: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {row["message_id"]: row for row in plan}
    assert len(found) == len(plan)
    return found


def planned(lake: Path) -> list[Path]:
    return list((lake / "plans").rglob("*.parquet"))


def columns(file: Path) -> tuple[tuple[str, str], ...]:
    """Names and types as they are stored."""
    schema = pq.read_metadata(file).schema
    return tuple(
        (schema.column(at).name, schema.column(at).physical_type) for at in range(len(schema))
    )


@pytest.fixture(scope="module")
def by_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, dict[str, Any]]]:
    now_ms = time.time_ns() // 1_000_000
    lake = lake_of(tmp_path_factory.mktemp("lake"), messages(now_ms), now_ms)
    record = run_plan(spark, Arguments(lake, full=True, bounded=False))
    assert set(counted(record)) == set(ACTIONS)
    return lake, by_message(list(rows(lake)))


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_another_engine_has_the_same_plan_as_spark(
    by_spark: tuple[Path, dict[str, dict[str, Any]]], engine: str, tmp_path: Path
) -> None:
    lake, expected = by_spark
    (now_ms,) = {row["decided_at_ms"] for row in expected.values()}
    plan = getattr(other_engines, f"{engine}_plan")
    plan(visible(lake, CATALOG).files, QUEUE, now_ms, tmp_path)
    written = list(tmp_path.iterdir())
    assert {columns(file) for file in written} == {columns(file) for file in planned(lake)}
    found = by_message(pa.concat_tables(map(pq.read_table, written)).to_pylist())
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        # Java and C round exp differently in the last place.
        assert found[name].pop("value") == pytest.approx(row["value"], rel=1e-12)
        assert found[name] == {of: each for of, each in row.items() if of != "value"}
