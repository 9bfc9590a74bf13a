"""Where copies of a message are over its life, and what the loss of a device would cost then.

Placement decides, as in a broker: at intake, and whenever it says to be asked again. It is asked
about a message that no rule tells apart and nobody reads, so that one answer holds for all messages
of a queue; copies are there at once. A loss is that of a failure domain with all its devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.policy.placement import Placed, Terms, place
from ebbmq.policy.rules.choose import Chooser
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ebbmq.model import QueueSpec
    from ebbmq_spark.simulation.traffic import Traffic

    Floats = npt.NDArray[np.float64]

ENDLESS_MS: Final = limits.DURATION_MS_MAX * 2
_GIB_MONTH: Final = limits.GIB * 30
_STAGES_MAX: Final = 10_000


class DeviceTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[devices.NAME]` of a sweep: what placement and people ask of a device."""

    tier: str = ""
    failure_domain: str = ""
    durable: bool = True
    cost_per_gib_month: float | None = None


class Stage(NamedTuple):
    """Between two ages the copies are on these devices."""

    begin_ms: int
    end_ms: int
    devices: tuple[str, ...]


class Loss(NamedTuple):
    """What the loss of the worst failure domain makes unreadable."""

    domain: str
    #: The most messages at one instant, and the share of all message-days.
    worst: int
    share: float


def stages_of(spec: QueueSpec, devices: Mapping[str, DeviceTerms]) -> list[Stage]:
    """Where copies are, from intake on; the first device is the default, as a node's log is."""
    states = {
        name: DeviceState(
            tier=each.tier,
            failure_domain=each.failure_domain,
            durable=each.durable,
            cost_per_gib_month=each.cost_per_gib_month or 0.0,
        )
        for name, each in devices.items()
    }
    view = Chooser(RuleSet.of([])).view(states)
    terms = Terms.of(spec, default=next(iter(devices)))
    message = Placed(properties=Properties(queue=spec.name), terms=terms)
    stages: list[Stage] = []
    now_ms = 0
    while len(stages) < _STAGES_MAX:
        wanted = place(message, now_ms, view)
        review_ms = wanted.review_at_ms
        end_ms = ENDLESS_MS if review_ms is None or review_ms <= now_ms else review_ms
        stages.append(Stage(now_ms, min(end_ms, ENDLESS_MS), wanted.copies))
        if end_ms >= ENDLESS_MS:
            break
        message = msgspec.structs.replace(
            message, copies=wanted.copies, target=wanted.target, review_at_ms=review_ms
        )
        now_ms = end_ms
    return _joined(stages)


def byte_days(
    stages: list[Stage], devices: Mapping[str, DeviceTerms], traffic: Traffic, left_ms: Floats
) -> tuple[dict[str, float], float | None]:
    """Bytes times days by tier, of all copies, and what they cost if every device says that."""
    ages_ms = np.maximum(left_ms - traffic.at_ms, 0)
    by_tier: dict[str, float] = {}
    cost: float | None = 0.0
    for begin_ms, end_ms, names in stages:
        stay_ms = np.clip(ages_ms, begin_ms, end_ms) - begin_ms
        days = float((stay_ms * traffic.bytes).sum()) / limits.DAY_MS
        for name in names:
            device = devices[name]
            tier = device.tier or name
            by_tier[tier] = by_tier.get(tier, 0.0) + days
            price = device.cost_per_gib_month
            cost = None if cost is None or price is None else cost + days / _GIB_MONTH * price
    return by_tier, cost


def loss_of(
    stages: list[Stage], devices: Mapping[str, DeviceTerms], traffic: Traffic, left_ms: Floats
) -> Loss:
    """What the loss of any one failure domain costs at worst."""
    domains = {name: each.failure_domain or name for name, each in devices.items()}
    found = [
        _loss(domain, _alone(stages, domains, domain), traffic, left_ms)
        for domain in dict.fromkeys(domains.values())
    ]
    return max(found, key=lambda loss: (loss.worst, loss.share))


def _alone(stages: list[Stage], domains: Mapping[str, str], domain: str) -> list[Stage]:
    """When all copies are in one domain, or there is none."""
    return [
        stage
        for stage in stages
        if not stage.devices or {domains[n] for n in stage.devices} == {domain}
    ]


def _loss(domain: str, stages: list[Stage], traffic: Traffic, left_ms: Floats) -> Loss:
    came: list[Floats] = []
    went: list[Floats] = []
    for begin_ms, end_ms, _ in stages:
        begins = traffic.at_ms + float(begin_ms)
        ends = np.minimum(left_ms, traffic.at_ms + float(end_ms))
        there = ends > begins
        came.append(begins[there])
        went.append(ends[there])
    if not came or not sum(map(len, came)):
        return Loss(domain, 0, 0.0)
    begins, ends = np.sort(np.concatenate(came)), np.sort(np.concatenate(went))
    # Who leaves at an instant makes room for who comes at it.
    at_once = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    total = float(np.maximum(left_ms - traffic.at_ms, 0).sum())
    exposed = float(ends.sum() - begins.sum())
    return Loss(domain, int(at_once.max()), exposed / total if total else 0.0)


def _joined(stages: list[Stage]) -> list[Stage]:
    """The same, without ends between equals."""
    out: list[Stage] = []
    for stage in stages:
        if out and set(out[-1].devices) == set(stage.devices):
            out[-1] = Stage(out[-1].begin_ms, stage.end_ms, out[-1].devices)
        else:
            out.append(stage)
    return out
