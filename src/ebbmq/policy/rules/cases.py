"""Rules with the same condition are one case: its condition is looked at once for all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ebbmq.policy.rules.normal import Normal, normal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.policy.rules.conditions import Condition
    from ebbmq.policy.rules.rule import Rule


class Ranked(NamedTuple):
    """A rule among the others: its place in the order of ids, its device as a number."""

    rank: int
    weight: float
    device: int


class Case(NamedTuple):
    """A condition with the rules that have it."""

    condition: Condition
    normal: Normal
    rules: tuple[Ranked, ...]


class Ruled(NamedTuple):
    """Enabled rules in the order of their ids, the devices they use in the order of their names."""

    rules: tuple[Rule, ...]
    devices: tuple[str, ...]
    cases: tuple[Case, ...]


def ruled(rules: Iterable[Rule]) -> Ruled:
    """Sort rules into cases; those that are switched off are left out."""
    enabled = sorted((rule for rule in rules if rule.enabled), key=lambda rule: rule.id)
    devices = sorted({rule.device for rule in enabled})
    number = {device: i for i, device in enumerate(devices)}
    by_condition: defaultdict[Condition, list[Ranked]] = defaultdict(list)
    for rank, rule in enumerate(enabled):
        by_condition[rule.when].append(Ranked(rank, rule.weight, number[rule.device]))
    cases = (Case(when, normal(when), tuple(those)) for when, those in by_condition.items())
    return Ruled(tuple(enabled), tuple(devices), tuple(cases))
