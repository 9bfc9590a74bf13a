"""What a policy came to, in the numbers people choose by."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.policy.decay import Access, Score, next_crossing_ms
from ebbmq.policy.placement import Terms
from ebbmq_spark.simulation.replay import ACKED, LEFT
from ebbmq_spark.simulation.traffic import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ebbmq.model import QueueSpec
    from ebbmq_spark.simulation.replay import Fates
    from ebbmq_spark.simulation.traffic import Traffic

    Floats = npt.NDArray[np.float64]

IMPORTANCES: Final = range(limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX + 1)
#: From this importance on a message is an important one.
IMPORTANT: Final = 8
_GIB_MONTH: Final = limits.GIB * 30


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one queue under one policy."""

    queue: str
    policy: str
    messages: int
    #: Acked, and acked while still useful.
    done: int
    on_time: int
    #: Sums of importance: of all messages, and of those done on time.
    worth: int
    worth_done_on_time: int
    #: By importance from 1 to 10: how many there were, and how many were done on time.
    published_by_importance: list[int]
    on_time_by_importance: list[int]
    #: Messages that left undone, by reason, wherever they went; and those the dead queue took.
    left: dict[str, int]
    dead_lettered: int = 0
    #: From when it could be leased to when work on it began, of messages that were done.
    wait_p50_ms: float
    wait_p99_ms: float
    peak_messages: int
    byte_days: float
    byte_days_by_tier: dict[str, float]
    #: None where a tier has no price, or the policy does not say on which tiers messages are.
    cost: float | None
    resolution_ms: int

    @property
    def on_time_share(self) -> float:
        """Messages done on time, of all."""
        return self.on_time / self.messages if self.messages else 1.0

    @property
    def worth_on_time(self) -> float:
        """Importance done on time, of all there was."""
        return self.worth_done_on_time / self.worth if self.worth else 1.0

    @property
    def let_go_share(self) -> float:
        """Messages that left undone, of all."""
        return 1 - self.done / self.messages if self.messages else 0.0

    @property
    def stale_share(self) -> float:
        """Messages that went stale, of all."""
        return self.left["stale"] / self.messages if self.messages else 0.0

    @property
    def important_on_time(self) -> float | None:
        """Messages of importance IMPORTANT and more done on time, of all such; None without any."""
        there = sum(self.published_by_importance[IMPORTANT - 1 :])
        return sum(self.on_time_by_importance[IMPORTANT - 1 :]) / there if there else None


def outcome_of(
    policy: str,
    spec: QueueSpec,
    traffic: Traffic,
    fates: Fates,
    *,
    resolution_ms: int,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Outcome:
    """The figures of a replay; a price is that of a GiB of a tier for a month."""
    importance = np.where(traffic.importance == NONE, spec.default_importance, traffic.importance)
    done = fates.outcome == ACKED
    on_time = done & (fates.left_ms - traffic.at_ms <= traffic.useful_ms)
    waits = (fates.started_ms - traffic.at_ms - np.maximum(traffic.delay_ms, 0))[done]
    middle, high = np.percentile(waits, [50, 99]).tolist() if len(waits) else (0.0, 0.0)
    by_tier, cost = _kept(spec, traffic, fates.left_ms, prices)
    size = limits.IMPORTANCE_MAX + 1
    return Outcome(
        queue=traffic.queue,
        policy=policy,
        messages=len(traffic),
        done=int(done.sum()),
        on_time=int(on_time.sum()),
        worth=int(importance.sum()),
        worth_done_on_time=int(importance[on_time].sum()),
        published_by_importance=np.bincount(importance, minlength=size).tolist()[1:],
        on_time_by_importance=np.bincount(importance[on_time], minlength=size).tolist()[1:],
        left={name: int(np.isin(fates.outcome, codes).sum()) for name, codes in LEFT.items()},
        dead_lettered=int(fates.is_dead_lettered.sum()),
        wait_p50_ms=round(middle, 3),
        wait_p99_ms=round(high, 3),
        peak_messages=_peak(traffic, fates.left_ms),
        byte_days=sum(by_tier.values()),
        byte_days_by_tier=by_tier if spec.tiers else {},
        cost=cost,
        resolution_ms=resolution_ms,
    )


def _peak(traffic: Traffic, left_ms: Floats) -> int:
    """The most messages there were at one instant."""
    if not len(traffic):
        return 0
    # Who leaves at an instant makes room for who comes at it.
    gone = np.searchsorted(np.sort(left_ms), traffic.at_ms, side="right")
    return int((np.arange(1, len(traffic) + 1) - gone).max())


def _kept(
    spec: QueueSpec, traffic: Traffic, left_ms: Floats, prices: Mapping[str, float]
) -> tuple[dict[str, float], float | None]:
    """Bytes times days by the tier that a message of its age belongs to, and what they cost."""
    terms, score = Terms.of(spec), Score.of(spec)
    ages_ms = np.maximum(left_ms - traffic.at_ms, 0)
    by_tier: dict[str, float] = {}
    begin_ms: int | None = 0
    while begin_ms is not None:
        end_ms = next_crossing_ms(score, 0, Access(), begin_ms)
        stay_ms = np.clip(ages_ms, begin_ms, end_ms) - begin_ms
        tier = terms.tier(score.phase(score.at(begin_ms, 0.0))) or ""
        days = float((stay_ms * traffic.bytes).sum()) / limits.DAY_MS
        by_tier[tier] = by_tier.get(tier, 0.0) + days
        begin_ms = end_ms
    if not by_tier.keys() <= prices.keys():
        return by_tier, None
    return by_tier, sum(days / _GIB_MONTH * prices[tier] for tier, days in by_tier.items())
