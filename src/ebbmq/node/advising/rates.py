"""Applying recommended decay factors: as a person would set them, and all of a run as one fact."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ebbmq import limits
from ebbmq.node import declaring, noting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ebbmq.node.catalog import Factor
    from ebbmq.node.engine import Engine

#: What is read of a file of rates.
COLUMNS: Final = ("queue", "factor", "decided_at_ms", "until_ms", "reason")
_FACTOR_MAX: Final = 1_000_000


class Rates:
    """The factors a node was advised to use; one that was decided earlier does not come back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def apply(self, run: str, columns: Mapping[str, Sequence[Any]]) -> Counter[str]:
        """Use factors until they run out; returns how many of each outcome (the lock is free)."""
        counts: Counter[str] = Counter()
        rows = zip(*(columns[name] for name in COLUMNS[:4]), strict=True)
        with self._engine.lock:
            self._engine.check_open()
            before = self._engine.catalog.factors.copy()
            with self._engine.catalog.restored_on_error():
                for row in rows:
                    counts[self._take(run, *row)] += 1
                if counts["applied"]:
                    noting.put_on_record(self._engine)
            self._use(before)
        return counts

    def _use(self, before: Mapping[str, Factor]) -> None:
        """Have queues follow those factors that are others than before."""
        catalog, now_ms = self._engine.catalog, self._engine.now_ms()
        for queue, told in catalog.factors.items():
            if before.get(queue) != told:
                declaring.apply_factor(catalog.queues[queue], *told, now_ms)

    def _take(self, run: str, queue: Any, factor: Any, decided_ms: Any, until_ms: Any) -> str:
        """Note one factor; what became of it."""
        if not is_one(queue, factor, decided_ms, until_ms):
            return "invalid"
        engine, now_ms = self._engine, self._engine.now_ms()
        before = engine.catalog.factors.get(queue)
        outcomes = (
            ("unknown_queue", queue not in engine.catalog.queues),
            ("run_out", until_ms <= now_ms),
            (
                "in_force",
                before is not None and before[0] == factor and before[2] == run,
            ),
            ("too_old", decided_ms < now_ms - limits.ADVICE_AGE_MS_MAX),
            ("clock", decided_ms > now_ms + limits.ADVICE_AHEAD_MS_MAX),
            ("superseded", decided_ms < engine.catalog.decided.get(queue, 0)),
        )
        for outcome, is_so in outcomes:
            if is_so:
                return outcome
        engine.catalog.decided[queue] = decided_ms
        told = float(factor), min(until_ms, now_ms + limits.ADVICE_HOLDS_MS_MAX), run
        engine.catalog.factors[queue] = told
        return "applied"


def is_one(queue: Any, factor: Any, decided_ms: Any, until_ms: Any) -> bool:
    """Whether values of a row of rates can be those of a factor."""
    if not isinstance(queue, str) or None in (factor, decided_ms, until_ms):
        return False
    return math.isfinite(factor) and 0 < factor <= _FACTOR_MAX
