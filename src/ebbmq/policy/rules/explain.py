"""Why a device is chosen for a message and why each other one is not, as data for people.

Every rule is tried by itself here, so an explanation also checks the columns the choice is made by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.policy.placement import Placed, Terms, place
from ebbmq.policy.rules.evaluate import WHOLE, degree_of
from ebbmq.policy.rules.properties import UNKNOWN

if TYPE_CHECKING:
    from ebbmq.policy.placement import Wanted
    from ebbmq.policy.rules.choose import Choice, View
    from ebbmq.policy.rules.properties import Properties
    from ebbmq.policy.rules.rule import Rule

_NO_TERMS: Final = Terms()


class ExplainedDevice(msgspec.Struct, frozen=True):
    """A device: what it scored, and why it is chosen or not; no score: no rule speaks for it."""

    name: str
    status: float
    score: float | None
    why: str


class ExplainedRule(msgspec.Struct, frozen=True):
    """A rule: whether it is true of the message, its weight before and after the status."""

    id: str
    matched: bool
    weight: float
    adjusted: float
    device: str
    when: str
    enabled: bool
    degree: float | None = None


class Explanation(msgspec.Struct, frozen=True):
    """The choice for one message; `floor_added` is the durable device that was added to it."""

    chosen: tuple[str, ...]
    floor_added: str | None
    strategy: str
    devices: tuple[ExplainedDevice, ...]
    rules: tuple[ExplainedRule, ...]
    version: int


def explain(
    view: View,
    message: Properties,
    *,
    terms: Terms = _NO_TERMS,
    durable: bool = True,
    replicas: int = 1,
) -> Explanation:
    """Explain what is chosen for a message at intake, on the terms of its queue."""
    asked = Placed(properties=message, terms=terms, durable=durable, replicas=replicas)
    wanted = place(asked, 0, view)
    ranked = view.ranked(message, terms.default)
    places = {choice.device: number for number, choice in enumerate(ranked)}
    rules = tuple(_rule(rule, view, message) for rule in _by_weight(view))
    strategy = view.chooser.strategy
    names = sorted(
        {*view.states, *view.chooser.devices},
        key=lambda name: (places.get(name, len(places)), name),
    )
    return Explanation(
        wanted.copies,
        wanted.floor_added,
        f"aggregate ({strategy.combine})" if strategy.kind == "aggregate" else strategy.kind,
        tuple(_device(name, view, ranked, rules, wanted) for name in names),
        rules,
        view.chooser.rules.version,
    )


def _by_weight(view: View) -> list[Rule]:
    def order(rule: Rule) -> tuple[float, str]:
        return -(rule.weight + view.states.get(rule.device, UNKNOWN).status), rule.id

    return sorted(view.chooser.rules.rules.values(), key=order)


def _rule(rule: Rule, view: View, message: Properties) -> ExplainedRule:
    state = view.states.get(rule.device, UNKNOWN)
    is_fuzzy = view.chooser.strategy.kind == "fuzzy"
    softness = view.chooser.strategy.softness if is_fuzzy else 0.0
    degree = degree_of(rule.when, message, view.states, softness)
    return ExplainedRule(
        rule.id,
        degree > 0 and rule.enabled,
        rule.weight,
        rule.weight + state.status,
        rule.device,
        rule.condition_text,
        rule.enabled,
        degree / WHOLE if is_fuzzy else None,
    )


def _device(
    name: str,
    view: View,
    ranked: list[Choice],
    rules: tuple[ExplainedRule, ...],
    wanted: Wanted,
) -> ExplainedDevice:
    status = view.states.get(name, UNKNOWN).status
    own = next((each for each in ranked if each.device == name), None)
    score = own.score if own and own.ground == "rules" else None
    mine = [rule for rule in rules if rule.device == name and rule.matched]
    spoken = any(rule.matched for rule in rules)
    unruled = (
        "no device that rules speak for can be used" if spoken else "no rule speaks for any device"
    )
    if own is None:
        why = "there is no such device" if name not in view.states else "it cannot be used just now"
    elif own is ranked[0]:
        why = _won(own, mine, unruled)
    elif name == wanted.floor_added:
        why = "added: a durable message has at least one durable copy"
    elif name in wanted.copies:
        why = f"chosen for copy {wanted.copies.index(name) + 1}"
    else:
        why = _lost(own, ranked[0], mine, unruled)
    return ExplainedDevice(name, status, score, why)


def _won(choice: Choice, mine: list[ExplainedRule], unruled: str) -> str:
    if choice.ground == "default":
        return f"chosen: {unruled}, and it is the default"
    if choice.ground == "status":
        return f"chosen: {unruled}, and its status {choice.score:g} is the best"
    if choice.rule is not None:
        return f"chosen: rule {choice.rule} has the highest adjusted weight, {choice.score:g}"
    return f"chosen: {_named(mine)} score highest, {choice.score:g}"


def _lost(choice: Choice, winner: Choice, mine: list[ExplainedRule], unruled: str) -> str:
    if choice.ground != "rules":
        if winner.ground == "rules":
            return "no rule that uses it is true of the message"
        if winner.ground == "default":
            return f"{unruled}, and {winner.device} is the default"
        return f"its status {choice.score:g} comes after {winner.device}"
    what = f"rule {choice.rule}" if choice.rule is not None else _named(mine)
    if choice.score < winner.score:
        return f"{what}: {choice.score:g}, below {winner.score:g} of {winner.device}"
    return f"{what}: {choice.score:g}, as {winner.device}, which comes first on a tie"


def _named(mine: list[ExplainedRule]) -> str:
    shown = ", ".join(rule.id for rule in mine[:5])
    return f"rules {shown}, .." if mine[5:] else f"rules {shown}" if mine[1:] else f"rule {shown}"
