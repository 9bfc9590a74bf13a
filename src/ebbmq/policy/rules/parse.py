"""From the text of a rule to its parts; every refusal points at a column and says what to write."""

from __future__ import annotations

import re
from functools import cache
from typing import Final, cast

import lark

from ebbmq.policy.rules.build import Builder, Parsed
from ebbmq.policy.rules.conditions import KEYWORDS, Condition, depth
from ebbmq.policy.rules.faults import InvalidRule, meant
from ebbmq.policy.rules.grammar import EXPECTED, GRAMMAR, TEXT_CHARS_MAX

DEPTH_MAX: Final = 64
_WORD_AT: Final = re.compile(r"[\w.\-]+|[=!<>]+|\S")
_LANGUAGE: Final = ("WEIGHT", "USE", "WHEN", "AND", "OR", "NOT", "IN")


def parse_rule(text: str) -> Parsed:
    """Read `[ID:] WEIGHT n USE device [WHEN condition]`.

    Raises:
        InvalidRule: with the column at which reading stopped.
    """
    parsed = cast("Parsed", _parse(text, "rule"))
    _check_depth(text, parsed.when)
    return parsed


def parse_condition(text: str) -> Condition:
    """Read what stands behind WHEN.

    Raises:
        InvalidRule: with the column at which reading stopped.
    """
    condition = cast("Condition", _parse(text, "condition"))
    _check_depth(text, condition)
    return condition


@cache
def _parser() -> lark.Lark:
    return lark.Lark(GRAMMAR, parser="lalr", start=["rule", "condition"], transformer=Builder())


def _parse(text: str, start: str) -> object:
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidRule(
            f"the text has {len(text)} characters, the limit is {TEXT_CHARS_MAX}",
            "make several rules of it",
        )
    try:
        return _parser().parse(text, start=start)
    except lark.UnexpectedInput as error:
        raise _refusal(text, error) from None
    except InvalidRule as error:
        raise InvalidRule(error.problem, error.action, text=text, column=error.column) from None


def _check_depth(text: str, condition: Condition) -> None:
    if depth(condition) > DEPTH_MAX:
        raise InvalidRule(
            f"the condition is nested deeper than {DEPTH_MAX}", "simplify it", text=text
        )


def _refusal(text: str, error: lark.UnexpectedInput) -> InvalidRule:
    match error:
        case lark.UnexpectedToken():
            expected = set(error.accepts)
            at_end = error.token.type == "$END"
        case lark.UnexpectedCharacters():
            expected, at_end = set(error.allowed or ()), False
        case _:
            expected, at_end = set(), True
    at = len(text.rstrip()) if at_end else cast("int", error.pos_in_stream)
    found = _WORD_AT.match(text, at)
    word = found[0] if found else ""
    problem = f"{word} is not expected here" if word else "the rule ends too early"
    return InvalidRule(problem, _advice(word, expected), text=text, column=at + 1)


def _advice(word: str, expected: set[str]) -> str:
    slips = {
        "=": "write == to compare",
        "<>": "write != for not equal",
        "=<": "write <=",
        "=>": "write >=",
        "'": 'use double quotes: "text"',
        '"': "close the text with a double quote",
        "&": "write AND",
        "|": "write OR",
        "!": "write NOT",
    }
    if word in slips:
        return slips[word]
    known = [each for each in _LANGUAGE if f"_{each}" in expected]
    if "FIELD" in expected:
        known += KEYWORDS
    near = meant(word, known) if word else None
    if near:
        return f"did you mean {near}?"
    names = [text for name, text in EXPECTED.items() if name in expected]
    if not names or names == [EXPECTED["$END"]]:
        return "remove it and what follows"
    return f"write {', '.join(names[:-1])} or {names[-1]}" if names[1:] else f"write {names[0]}"
