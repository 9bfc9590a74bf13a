"""What a policy came to, in the numbers people choose by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.policy.decay import Access, Phase, Score, next_crossing_ms
from ebbmq.policy.placement import Terms
from ebbmq_spark.simulation import copies
from ebbmq_spark.simulation.replay import ACKED, LEFT
from ebbmq_spark.simulation.traffic import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ebbmq.model import QueueSpec
    from ebbmq_spark.simulation.copies import DeviceTerms
    from ebbmq_spark.simulation.replay import Fates
    from ebbmq_spark.simulation.traffic import Traffic

    Floats = npt.NDArray[np.float64]

IMPORTANCES: Final = range(limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX + 1)
#: From this importance on a message is an important one.
IMPORTANT: Final = 8
_GB_MONTH: Final = 1e9 * 30
_ENDLESS_MS: Final = limits.DURATION_MS_MAX * 2


class Judged(NamedTuple):
    """What outcomes are judged by beside their policy: prices of tiers, and the devices."""

    prices: Mapping[str, float]
    devices: Mapping[str, DeviceTerms]


NOTHING_MORE: Final = Judged({}, {})


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
    #: None where a price is missing, or the policy does not say on which tiers messages are.
    cost: float | None
    resolution_ms: int
    #: Where the sweep says which devices there are: what the loss of the worst failure domain makes
    #: unreadable; the most messages at one instant, the share of all message-days, and which it is.
    unreadable_worst: int | None = None
    unreadable_share: float | None = None
    unreadable_domain: str | None = None

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
    judged: Judged = NOTHING_MORE,
) -> Outcome:
    """The figures of a replay."""
    importance = np.where(traffic.importance == NONE, spec.default_importance, traffic.importance)
    done = fates.outcome == ACKED
    on_time = done & (fates.left_ms - traffic.at_ms <= traffic.useful_ms)
    waits = (fates.started_ms - traffic.at_ms - np.maximum(traffic.delay_ms, 0))[done]
    middle, high = np.percentile(waits, [50, 99]).tolist() if len(waits) else (0.0, 0.0)
    kept = _kept(spec, traffic, fates.left_ms, judged)
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
        resolution_ms=resolution_ms,
        **kept,
    )


def _kept(
    spec: QueueSpec,
    traffic: Traffic,
    left_ms: Floats,
    judged: Judged,
) -> dict[str, Any]:
    """What the bodies take, what that costs, and what the loss of a device would."""
    prices, devices = judged
    if not devices:
        by_tier = _byte_days(spec, traffic, left_ms)
        return {
            "byte_days": sum(by_tier.values()),
            "byte_days_by_tier": by_tier if spec.tiers else {},
            "cost": _cost(by_tier, prices) if prices else None,
        }
    stages = copies.stages_of(spec, devices)
    by_tier, cost = copies.byte_days(stages, devices, traffic, left_ms)
    loss = copies.loss_of(stages, devices, traffic, left_ms)
    return {
        "byte_days": sum(by_tier.values()),
        "byte_days_by_tier": by_tier,
        "cost": _cost(by_tier, prices) if prices else cost,
        "unreadable_worst": loss.worst,
        "unreadable_share": loss.share,
        "unreadable_domain": loss.domain,
    }


def _peak(traffic: Traffic, left_ms: Floats) -> int:
    """The most messages there were at one instant."""
    if not len(traffic):
        return 0
    # Who leaves at an instant makes room for who comes at it.
    gone = np.searchsorted(np.sort(left_ms), traffic.at_ms, side="right")
    return int((np.arange(1, len(traffic) + 1) - gone).max())


def _byte_days(spec: QueueSpec, traffic: Traffic, left_ms: Floats) -> dict[str, float]:
    """Bytes times days in the queue, by the tier that a message of its age belongs to."""
    terms, score = Terms.of(spec), Score.of(spec)
    ages_ms = np.maximum(left_ms - traffic.at_ms, 0)
    out: dict[str, float] = {}
    begin_ms = 0
    while begin_ms < _ENDLESS_MS:
        phase = score.phase(score.at(begin_ms, 0.0))
        crossing = next_crossing_ms(score, 0, Access(), begin_ms)
        end_ms = _ENDLESS_MS if crossing is None or phase is Phase.FADED else crossing
        stay_ms = np.clip(ages_ms, begin_ms, end_ms) - begin_ms
        tier = terms.tier(phase) or ""
        days = float((stay_ms * traffic.bytes).sum()) / limits.DAY_MS
        out[tier] = out.get(tier, 0.0) + days
        begin_ms = end_ms
    return out


def _cost(by_tier: Mapping[str, float], prices: Mapping[str, float]) -> float | None:
    """What bytes cost by their tiers; None if one of them has no price."""
    if not by_tier.keys() <= prices.keys():
        return None
    return sum(days / _GB_MONTH * prices[tier] for tier, days in by_tier.items())
