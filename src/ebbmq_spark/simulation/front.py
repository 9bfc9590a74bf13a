"""Which policies are worth a look: those that no other beats in both respects, and the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq_spark.simulation.outcome import Outcome
    from ebbmq_spark.simulation.sweep import Goal

TOLERANCE: Final = 0.01


class Choice(NamedTuple):
    """What is left of a queue's policies once they were compared."""

    #: Those no other beats, from the least of what is minimised to the most.
    front: list[Outcome]
    #: The best: a gain of less than TOLERANCE is none, then less of what is minimised is better.
    best: Outcome
    #: Whether any two policies differ by more than that in what the goal is about.
    differ: bool


def value(outcome: Outcome, name: str) -> float:
    """A figure by its name; one that nobody can tell, such as a cost, is beyond all bounds."""
    found = getattr(outcome, name)
    return math.inf if found is None else float(found)


def front_of(outcomes: Sequence[Outcome], goal: Goal) -> list[Outcome]:
    """The outcomes that no other beats: at least as good in both, and better in one.

    One that lacks the figure that is minimised beats nobody and is not among them.
    """
    ranked = sorted(
        (each for each in outcomes if math.isfinite(value(each, goal.minimise))),
        # Of equals the first stays the first.
        key=lambda each: (value(each, goal.minimise), -value(each, goal.maximise)),
    )
    out: list[Outcome] = []
    for outcome in ranked:
        if not out or value(outcome, goal.maximise) > value(out[-1], goal.maximise):
            out.append(outcome)
    return out


def choose(outcomes: Sequence[Outcome], goal: Goal) -> Choice:
    """Compare the outcomes of one queue; where none differs, the first of them is the best."""
    front = front_of(outcomes, goal)
    if not _differ(outcomes, goal):
        return Choice(front, outcomes[0], differ=False)
    # The front rises, so the last of it is the most there is, and the first near it the cheapest.
    enough = value(front[-1], goal.maximise) * (1 - TOLERANCE)
    best = next(each for each in front if value(each, goal.maximise) >= enough)
    return Choice(front, best, differ=True)


def _differ(outcomes: Sequence[Outcome], goal: Goal) -> bool:
    for name in (goal.maximise, goal.minimise):
        values = [value(each, name) for each in outcomes]
        if min(values) < max(values) * (1 - TOLERANCE):
            return True
    return False
