"""How long does a plan for 20 M messages take, beside a bare scan and write of the same columns?

Every message of the first lake has something to be done, so that the plan is as long as the
catalog; of the second one in a hundred has, evenly spread over all queues and ages. Spark has 2 GB
in all.
"""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import catalogs
from bench.row import Row, at_most, stated
from ebbmq.limits import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.run import Run

MEMORY: Final = "2g"
ROUNDS: Final = 2
DUE: Final = 0.01
#: Time a row must not grow; it is measured once and never twice the same.
GROWTH_MAX: Final = 1.15
#: What a month of such a lake costs before, and what it has to cost less for each message: what a
#: plan saves pays for some of what it adds.
_COSTS: Final = 12.4
_LESS: Final = 4.5e-8
#: How many times the smallest lake the largest is.
_MOST: Final = 50


def measure(run: Run) -> list[Row]:
    """All of it in turns, best of two; then larger and smaller lakes."""
    from ebbmq_spark.session import Settings, spark_session  # noqa: PLC0415  # an extra

    count = run.scale(20_000_000, 200_000)
    now_ms = time.time_ns() // 1_000_000
    with spark_session(Settings(memory=MEMORY), "bench") as spark:
        bench = _Bench(run, spark, now_ms)
        bench.warm()
        rows = bench.full(count)
        rows += bench.incremental(count)
        rows += bench.growth(count)
        return [*rows, stated("peak memory of Spark", _peak_mib(spark), "MiB", memory=MEMORY)]


class _Bench:
    """One Spark, and lakes to plan for."""

    def __init__(self, run: Run, spark: Any, now_ms: int) -> None:
        self._run = run
        self._spark = spark
        self._now_ms = now_ms

    def warm(self) -> None:
        """What is compiled once is not measured."""
        count = self._run.scale(500_000, 10_000)
        lake = self._lake("warm", count, 1.0)
        for _ in range(2):
            self._bare(lake)
            self._plan(lake, full=True, bounded=True, budget=budget(count))
            self._plan(lake, full=True, bounded=True)
            self._plan(lake, full=False, bounded=False)

    def full(self, count: int) -> list[Row]:
        """Every message has something to be done: bare, planned, planned within bounds."""
        lake = self._lake("full", count, 1.0)
        calls: dict[str, Callable[[], object]] = {
            "bare": lambda: self._bare(lake),
            "bounded": lambda: self._plan(lake, full=True, bounded=True),
            "paid": lambda: self._plan(lake, full=True, bounded=True, budget=budget(count)),
            "spark": lambda: self._plan(lake, full=True, bounded=False),
        }
        best = self._best(calls, self._run.scale(ROUNDS, 1))
        told = {"messages": count, "best_of": ROUNDS, "memory": MEMORY}
        bare, plan = best["bare"], best["spark"]
        return [
            stated("bare Spark scan and write of the same columns", bare, "s", **told),
            stated("a plan for every message", plan, "s", rows_per_s=round(count / plan)),
            at_most("a plan beside the bare job", plan / bare, "ratio", 1.6, **told),
            at_most(
                "a plan within bounds beside the bare job", best["bounded"] / bare, "ratio", 2.5
            ),
            at_most(
                "a plan within bounds and a budget beside the bare job",
                best["paid"] / bare,
                "ratio",
                2.5,
            ),
        ]

    def incremental(self, count: int) -> list[Row]:
        """One in a hundred is due."""
        lake = self._lake("due", count, DUE)
        calls: dict[str, Callable[[], object]] = {
            "full": lambda: self._plan(lake, full=True, bounded=False),
            "due": lambda: self._plan(lake, full=False, bounded=False),
        }
        best = self._best(calls, self._run.scale(ROUNDS + 1, 1))
        return [
            stated("a full plan where 1 % is due", best["full"], "s", messages=count),
            stated("an incremental plan where 1 % is due", best["due"], "s", messages=count),
            at_most(
                "an incremental plan beside the full one", best["due"] / best["full"], "ratio", 0.15
            ),
        ]

    def growth(self, count: int) -> list[Row]:
        """A tenth and five times as much, of the same files under many names: time a row."""
        took: dict[int, dict[str, float]] = {}
        lake = self._lake("growth", count // 10, 1.0)
        parts = catalogs_parts(lake)
        for number, times in enumerate((1, 10, _MOST)):
            root = self._run.fresh(f"growth-{times}")
            shutil.rmtree(root)
            shutil.copytree(lake, root, copy_function=_link)
            whole = catalogs.repeated(root, parts, times)
            rows = sum(part.rows for part in whole)
            catalogs.publish(root, whole, self._now_ms, number + 2, _half(rows))
            calls = {"spark": partial(self._plan, root, full=True, bounded=False)}
            if times == _MOST:
                calls["bounded"] = partial(self._plan, root, full=True, bounded=True)
            taken = self._best(calls, 1 if times == _MOST else ROUNDS)
            took[times] = {name: each / rows * 1e6 for name, each in taken.items()}
            shutil.rmtree(root)
            self._run.progress("growth", number + 1, 3)
        first, middle, last = (each["spark"] for each in took.values())
        most = count * 5
        return [
            stated("a row of a plan for a tenth as many", first, "us", messages=count // 10),
            stated("a row of a plan", middle, "us", messages=count),
            stated("a row of a plan for five times as many", last, "us", messages=most),
            stated(
                "a row of a plan within bounds for five times as many",
                took[_MOST]["bounded"],
                "us",
                messages=most,
            ),
            at_most("time a row, as many beside a tenth", middle / first, "ratio", GROWTH_MAX),
            at_most(
                "time a row, five times as many beside as many", last / middle, "ratio", GROWTH_MAX
            ),
        ]

    def _lake(self, name: str, count: int, due: float) -> Path:
        root = self._run.fresh(name)
        parts = catalogs.write(
            root,
            count,
            due,
            self._now_ms,
            lambda done: self._run.progress(f"writing {count:,} messages", done, count),
        )
        catalogs.publish(root, parts, self._now_ms, 1, _half(sum(part.rows for part in parts)))
        return root

    def _bare(self, lake: Path) -> None:
        from ebbmq.feed.snapshots import CATALOG  # noqa: PLC0415
        from ebbmq_spark.directory_lake import WRITTEN  # noqa: PLC0415
        from ebbmq_spark.lake import read_table, visible  # noqa: PLC0415
        from ebbmq_spark.transforms.plans import NEEDED  # noqa: PLC0415

        out = self._run.fresh("bare")
        frame = read_table(self._spark, CATALOG, visible(lake, CATALOG).files).select(*NEEDED)
        frame.write.mode("overwrite").options(**WRITTEN).parquet(str(out))
        shutil.rmtree(out)

    def _plan(self, lake: Path, *, full: bool, bounded: bool, budget: float | None = None) -> None:
        from ebbmq_spark.jobs.running import Arguments, run_plan  # noqa: PLC0415

        record = run_plan(self._spark, Arguments(lake, full=full, bounded=bounded, budget=budget))
        assert record.actions, "nothing was planned"
        assert budget is None or "money" in record.left_out, "there was money for all of it"
        shutil.rmtree(lake / "plans")

    def _best(self, calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(rounds):
            for name, call in calls.items():
                started = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - started)
                self._run.progress(name, number + 1, rounds)
        return {name: min(each) for name, each in taken.items()}


def catalogs_parts(lake: Path) -> list[Any]:
    """The files of a lake's only snapshot."""
    from ebbmq.feed.snapshots import CATALOG  # noqa: PLC0415
    from ebbmq_spark.lake import visible  # noqa: PLC0415

    return list(visible(lake, CATALOG).manifests[0].parts)


def budget(rows: int) -> float:
    """What a month may cost with a plan for so many messages."""
    return _COSTS - _LESS * rows


def _half(rows: int) -> int:
    """Room for half of what is to be written for so many messages to the tier that gets most."""
    return max(rows * 2_000 * 5 // 12, GIB // 1024)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _peak_mib(spark: Any) -> float:
    """Of the Java process, as the kernel counted it."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001  # it has no public name
    status = Path(f"/proc/{gateway.proc.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
