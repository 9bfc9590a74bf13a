"""A rule, and the versioned set of rules a broker decides by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq import model
from ebbmq.errors import InvalidSpec
from ebbmq.plain import plain
from ebbmq.policy.rules.conditions import KEYWORDS, Condition, properties_of
from ebbmq.policy.rules.faults import InvalidRule, meant
from ebbmq.policy.rules.text import rule_text, text_of, value_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ebbmq.policy.rules.spec import RuleSpec

WEIGHT_MAX: Final = 1_000.0
RULES_MAX: Final = 50_000


class Rule(msgspec.Struct, frozen=True, cache_hash=True):
    """Prefer a device, this much, for messages of which the condition is true.

    Raises:
        InvalidRule: the id, the weight or the name of the device is not usable.
    """

    id: str
    weight: float
    device: str
    when: Condition
    enabled: bool = True

    def __post_init__(self) -> None:
        for kind, name in (("rule", self.id), ("device", self.device)):
            try:
                model.check_name(kind, name)
            except InvalidSpec as error:
                raise InvalidRule(
                    error.detail, error.action, rule=f"rule {self.id!r:.80}"
                ) from None
        if not (math.isfinite(self.weight) and 0 <= self.weight <= WEIGHT_MAX):
            raise InvalidRule(
                f"the weight is {value_text(self.weight)}",
                f"use a number from 0 to {WEIGHT_MAX:g}",
                rule=f"rule {self.id!r}",
            )

    @property
    def text(self) -> str:
        """The rule as it is written, without its id."""
        return rule_text(self.weight, self.device, self.when)

    @property
    def condition_text(self) -> str:
        """What stands behind WHEN."""
        return text_of(self.when)

    def devices(self) -> set[str]:
        """Every device the rule names, in USE or in its condition."""
        asked = {
            of.argument
            for of in properties_of(self.when)
            if KEYWORDS[of.keyword].needs == "device" and of.argument is not None
        }
        return asked | {self.device}


def read_rule(text: str, rule_id: str | None = None) -> Rule:
    """Make a rule of its text; the id is the one in the text, else the one given.

    Raises:
        InvalidRule: the text is no rule, or has no id and none is given.
    """
    from ebbmq.policy.rules.parse import parse_rule  # noqa: PLC0415  # slow to import

    parsed = parse_rule(text)
    name = parsed.id or rule_id
    if name is None:
        raise InvalidRule("the rule has no id", f"write one in front: W-001: {text.strip()}")
    return Rule(name, parsed.weight, parsed.device, parsed.when)


def make_rule(
    rule_id: str, weight: float, device: str, when: str = "ALWAYS", *, enabled: bool = True
) -> Rule:
    """Make a rule of its parts, the condition as text.

    Raises:
        InvalidRule: a part is not usable; the detail names the rule.
    """
    from ebbmq.policy.rules.parse import parse_condition  # noqa: PLC0415  # slow to import

    try:
        condition = parse_condition(when)
    except InvalidRule as error:
        raise error.of(f"rule {rule_id!r:.80}") from None
    return Rule(rule_id, float(weight), device, condition, enabled)


def rule_of(spec: RuleSpec) -> Rule:
    """Make a rule of plain data.

    Raises:
        InvalidRule: a part is not usable; the detail names the rule.
    """
    spec.check()
    parts = map(plain, (spec.id, spec.weight, spec.device, spec.when))
    return make_rule(*parts, enabled=spec.enabled)


class RuleSet(msgspec.Struct, frozen=True):
    """Rules by id. A change makes the next version; whoever holds this one is not disturbed."""

    rules: dict[str, Rule] = {}
    version: int = 0

    @classmethod
    def of(cls, rules: Iterable[Rule], version: int = 1) -> RuleSet:
        """The set of these rules.

        Raises:
            InvalidRule: two have the same id, or there are too many.
        """
        found: dict[str, Rule] = {}
        for rule in rules:
            if rule.id in found:
                raise InvalidRule(f"there are two rules {rule.id!r}", "give one of them another id")
            found[rule.id] = rule
        return cls(_bounded(found), version)

    def having(self, *rules: Rule) -> RuleSet:
        """The next version, with these rules added, or in the place of those with their ids.

        Raises:
            InvalidRule: there would be too many.
        """
        changed = self.rules | {rule.id: rule for rule in rules}
        return RuleSet(_bounded(changed), self.version + 1)

    def without(self, *ids: str) -> RuleSet:
        """The next version, without the rules of these ids.

        Raises:
            InvalidRule: there is no rule of that id; the nearest is named.
        """
        for each in ids:
            self.require(each)
        kept = {name: rule for name, rule in self.rules.items() if name not in ids}
        return RuleSet(kept, self.version + 1)

    def enabling(self, rule_id: str, *, enabled: bool) -> RuleSet:
        """The next version, with this rule switched on or off; twice is as once."""
        rule = self.require(rule_id)
        if rule.enabled == enabled:
            return self
        return self.having(msgspec.structs.replace(rule, enabled=enabled))

    def require(self, rule_id: str) -> Rule:
        """The rule of an id.

        Raises:
            InvalidRule: there is none; the nearest is named.
        """
        rule = self.rules.get(rule_id)
        if rule is None:
            near = meant(rule_id, self.rules)
            raise InvalidRule(
                f"there is no rule {rule_id!r:.80}",
                f"did you mean {near!r}?" if near else "list the rules to see their ids",
            )
        return rule

    def enabled(self) -> list[Rule]:
        """The rules that count, in the order of their ids."""
        return sorted((r for r in self.rules.values() if r.enabled), key=lambda rule: rule.id)


def check_devices(rules: Iterable[Rule], devices: Collection[str]) -> None:
    """Refuse a rule that names a device nobody has.

    Raises:
        InvalidRule: with the rule, the device, and the device probably meant.
    """
    for rule in rules:
        for name in sorted(rule.devices() - set(devices)):
            near = meant(name, devices)
            raise InvalidRule(
                f"there is no device {name!r:.80}",
                f"did you mean {near!r}?"
                if near
                else f"devices are {', '.join(sorted(devices)) or 'not declared'}",
                rule=f"rule {rule.id!r}",
            )


def _bounded(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    if len(rules) > RULES_MAX:
        raise InvalidRule(
            f"there would be {len(rules)} rules, the limit is {RULES_MAX}", "remove some first"
        )
    return dict(rules)
