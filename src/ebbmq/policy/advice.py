"""What a plan would do with a message: the most urgent of what is not as it should be.

The broker tells by it which messages of a snapshot are to be looked at, and the pipeline has the
same on columns (`ebbmq_spark.transforms.plans`); a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ebbmq.policy.decay import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class Places(NamedTuple):
    """The tiers of a node as a queue sees them: its own in their order, then the others."""

    tiers: tuple[str, ...]
    #: How many of them, from the first on, are the queue's.
    named: int
    #: Devices that can be used, of each.
    devices: tuple[int, ...]

    def arranged(self, held: Sequence[int], wanted: int, target: int) -> tuple[int, ...]:
        """How many copies are in each tier once a plan is carried out, as `placement` puts them.

        The nearest to the wanted tier first, and where two are as near those that have a copy.
        Rules, failure domains and low status are left out: only the broker knows of them.

        Args:
            held: copies in each tier, on devices that can be used.
            wanted: which tier it should be in.
            target: copies it should have.
        """
        chosen = [0] * len(self.tiers)
        by_distance: dict[int, list[int]] = {}
        for place in range(len(self.tiers)):
            by_distance.setdefault(self._distance(place, wanted), []).append(place)
        for _, places in sorted(by_distance.items()):
            for place in places:
                chosen[place] = min(held[place], self.devices[place], target - sum(chosen))
            for place in places:
                more = self.devices[place] - chosen[place]
                chosen[place] += min(more, target - sum(chosen))
        return tuple(chosen)

    def _distance(self, place: int, wanted: int) -> int:
        if place == wanted:
            return 0
        if place >= self.named or wanted >= self.named:
            return self.named + 1
        return abs(place - wanted)


def _steps(tier: str | None, terms: Terms, phase: Phase) -> int:
    """How many tiers colder it should be; 0 where its queue says nothing of one of these."""
    wanted = terms.tier(phase)
    if tier not in terms.tiers or wanted is None or not terms.promotes:
        return 0
    return terms.tiers.index(wanted) - terms.tiers.index(tier)
