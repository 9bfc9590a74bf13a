"""The choice of a device for a message: three strategies over the same rules.

`first_match` takes the device of the rule with the highest adjusted weight, ties by rule id.
`aggregate` takes the device whose rules weigh most together: their mean, their sum, or their mean
with a bonus for every further rule; ties go to more rules, then by name. `fuzzy` is the mean by
how true each rule is. A device no rule speaks for comes after all that have one: first the queue's
default, then by status, then by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from ebbmq.errors import InvalidSpec
from ebbmq.policy.rules.cases import ruled
from ebbmq.policy.rules.degrees import Degrees
from ebbmq.policy.rules.first import FirstMatch
from ebbmq.policy.rules.normal import INF
from ebbmq.policy.rules.properties import UNKNOWN
from ebbmq.policy.rules.totals import THOUSANDTHS, Totals
from ebbmq.policy.status import STATUS_WORST

if TYPE_CHECKING:
    from collections.abc import Collection

    from ebbmq.policy.rules.properties import Properties, States
    from ebbmq.policy.rules.rule import RuleSet

Kind = Literal["first_match", "aggregate", "fuzzy"]
Combine = Literal["mean", "sum", "biased"]
Ground = Literal["rules", "default", "status"]
NOBODY: Final[frozenset[str]] = frozenset()
BIAS_MAX: Final = 100.0
_MILLIONTHS: Final = THOUSANDTHS * THOUSANDTHS


class Strategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the weights of the rules become one choice.

    Raises:
        InvalidSpec: a field is outside its limits.
    """

    kind: Kind = "first_match"
    combine: Combine = "mean"
    #: Points for every further rule, with `biased`.
    bias: float = 5.0
    #: Half the width of a soft edge, as a share of its number, with `fuzzy`.
    softness: float = 0.2

    def __post_init__(self) -> None:
        if not (0 <= self.softness <= 1 and 0 <= self.bias <= BIAS_MAX):
            raise InvalidSpec(
                f"softness is {self.softness!r} and bias is {self.bias!r}",
                f"use 0 to 1 for softness and 0 to {BIAS_MAX:g} for bias",
            )


class Choice(NamedTuple):
    """A device, what it scored, and on which ground it was chosen."""

    device: str
    score: float
    ground: Ground
    rule: str | None = None  # the winning rule, where a single one wins


def aggregated(strategy: Strategy, weights: int, rules: int, status: float) -> float:
    """What a device scores by the total of its rules, in thousandths, and their number."""
    mean = weights / THOUSANDTHS / rules + status
    if strategy.combine == "sum":
        return mean * rules
    return mean + strategy.bias * (rules - 1) if strategy.combine == "biased" else mean


def fuzzy_score(weights: int, degrees: int, status: float) -> float:
    """What a device scores by weights times degrees (millionths) and degrees (thousandths).

    Where the degrees add up to 1 or more it is the mean of the adjusted weights. A device whose
    rules are hardly true does not win by that mean: it sinks to the worst status as they vanish.
    """
    mass = degrees / THOUSANDTHS
    lifted = weights / _MILLIONTHS + mass * (status - STATUS_WORST)
    return lifted / max(1.0, mass) + STATUS_WORST


class Chooser:
    """One version of the rules, ready to be asked. Never changes: a new version is a new one."""

    def __init__(self, rules: RuleSet, strategy: Strategy | None = None) -> None:
        self.rules: Final = rules
        self.strategy: Final = strategy or Strategy()
        self._ruled: Final = ruled(rules.rules.values())
        self.devices: Final = self._ruled.devices
        cases, count = self._ruled.cases, len(self.devices)
        self._evaluator: Final = (
            FirstMatch(cases)
            if self.strategy.kind == "first_match"
            else Totals(cases, count)
            if self.strategy.kind == "aggregate"
            else Degrees(cases, count, self.strategy.softness)
        )

    def view(self, states: States) -> View:
        """What is chosen while the devices are in these states; made anew when a status changes."""
        return View(self, states)

    def scored(
        self, message: Properties, states: States, statuses: list[float], *, best_only: bool
    ) -> list[Choice]:
        """The devices rules speak for, best first; a status of minus infinity passes one over."""
        evaluator = self._evaluator
        if isinstance(evaluator, FirstMatch):
            return self._first(evaluator, message, states, statuses, best_only=best_only)
        weights, counts = evaluator.of(message, states)
        found = [
            (self._score(weights[device], counts[device], status), counts[device], -device)
            for device, status in enumerate(statuses)
            if counts[device] > 0 and status > -INF
        ]
        found = [max(found)] if best_only and found else sorted(found, reverse=True)
        return [Choice(self.devices[-device], score, "rules") for score, _, device in found]

    def _score(self, weights: int, counts: int, status: float) -> float:
        if self.strategy.kind == "aggregate":
            return aggregated(self.strategy, weights, counts, status)
        return fuzzy_score(weights, counts, status)

    def _first(
        self,
        evaluator: FirstMatch,
        message: Properties,
        states: States,
        statuses: list[float],
        *,
        best_only: bool,
    ) -> list[Choice]:
        found: list[Choice] = []
        remaining = statuses
        while (best := evaluator.best(message, states, remaining)) is not None:
            rank, score = best
            rule = self._ruled.rules[rank]
            found.append(Choice(rule.device, score, "rules", rule.id))
            if best_only:
                break
            remaining = remaining.copy()
            remaining[self.devices.index(rule.device)] = -INF
        return found


class View:
    """A version of the rules together with the states of the devices at one moment."""

    __slots__ = ("_statuses", "chooser", "states")

    def __init__(self, chooser: Chooser, states: States) -> None:
        self.chooser = chooser
        self.states = states
        self._statuses = [self._status(device, NOBODY) for device in chooser.devices]

    def choose(
        self, message: Properties, default: str | None = None, without: Collection[str] = NOBODY
    ) -> Choice | None:
        """The device for a message; None if no device can be used."""
        found = self.chooser.scored(
            message, self.states, self._without(without), best_only=True
        ) or self._rest(default, without)
        return found[0] if found else None

    def ranked(
        self, message: Properties, default: str | None = None, without: Collection[str] = NOBODY
    ) -> list[Choice]:
        """Every device that can be used, the one for the message first."""
        found = self.chooser.scored(message, self.states, self._without(without), best_only=False)
        return found + self._rest(default, {*without, *(choice.device for choice in found)})

    def _rest(self, default: str | None, without: Collection[str]) -> list[Choice]:
        usable = [
            Choice(name, state.status, "default" if name == default else "status")
            for name, state in self.states.items()
            if state.usable and name not in without
        ]
        return sorted(usable, key=lambda each: (each.device != default, -each.score, each.device))

    def _without(self, without: Collection[str]) -> list[float]:
        if not without:
            return self._statuses
        return [self._status(device, without) for device in self.chooser.devices]

    def _status(self, device: str, without: Collection[str]) -> float:
        state = self.states.get(device, UNKNOWN)
        return state.status if state.usable and device not in without else -INF
