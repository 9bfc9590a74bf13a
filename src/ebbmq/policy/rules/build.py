"""What the parser makes of what it reads: conditions, checked word by word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from lark import Token, Transformer, v_args

from ebbmq.policy.rules.conditions import (
    ALWAYS,
    KEYWORDS,
    All,
    Any,
    Comparator,
    Compare,
    Condition,
    Contains,
    IsPresent,
    Keyword,
    Not,
    OneOf,
    Property,
)
from ebbmq.policy.rules.faults import InvalidRule, meant

if TYPE_CHECKING:
    from collections.abc import Sequence

_METHODS: Final = ("isPresent", "contains")
_NUMBER_CHARS: Final = frozenset("+-.0123456789eE")


class Parsed(NamedTuple):
    """The parts of a rule as they stand in its text; `id` is None where it has none."""

    id: str | None
    weight: float
    device: str
    when: Condition


class _Asked(NamedTuple):
    """A property, and the word that asked for it, where a refusal points."""

    property: Property
    keyword: Keyword
    token: Token


def refuse(token: Token, problem: str, action: str) -> InvalidRule:
    """A refusal that points at a token; the parser adds the text."""
    return InvalidRule(problem, action, column=token.column or 0)


@v_args(inline=True)
class Builder(Transformer[Token, "Parsed | Condition"]):
    """Called by the parser from the leaves up, so that nothing here recurses."""

    def rule(
        self, label: Token | None, weight: Token, device: Token, when: Condition | None = None
    ) -> Parsed:
        """A whole rule; without WHEN it is true of every message."""
        return Parsed(
            None if label is None else str(label),
            _number(weight, None),
            _text(device),
            ALWAYS if when is None else when,
        )

    def any_of(self, *parts: Condition) -> Condition:
        """OR."""
        return Any(_flat(Any, parts))

    def all_of(self, *parts: Condition) -> Condition:
        """AND."""
        return All(_flat(All, parts))

    def negation(self, part: Condition) -> Condition:
        """NOT."""
        return Not(part)

    def value(self, token: Token) -> Token:
        """A word, a number or a quoted text; what it stands for depends on the property."""
        return token

    def device(self, token: Token) -> Token:
        """The name of a device."""
        return token

    def word(self, token: Token) -> Condition:
        """A word on its own, which is ALWAYS or a mistake."""
        if token.upper() == "ALWAYS":
            return ALWAYS
        keyword = _keyword(token)
        raise refuse(token, f"{keyword.name} is compared with nothing", _example(keyword))

    def property(self, token: Token, argument: Token | None) -> _Asked:
        """A keyword, with its header or device in parentheses where it needs one."""
        keyword = _keyword(token)
        if keyword.needs and argument is None:
            raise refuse(token, f"{keyword.name} of which {keyword.needs}?", _example(keyword))
        if not keyword.needs and argument is not None:
            raise refuse(token, f"{keyword.name} takes no parentheses", _example(keyword))
        return _Asked(
            Property(keyword.name, None if argument is None else _text(argument)), keyword, token
        )

    def compare(self, asked: _Asked, comparator: Token, value: Token) -> Condition:
        """A property against a value."""
        if asked.keyword.kind == "text" and comparator not in {"==", "!="}:
            raise refuse(
                comparator,
                f"{asked.keyword.name} is a text and has no order",
                "use ==, != or in (..)",
            )
        return Compare(asked.property, cast("Comparator", str(comparator)), _value(asked, value))

    def one_of(self, asked: _Asked, *values: Token) -> Condition:
        """A property against a list."""
        return OneOf(asked.property, tuple(dict.fromkeys(_value(asked, each) for each in values)))

    def method(self, asked: _Asked, name: Token, argument: Token | None = None) -> Condition:
        """`.isPresent` and `.contains(..)`, which only texts have."""
        found = next((each for each in _METHODS if each.upper() == name.upper()), None)
        if found is None:
            near = meant(name, _METHODS)
            raise refuse(
                name,
                f".{name} is not known",
                f"did you mean .{near}?" if near else "use .isPresent or .contains(..)",
            )
        if asked.keyword.kind == "number":
            raise refuse(
                name, f"{asked.keyword.name} is a number and has no .{found}", "use == or < .."
            )
        if found == "isPresent":
            if argument is not None:
                raise refuse(argument, ".isPresent takes nothing", "write .isPresent")
            return IsPresent(asked.property)
        if argument is None:
            raise refuse(name, ".contains of what?", 'write .contains("fast-db")')
        return Contains(asked.property, _text(argument))


def _flat(kind: type[All] | type[Any], parts: Sequence[Condition]) -> tuple[Condition, ...]:
    found: list[Condition] = []
    for part in parts:
        found += part.parts if isinstance(part, kind) else (part,)
    return tuple(found)


def _keyword(token: Token) -> Keyword:
    keyword = KEYWORDS.get(token.upper())
    if keyword is None:
        near = meant(token, [*KEYWORDS, "ALWAYS", "NOT"])
        raise refuse(
            token,
            f"{token} is not a keyword",
            f"did you mean {near}?" if near else f"keywords are {', '.join(KEYWORDS)}",
        )
    return keyword


def _value(asked: _Asked, token: Token) -> float | str:
    keyword = asked.keyword
    if keyword.kind == "number":
        return _number(token, keyword)
    if token.type == "NUMBER":
        raise refuse(token, f"{keyword.name} is a text", f'write it in quotes: "{token}"')
    text = _text(token)
    if keyword.choices and text not in keyword.choices:
        near = meant(text, keyword.choices)
        raise refuse(
            token,
            f"{keyword.name} is never {token}",
            f"did you mean {near}?" if near else f"use one of {', '.join(keyword.choices)}",
        )
    return text


def _number(token: Token, keyword: Keyword | None) -> float:
    name = keyword.name if keyword else "WEIGHT"
    if token.type != "NUMBER":
        raise refuse(token, f"{name} is a number, {token} is not", f"write {name} and a number")
    units = dict(keyword.units) if keyword else {}
    digits = token.rstrip("abcdfghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = token[len(digits) :]
    if unit and unit not in units:
        near = meant(unit, units)
        raise refuse(
            token,
            f"{unit} is not a unit of {name}",
            f"did you mean {digits}{near}?"
            if near
            else f"use one of {', '.join(units)}"
            if units
            else "write the number alone",
        )
    number = float(digits) * units.get(unit, 1.0)
    if number in {float("inf"), float("-inf")}:
        raise refuse(token, "the number is too large", "use less than 1e308")
    return number + 0.0  # -0.0 and 0.0 are one condition


def _text(token: Token) -> str:
    if token.type != "QUOTED":
        return str(token)
    text: str = json.loads(str(token))
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise refuse(token, "half of a surrogate pair is no character", "write the character")
    return text


def _example(keyword: Keyword) -> str:
    name = {"": "", "header": '("name")', "device": "(HDD)"}[keyword.needs]
    if keyword.kind == "number":
        return f"write {keyword.name}{name} > 10"
    choice = keyword.choices[0] if keyword.choices else '"some text"'
    return f"write {keyword.name}{name} == {choice}"
