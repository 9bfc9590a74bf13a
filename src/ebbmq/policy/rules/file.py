"""Rules as they stand in a file: one a line, or as tables of a configuration.

    # small and urgent
    W-005: WEIGHT 80 USE MEMORY WHEN SIZE < 20

Every line is read, so that all slips are told at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ebbmq.policy.rules.faults import InvalidRule, meant
from ebbmq.policy.rules.normal import FALSE, normal
from ebbmq.policy.rules.rule import Rule, make_rule, read_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class _Form(msgspec.Struct):
    id: str
    weight: float
    device: str
    when: str = "ALWAYS"
    enabled: bool = True


_FIELDS: Final = _Form.__struct_fields__


class Problem(NamedTuple):
    """What is wrong in one place of a file."""

    place: str
    error: InvalidRule


class ReadFile(NamedTuple):
    """What a file says."""

    rules: tuple[Rule, ...]
    problems: tuple[Problem, ...]


def read_lines(text: str) -> ReadFile:
    """Read rules, one a line; empty lines and those that begin with # are passed over."""
    rules: dict[str, Rule] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                _add(rules, read_rule(line.rstrip(), f"line-{number}"))
            except InvalidRule as error:
                problems.append(Problem(f"line {number}", error))
    return ReadFile(tuple(rules.values()), tuple(problems))


def read_tables(tables: Iterable[Mapping[str, Any]]) -> ReadFile:
    """Read rules from tables with id, weight and device, and when and enabled where needed."""
    rules: dict[str, Rule] = {}
    problems: list[Problem] = []
    for number, table in enumerate(tables, 1):
        try:
            _add(rules, _from_table(table))
        except InvalidRule as error:
            problems.append(Problem(f"rule number {number}", error))
    return ReadFile(tuple(rules.values()), tuple(problems))


def _add(rules: dict[str, Rule], rule: Rule) -> None:
    if rule.id in rules:
        raise InvalidRule(f"there is a rule {rule.id!r} already", "give it another id")
    rules[rule.id] = rule


def _from_table(table: Mapping[str, Any]) -> Rule:
    for name in table:
        if name not in _FIELDS:
            near = meant(name, _FIELDS)
            hint = f"did you mean {near}?" if near else f"a rule has {', '.join(_FIELDS)}"
            raise InvalidRule(f"{name} is not known", hint)
    try:
        form = msgspec.convert(table, _Form)
    except msgspec.ValidationError as error:
        raise InvalidRule(str(error), "a rule needs at least id, weight and device") from None
    return make_rule(form.id, form.weight, form.device, form.when, enabled=form.enabled)


def doubts(rules: Iterable[Rule]) -> Iterator[str]:
    """What is no slip but hardly meant."""
    before: dict[tuple[str, object], Rule] = {}
    for rule in rules:
        form = normal(rule.when)
        if form == FALSE:
            yield f"{rule.id} is never true: {rule.condition_text}"
        same = before.setdefault((rule.device, form), rule)
        if same is not rule:
            yield f"{rule.id} asks for the same as {same.id}, for the same device"
