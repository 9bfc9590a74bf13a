"""From a condition back to its text; reading that text gives the same condition again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, assert_never

from ebbmq.policy.rules.conditions import (
    All,
    Always,
    Any,
    Compare,
    Condition,
    Contains,
    IsPresent,
    Leaf,
    Not,
    OneOf,
)

if TYPE_CHECKING:
    from ebbmq.policy.rules.conditions import Property

_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def text_of(condition: Condition) -> str:
    """The condition as it stands behind WHEN."""
    match condition:
        case Any(parts):
            return " OR ".join(_inner(part, Any) for part in parts)
        case All(parts):
            return " AND ".join(_inner(part, All, Any) for part in parts)
        case Not(part):
            return f"NOT {_inner(part, All, Any)}"
        case leaf:
            return _leaf(leaf)


def _leaf(leaf: Leaf) -> str:
    match leaf:
        case Always():
            return "ALWAYS"
        case Compare(of, comparator, value):
            return f"{_property(of)} {comparator} {value_text(value)}"
        case OneOf(of, values):
            return f"{_property(of)} in ({', '.join(map(value_text, values))})"
        case IsPresent(of):
            return f"{_property(of)}.isPresent"
        case Contains(of, part):
            return f"{_property(of)}.contains({quoted(part)})"
        case _:
            assert_never(leaf)


def rule_text(weight: float, device: str, when: Condition) -> str:
    """The whole rule, without its id."""
    return f"WEIGHT {value_text(weight)} USE {value_text(device)} WHEN {text_of(when)}"


def value_text(value: float | str) -> str:
    """A value as it is written; a text is quoted unless it is one plain word."""
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) else quoted(value)
    return repr(float(value)).removesuffix(".0")


def quoted(text: str) -> str:
    """A text in double quotes."""
    import json  # noqa: PLC0415  # most stores have no rules

    return json.dumps(text)


def _property(of: Property) -> str:
    if of.argument is None:
        return of.keyword
    argument = quoted(of.argument) if of.keyword == "HEADER" else value_text(of.argument)
    return f"{of.keyword}({argument})"


def _inner(part: Condition, *kinds: type[All] | type[Any]) -> str:
    text = text_of(part)
    return f"({text})" if isinstance(part, kinds) else text
