"""Small traffic for tests, said as a few columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from ebbmq_spark.simulation.traffic import NONE, Traffic, to_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START_MS = 1_700_000_000_000


def traffic(
    at_ms: Sequence[int], *, consumers: int = 1, queue: str = "q", **columns: Sequence[float]
) -> Traffic:
    """Traffic from offsets to START_MS; a column that is not given says nothing."""
    defaults = {
        "importance": NONE, "ttl_ms": NONE, "decay_rate": NONE, "delay_ms": 0, "bytes": 100,
        "service_ms": 10, "failures": 0, "useful_ms": 60_000,
    }  # fmt: skip
    made = {
        name: np.array(
            columns.get(name, [default] * len(at_ms)),
            dtype=np.float64 if name in ("service_ms", "decay_rate") else np.int64,
        )
        for name, default in defaults.items()
    }
    return Traffic(queue, np.array(at_ms, dtype=np.int64) + START_MS, **made, consumers=consumers)


def random_traffic(seed: int, count: int, *, consumers: int = 3, load: float = 1.5) -> Traffic:
    """Whole milliseconds everywhere, more work than can be done, some of it failing."""
    chance = np.random.default_rng(seed)
    service = chance.integers(5, 60, count)
    span = int(service.sum() / consumers / load)
    return traffic(
        np.sort(chance.integers(0, max(1, span), count)),
        consumers=consumers,
        importance=chance.integers(1, 11, count),
        service_ms=service,
        failures=chance.choice([0, 0, 0, 0, 0, 0, 0, 1, 2], count),
        delay_ms=chance.choice([0, 0, 0, 0, 40], count),
        useful_ms=[1_000] * count,
    )


def save(load: Traffic, path: Path) -> None:
    """Write traffic as a trace, in a directory that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_table(load), path)
