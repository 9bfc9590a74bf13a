"""How fast does a simulation try policies, and what does a second core add?

Each policy replays the whole traffic in the real partition. Dense traffic is an overload of fifteen
minutes, sparse traffic a day. What Spark itself takes to start is not counted; everything else is,
from the trace on disk to the outcomes. What of that does not depend on the traffic is told by a
study of next to none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types

from bench.row import Row, at_least, stated

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

PER_CORE: Final = 80_000
SECOND_CORE: Final = 1.6
_PARTS: Final = 16
#: 198 policies, and the two references.
MANY: Final[dict[str, list[Any]]] = {
    "decay_rate": [0.5, 0.75, 1.0],
    "decay_unit_ms": [15_000 * n for n in range(1, 12)],
    "band_width": [0.0, 1.0, 2.0],
    "stale_threshold": [0.0, 1.0],
}


def measure(run: Run) -> list[Row]:
    """Dense on one core and on two, best of two turns; sparse, and hundreds of policies, on two."""
    count = run.scale(160_000, 2_000)
    dense, sparse = (_trace(run, name, count) for name in ("overload", "diurnal"))
    bursts = _trace(run, "bursts", run.scale(80_000, 1_000))
    small = _trace(run, "overload", run.scale(30_000, 500), "small")
    nothing = _trace(run, "overload", 20, "nothing")
    alone, both = (
        min(each) for each in zip(*(_in_turn(run, nothing, dense) for _ in range(2)), strict=True)
    )
    with _session("local[2]") as spark:
        _simulate(run, spark, nothing)
        fixed = _simulate(run, spark, nothing)
        day, bursting = (_simulate(run, spark, each) for each in (sparse, bursts))
        many = _simulate(run, spark, small, {} if run.quick else MANY)
    said = both.said()
    return [
        stated("dense, one core", alone.rate(1), "msg/s", **alone.said()),
        at_least("dense, two cores, each", both.rate(2), "msg/s", PER_CORE, **said),
        at_least("sparse, two cores, each", day.rate(2), "msg/s", PER_CORE, **day.said()),
        stated("bursts, two cores, each", bursting.rate(2), "msg/s", **bursting.said()),
        at_least("two cores against one", alone.took_s / both.took_s, "x", SECOND_CORE, **said),
        stated("hundreds of policies, two cores, each", many.rate(2), "msg/s", **many.said()),
        stated("a study of next to nothing, two cores", fixed.took_s, "s", **fixed.said()),
    ]


def _in_turn(run: Run, nothing: Path, trace: Path) -> list[_Told]:
    """The same study on one core, then on two."""
    out = []
    for master in ("local[1]", "local[2]"):
        with _session(master) as spark:
            _simulate(run, spark, nothing)
            out.append(_simulate(run, spark, trace))
    return out


class _Told(NamedTuple):
    """How long a study took, and what it was."""

    took_s: float
    simulated: int
    policies: int

    def rate(self, cores: int) -> float:
        """Messages a second and core."""
        return self.simulated / self.took_s / cores

    def said(self) -> dict[str, Any]:
        """What it was, for who reads the figure."""
        return {
            "messages": self.simulated // self.policies,
            "policies": self.policies,
            "took_s": round(self.took_s, 1),
        }


def _session(master: str) -> Any:
    from ebbmq_spark.session import Settings, spark_session  # noqa: PLC0415  # an extra

    # As `ebbmq simulate` opens it.
    return spark_session(Settings(master=master, shuffle_partitions=_PARTS), "bench")


def _trace(run: Run, pattern: Any, count: int, name: str = "") -> Path:
    from ebbmq_spark.simulation.generate import generate  # noqa: PLC0415
    from ebbmq_spark.simulation.traffic import to_table  # noqa: PLC0415

    path = run.fresh(name or pattern) / "trace.parquet"
    pq.write_table(to_table(generate(pattern, count)), path)
    return path


def _simulate(
    run: Run, spark: Any, trace: Path, values: dict[str, list[Any]] | None = None
) -> _Told:
    """Try the usual policies, or every combination of some values."""
    from ebbmq_spark.simulation.study import study  # noqa: PLC0415
    from ebbmq_spark.simulation.sweep import Sweep  # noqa: PLC0415
    from ebbmq_spark.simulation.traces import read_trace  # noqa: PLC0415

    started = time.perf_counter()
    (told,) = study(spark, read_trace(spark, str(trace)), Sweep(sweep=values or {})).studies
    took_s = time.perf_counter() - started
    return _Told(took_s, sum(each.messages for each in told.outcomes), len(told.outcomes))
