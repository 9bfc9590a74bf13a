"""The choice of a device for a message: three strategies over the same rules.

`first_match` takes the device of the rule with the highest adjusted weight, ties by rule id.
`aggregate` takes the device whose rules weigh most together: their mean, their sum, or their mean
with a bonus for every further rule; ties go to more rules, then by name. `fuzzy` is the mean by
how true each rule is. A device no rule speaks for comes after all that have one: first the queue's
default, then by status; of equal status the one of the faster kind, the cheaper one, then by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
from typing_extensions import override

from ebbmq.errors import InvalidSpec
from ebbmq.policy.rules.alike import Alike
from ebbmq.policy.rules.cases import ruled
from ebbmq.policy.rules.degrees import Degrees
from ebbmq.policy.rules.first import FirstMatch
from ebbmq.policy.rules.normal import INF
from ebbmq.policy.rules.properties import UNKNOWN
from ebbmq.policy.rules.totals import (
    COUNT,
    COUNT_BITS,
    LANE,
    LANE_BITS,
    THOUSANDTHS,
    Totals,
    unpack,
)
from ebbmq.policy.status import STATUS_WORST

if TYPE_CHECKING:
    from collections.abc import Collection

    from ebbmq.policy.rules.properties import Properties, States
    from ebbmq.policy.rules.rule import Rule, RuleSet

Kind = Literal["first_match", "aggregate", "fuzzy"]
Combine = Literal["mean", "sum", "biased"]
Ground = Literal["rules", "default", "status"]
NOBODY: Final[frozenset[str]] = frozenset()
BIAS_MAX: Final = 100.0
_MILLIONTHS: Final = THOUSANDTHS * THOUSANDTHS
#: So many totals are remembered until a status changes.
_KNOWN_MAX: Final = 1_024


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
    mean = weights / (rules * THOUSANDTHS) + status
    combine = strategy.combine
    if combine == "mean":
        return mean
    return mean * rules if combine == "sum" else mean + strategy.bias * (rules - 1)


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
            else Totals(cases)
            if self.strategy.kind == "aggregate"
            else Degrees(cases, count, self.strategy.softness)
        )

    @cached_property
    def alike(self) -> Alike:
        """Which messages the rules cannot tell apart, whatever the states of the devices."""
        conditions = (case.condition for case in self._ruled.cases)
        return Alike(conditions, exact=self.strategy.kind == "fuzzy")

    def view(self, states: States) -> View:
        """What is chosen while the devices are in these states; made anew when a status changes."""
        match self._evaluator:
            case FirstMatch() as first:
                return FirstMatchView(self, states, first, self._ruled.rules)
            case Totals() as totals:
                return AggregateView(self, states, totals)
            case Degrees() as degrees:
                return FuzzyView(self, states, degrees)


class View(ABC):
    """A version of the rules together with the states of the devices at one moment."""

    __slots__ = ("_unruled", "chooser", "states", "statuses")

    def __init__(self, chooser: Chooser, states: States) -> None:
        self.chooser = chooser
        self.states = states
        self.statuses = [self._status(device, NOBODY) for device in chooser.devices]
        #: What is chosen where no rule speaks, by default device.
        self._unruled: dict[str | None, Choice | None] = {}

    @abstractmethod
    def best(self, message: Properties, statuses: list[float]) -> Choice | None:
        """The device the rules choose; minus infinity as a status passes one over."""

    @abstractmethod
    def scored(self, message: Properties, statuses: list[float]) -> list[Choice]:
        """All devices a rule speaks for, best first."""

    def choose(
        self, message: Properties, default: str | None = None, without: Collection[str] = NOBODY
    ) -> Choice | None:
        """The device for a message; None if no device can be used."""
        if without:
            best = self.best(message, self._without(without))
            return best or next(iter(self._rest(default, without)), None)
        best = self.best(message, self.statuses)
        if best is None:
            if default not in self._unruled:
                self._unruled[default] = next(iter(self._rest(default, without)), None)
            best = self._unruled[default]
        return best

    def passed_over(self, message: Properties) -> Choice | None:
        """What the rules would choose of devices that cannot be used, where they choose nothing."""
        if -INF not in self.statuses or self.best(message, self.statuses) is not None:
            return None
        return self.best(message, [max(status, STATUS_WORST) for status in self.statuses])

    def ranked(
        self, message: Properties, default: str | None = None, without: Collection[str] = NOBODY
    ) -> list[Choice]:
        """Every device that can be used, the one for the message first."""
        found = self.scored(message, self._without(without) if without else self.statuses)
        return found + self._rest(default, {*without, *(choice.device for choice in found)})

    def _rest(self, default: str | None, without: Collection[str]) -> list[Choice]:
        usable = [
            Choice(name, state.status, "default" if name == default else "status")
            for name, state in self.states.items()
            if state.usable and name not in without
        ]

        def order(choice: Choice) -> tuple[bool, float, int, float, str]:
            name, state = choice.device, self.states[choice.device]
            return name != default, -choice.score, state.slowness, state.cost_per_gib_month, name

        return sorted(usable, key=order)

    def _without(self, without: Collection[str]) -> list[float]:
        return [self._status(device, without) for device in self.chooser.devices]

    def _status(self, device: str, without: Collection[str]) -> float:
        state = self.states.get(device, UNKNOWN)
        return state.status if state.usable and device not in without else -INF


class FirstMatchView(View):
    """The rule with the highest adjusted weight decides."""

    __slots__ = ("_choices", "_fixed", "_match", "_rules")

    def __init__(
        self, chooser: Chooser, states: States, match: FirstMatch, rules: tuple[Rule, ...]
    ) -> None:
        super().__init__(chooser, states)
        self._match = match
        self._rules = rules
        self._fixed = match.fixed(states)
        self._choices: dict[int, Choice] = {}

    @override
    def best(self, message: Properties, statuses: list[float]) -> Choice | None:
        found = self._match.best(message, self.states, self._fixed, statuses)
        if found is None:
            return None
        rank, score = found
        if rank not in self._choices:
            rule = self._rules[rank]
            self._choices[rank] = Choice(rule.device, score, "rules", rule.id)
        return self._choices[rank]

    @override
    def scored(self, message: Properties, statuses: list[float]) -> list[Choice]:
        each = self._match.best_of_each(message, self.states, self._fixed, len(statuses))
        found = [
            (-weight - statuses[device], rank)
            for weight, rank, device in each
            if statuses[device] > -INF
        ]
        return [
            Choice(self._rules[rank].device, -score, "rules", self._rules[rank].id)
            for score, rank in sorted(found)
        ]


class _ScoredView(View):
    """Every device gets a score from all of its rules; the highest decides."""

    __slots__ = ()

    @abstractmethod
    def scores(self, message: Properties, statuses: list[float]) -> list[tuple[float, int, int]]:
        """Of every device with a rule: its score, how many rules, its number, negated."""

    @override
    def best(self, message: Properties, statuses: list[float]) -> Choice | None:
        found = self.scores(message, statuses)
        return self._choice(max(found)) if found else None

    @override
    def scored(self, message: Properties, statuses: list[float]) -> list[Choice]:
        return [self._choice(each) for each in sorted(self.scores(message, statuses), reverse=True)]

    def _choice(self, scored: tuple[float, int, int]) -> Choice:
        return Choice(self.chooser.devices[-scored[2]], scored[0], "rules")


class AggregateView(_ScoredView):
    """The rules of a device are taken together."""

    __slots__ = ("_fixed", "_known", "_totals")

    def __init__(self, chooser: Chooser, states: States, totals: Totals) -> None:
        super().__init__(chooser, states)
        self._totals = totals
        self._fixed = totals.fixed(states)
        #: What was chosen by a total: few rules come to few different ones.
        self._known: dict[int, Choice] = {}

    @override
    def scores(self, message: Properties, statuses: list[float]) -> list[tuple[float, int, int]]:
        strategy = self.chooser.strategy
        total = self._totals.of(message, self.states, self._fixed)
        return [
            (aggregated(strategy, weights, rules, statuses[device]), rules, -device)
            for device, weights, rules in unpack(total)
            if statuses[device] > -INF
        ]

    @override
    def best(self, message: Properties, statuses: list[float]) -> Choice | None:
        total = self._totals.of(message, self.states, self._fixed)
        if statuses is not self.statuses:
            return self._best_by(total, statuses)
        found = self._known.get(total)
        if found is None:
            found = self._best_by(total, statuses)
            if found is not None and len(self._known) < _KNOWN_MAX:
                self._known[total] = found
        return found

    def _best_by(self, total: int, statuses: list[float]) -> Choice | None:
        # As max(scores): no lists and no calls on the way, for many rules come to many totals.
        strategy = self.chooser.strategy
        plain = strategy.combine == "mean"
        best, best_rules, best_device, device = -INF, 0, -1, 0
        while total:
            rules = total & COUNT
            if rules and statuses[device] > -INF:
                weights = (total & LANE) >> COUNT_BITS
                score = weights / (rules * THOUSANDTHS) + statuses[device]
                if not plain:
                    score = aggregated(strategy, weights, rules, statuses[device])
                if score > best or (score == best and rules > best_rules):
                    best, best_rules, best_device = score, rules, device
            total >>= LANE_BITS
            device += 1
        return Choice(self.chooser.devices[best_device], best, "rules") if best_rules else None


class FuzzyView(_ScoredView):
    """The rules of a device are taken together, each by how true it is."""

    __slots__ = ("_degrees", "_fixed")

    def __init__(self, chooser: Chooser, states: States, degrees: Degrees) -> None:
        super().__init__(chooser, states)
        self._degrees = degrees
        self._fixed = degrees.fixed(states)

    @override
    def scores(self, message: Properties, statuses: list[float]) -> list[tuple[float, int, int]]:
        weights, degrees = self._degrees.of(message, self.states, self._fixed)
        return [
            (fuzzy_score(weights[i], degrees[i], status), degrees[i], -i)
            for i, status in enumerate(statuses)
            if degrees[i] and status > -INF
        ]
