"""Conditions as closures: made once per condition, called per message. No text is ever executed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, assert_never, cast

from ebbmq.policy.rules.conditions import (
    KEYWORDS,
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
    Property,
)
from ebbmq.policy.rules.properties import UNKNOWN, Properties, States

Test = Callable[[Properties, States], bool]
Number = Callable[[Properties, States], float]
Text = Callable[[Properties, States], str | None]

_ORDER: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def test_of(condition: Condition) -> Test:
    """The closure that says whether a condition is true of a message."""
    match condition:
        case Not(part):
            inner = test_of(part)
            return lambda message, states: not inner(message, states)
        case All(parts):
            return joined([test_of(part) for part in parts], conjunction=True)
        case Any(parts):
            return joined([test_of(part) for part in parts], conjunction=False)
        case leaf:
            return _leaf(leaf)


def _leaf(leaf: Leaf) -> Test:
    match leaf:
        case Always():
            return lambda message, states: True
        case Compare(of, comparator, value):
            return _compare(of, comparator, value)
        case OneOf(of, values):
            read, among = reader(of), frozenset(values)
            return lambda message, states: read(message, states) in among
        case IsPresent(of):
            read_text = cast("Text", reader(of))
            return lambda message, states: read_text(message, states) is not None
        case Contains(of, part):
            return _contains(of, part)
        case _:
            assert_never(leaf)


def reader(of: Property) -> Number | Text:
    """The closure that gets a property's value."""
    keyword = KEYWORDS[of.keyword]
    get = operator.attrgetter(keyword.attribute)
    name = of.argument
    if keyword.needs == "header":
        assert name is not None
        return lambda message, states: message.headers.get(name)
    if keyword.needs == "device":
        assert name is not None
        return lambda message, states: cast("float", get(states.get(name, UNKNOWN)))
    return lambda message, states: get(message)


def _compare(of: Property, comparator: str, value: float | str) -> Test:
    read = reader(of)
    if comparator == "==":
        return lambda message, states: read(message, states) == value
    if comparator == "!=":
        return lambda message, states: read(message, states) != value
    assert not isinstance(value, str)
    holds, number = _ORDER[comparator], cast("Number", read)
    return lambda message, states: holds(number(message, states), value)


def _contains(of: Property, part: str) -> Test:
    read = cast("Text", reader(of))

    def test(message: Properties, states: States) -> bool:
        text = read(message, states)
        return text is not None and part in text

    return test


def _both(first: Test, second: Test) -> Test:
    return lambda message, states: first(message, states) and second(message, states)


def _either(first: Test, second: Test) -> Test:
    return lambda message, states: first(message, states) or second(message, states)


def joined(tests: list[Test], *, conjunction: bool) -> Test:
    """AND or OR of tests; neighbours are joined, so that calls nest as the logarithm of them."""
    join = _both if conjunction else _either
    while len(tests) > 1:
        pairs = [join(a, b) for a, b in zip(tests[::2], tests[1::2], strict=False)]
        tests = pairs + tests[2 * len(pairs) :]
    return tests[0]
