"""What a plan would do with a message: the most urgent of what is not as it should be.

The broker tells by it which messages of a snapshot are to be looked at, and the pipeline has the
same on columns (`ebbmq_spark.transforms.plans`); a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ebbmq.policy.decay import Phase

if TYPE_CHECKING:
    from ebbmq.feed.plans import Action
    from ebbmq.policy.placement import Terms


class Kept(NamedTuple):
    """How a message is kept."""

    replicas: int
    target: int
    copies: int
    tier: str | None


def wanted_target(kept: Kept, terms: Terms, phase: Phase) -> int:
    """Copies a message should have, at a review."""
    if phase is Phase.FADED:
        return 1
    floor = max(kept.replicas, terms.min_copies)
    most = max(floor, terms.max_replicas or kept.replicas)
    return min(max(floor, kept.target + (phase is Phase.FRESH)), most)


def advised(kept: Kept, terms: Terms, phase: Phase, *, young: bool) -> Action | None:
    """The action a plan has for a message; None if it is well kept.

    Args:
        kept: as it is.
        terms: of its queue.
        phase: what its decay score asks for.
        young: whether it was never evaluated; what is consumed promptly costs nothing.
    """
    target = wanted_target(kept, terms, phase)
    if young or (phase is Phase.FADED and terms.on_faded != "archive"):
        return "repair" if kept.copies < min(kept.target, target) else None
    steps = _steps(kept.tier, terms, phase)
    if kept.copies < min(kept.target, target):
        return "repair"
    if steps < 0:
        return "promote"
    if kept.copies < target:
        return "add_copy"
    if steps > 0:
        return "archive" if phase is Phase.FADED else "move"
    return "drop_copy" if kept.copies > target else None


def _steps(tier: str | None, terms: Terms, phase: Phase) -> int:
    """How many tiers colder it should be; 0 where its queue says nothing of one of these."""
    wanted = terms.tier(phase)
    if tier not in terms.tiers or wanted is None or not terms.promotes:
        return 0
    return terms.tiers.index(wanted) - terms.tiers.index(tier)
