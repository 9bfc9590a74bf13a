"""The choice of a device for a message: three strategies over the same rules.

`first_match` takes the device of the rule with the highest adjusted weight, ties by rule id.
`aggregate` takes the device whose rules weigh most together: their mean, their sum, or their mean
with a bonus for every further rule; ties go to more rules, then by name. `fuzzy` is the mean by
how true each rule is. A device no rule speaks for comes after all that have one: first the queue's
default, then by status; of equal status the one of the faster kind, the cheaper one, then by name.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np

from ebbmq.errors import InvalidSpec
from ebbmq.policy.rules.alike import Alike
from ebbmq.policy.rules.evaluate import WHOLE, Evaluator
from ebbmq.policy.rules.properties import UNKNOWN
from ebbmq.policy.status import STATUS_WORST

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from ebbmq.policy.rules.properties import Properties, States
    from ebbmq.policy.rules.rule import RuleSet

    Floats = npt.NDArray[np.float64]

Kind = Literal["first_match", "aggregate", "fuzzy"]
Combine = Literal["mean", "sum", "biased"]
Ground = Literal["rules", "default", "status"]
NOBODY: Final[frozenset[str]] = frozenset()
BIAS_MAX: Final = 100.0
_NEVER: Final = -np.inf


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


def aggregated(strategy: Strategy, weights: float, rules: int, status: float) -> float:
    """What a device scores by the total of its rules' weights, in thousandths, and their number."""
    mean = weights / (rules * WHOLE) + status
    if strategy.combine == "mean":
        return mean
    return mean * rules if strategy.combine == "sum" else mean + strategy.bias * (rules - 1)


def fuzzy_score(weights: float, degrees: float, status: float) -> float:
    """What a device scores by weights times degrees (millionths) and degrees (thousandths).

    Where the degrees add up to 1 or more it is the mean of the adjusted weights. A device whose
    rules are hardly true does not win by that mean: it sinks to the worst status as they vanish.
    """
    mass = degrees / WHOLE
    lifted = weights / WHOLE**2 + mass * (status - STATUS_WORST)
    return lifted / max(1.0, mass) + STATUS_WORST


class Chooser:
    """One version of the rules, ready to be asked. Never changes: a new version is a new one."""

    def __init__(self, rules: RuleSet, strategy: Strategy | None = None) -> None:
        self.rules: Final = rules
        self.strategy: Final = strategy or Strategy()
        #: In the order of their ids, so that the first of equal ones is the winner.
        self.enabled: Final = rules.enabled()
        self.devices: Final = tuple(sorted({rule.device for rule in self.enabled}))
        number = {device: i for i, device in enumerate(self.devices)}
        self.device_of: Final = np.array(
            [number[rule.device] for rule in self.enabled], dtype=np.intp
        )
        self.weights: Final = np.array([rule.weight for rule in self.enabled], dtype=float)
        softness = self.strategy.softness if self.strategy.kind == "fuzzy" else 0.0
        self.evaluator: Final = Evaluator((rule.when for rule in self.enabled), softness)

    @cached_property
    def alike(self) -> Alike:
        """Which messages the rules cannot tell apart, whatever the states of the devices."""
        return Alike((r.when for r in self.enabled), exact=self.strategy.kind == "fuzzy")

    def view(self, states: States) -> View:
        """What is chosen while the devices are in these states; made anew when a status changes."""
        return View(self, states)


class View:
    """A version of the rules together with the states of the devices at one moment."""

    __slots__ = ("_adjusted", "_fixed", "_unruled", "chooser", "states", "statuses")

    def __init__(self, chooser: Chooser, states: States) -> None:
        self.chooser = chooser
        self.states = states
        self.statuses = self._statuses(NOBODY)
        self._adjusted = self._adjust(self.statuses)
        self._fixed = chooser.evaluator.fixed(states)
        #: What is chosen where no rule speaks, by default device.
        self._unruled: dict[str | None, Choice | None] = {}

    def choose(
        self, message: Properties, default: str | None = None, without: Collection[str] = NOBODY
    ) -> Choice | None:
        """The device for a message; None if no device can be used."""
        statuses = self._statuses(without) if without else self.statuses
        best = self._best(message, statuses)
        if best is not None:
            return best
        if without:
            return next(iter(self._rest(default, without)), None)
        if default not in self._unruled:
            self._unruled[default] = next(iter(self._rest(default, without)), None)
        return self._unruled[default]

    def passed_over(self, message: Properties) -> Choice | None:
        """What the rules would choose of devices that cannot be used, where they choose nothing."""
        if _NEVER not in self.statuses or self._best(message, self.statuses) is not None:
            return None
        return self._best(message, np.maximum(self.statuses, STATUS_WORST))

    def ranked(
        self, message: Properties, default: str | None = None, without: Collection[str] = NOBODY
    ) -> list[Choice]:
        """Every device that can be used, the one for the message first."""
        statuses = self._statuses(without) if without else self.statuses
        found = self._scored(message, statuses)
        return found + self._rest(default, {*without, *(choice.device for choice in found)})

    def _best(self, message: Properties, statuses: Floats) -> Choice | None:
        """The device the rules choose, if they speak for one that can be used."""
        if self.chooser.strategy.kind != "first_match":
            return next(iter(self._scored(message, statuses)), None)
        degrees = self.chooser.evaluator.degrees(message, self._fixed)
        if not len(degrees):
            return None
        adjusted = self._adjusted if statuses is self.statuses else self._adjust(statuses)
        weights = np.where(degrees, adjusted, _NEVER)
        winner = int(weights.argmax())
        score = float(weights[winner])
        return None if score == _NEVER else self._of_rule(winner, score)

    def _scored(self, message: Properties, statuses: Floats) -> list[Choice]:
        """All devices that can be used and a rule speaks for, best first."""
        chooser = self.chooser
        degrees = chooser.evaluator.degrees(message, self._fixed)
        true = degrees.nonzero()[0]
        if chooser.strategy.kind == "first_match":
            return self._winners(true, self._adjust(statuses))
        count, devices = len(chooser.devices), chooser.device_of[true]
        counted = degrees[true] if chooser.strategy.kind == "fuzzy" else np.ones(len(true))
        weights = np.rint(chooser.weights[true] * WHOLE) * counted
        weight_of = np.bincount(devices, weights, minlength=count).tolist()
        count_of = np.bincount(devices, counted, minlength=count).tolist()
        scores = [
            (-self._score(weight_of[n], count_of[n], status), -count_of[n], n)
            for n, status in enumerate(statuses.tolist())
            if count_of[n] and status > _NEVER
        ]
        return [Choice(chooser.devices[n], -score, "rules") for score, _, n in sorted(scores)]

    def _score(self, weights: float, count: float, status: float) -> float:
        if self.chooser.strategy.kind == "fuzzy":
            return fuzzy_score(weights, count, status)
        return aggregated(self.chooser.strategy, weights, int(count), status)

    def _winners(self, true: npt.NDArray[np.intp], adjusted: Floats) -> list[Choice]:
        """The heaviest of these rules of each device."""
        out: dict[int, Choice] = {}
        for rule in true[np.argsort(-adjusted[true], kind="stable")].tolist():
            score = float(adjusted[rule])
            if score > _NEVER:
                out.setdefault(int(self.chooser.device_of[rule]), self._of_rule(rule, score))
        return list(out.values())

    def _of_rule(self, number: int, score: float) -> Choice:
        rule = self.chooser.enabled[number]
        return Choice(rule.device, score, "rules", rule.id)

    def _adjust(self, statuses: Floats) -> Floats:
        return self.chooser.weights + statuses[self.chooser.device_of]

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

    def _statuses(self, without: Collection[str]) -> Floats:
        """By device of the rules: its status, or minus infinity where it cannot be used."""
        states = [self.states.get(device, UNKNOWN) for device in self.chooser.devices]
        return np.array(
            [
                state.status if state.usable and device not in without else _NEVER
                for device, state in zip(self.chooser.devices, states, strict=True)
            ],
            dtype=float,
        )
