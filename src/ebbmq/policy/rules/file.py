"""Rules as they stand in a file, one a line.

    # small and urgent
    W-005: WEIGHT 80 USE MEMORY WHEN SIZE < 20

Every line is read, so that all slips are told at once.
"""

from __future__ import annotations

from typing import NamedTuple

from ebbmq.policy.rules.faults import InvalidRule
from ebbmq.policy.rules.rule import Rule, read_rule


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


def _add(rules: dict[str, Rule], rule: Rule) -> None:
    if rule.id in rules:
        raise InvalidRule(f"there is a rule {rule.id!r} already", "give it another id")
    rules[rule.id] = rule
