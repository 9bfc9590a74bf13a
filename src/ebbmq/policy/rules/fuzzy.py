"""Fuzzy conditions: how true one is of a message, from 0 to 1, instead of whether.

An edge is soft: `SIZE > 10` with softness 0.2 is 0 up to 8, 1 from 12 on, and rises evenly between.
Texts are true or not. AND is the least of its parts, OR the greatest, NOT what is missing to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ebbmq.policy.rules.compile import Number, reader, test_of
from ebbmq.policy.rules.conditions import All, Any, Compare, Condition, Leaf, Not, OneOf

if TYPE_CHECKING:
    from ebbmq.policy.rules.conditions import Comparator, Property
    from ebbmq.policy.rules.properties import Properties, States

Degree = Callable[["Properties", "States"], float]


def rising(number: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, evenly between; a step where the two are one."""
    if number >= high:
        return 1.0
    return 0.0 if number <= low else (number - low) / (high - low)


def falling(number: float, low: float, high: float) -> float:
    """1 up to `low`, 0 from `high` on, evenly between; a step where the two are one."""
    if number <= low:
        return 1.0
    return 0.0 if number >= high else (high - number) / (high - low)


def triangle(number: float, low: float, peak: float, high: float) -> float:
    """1 at the peak, falling evenly to 0 at both sides."""
    return min(rising(number, low, peak), falling(number, peak, high))


def trapezoid(number: float, feet: tuple[float, float], shoulders: tuple[float, float]) -> float:
    """1 between the shoulders, falling evenly to 0 at the feet."""
    return min(rising(number, feet[0], shoulders[0]), falling(number, shoulders[1], feet[1]))


def degree_of(condition: Condition, softness: float) -> Degree:
    """The closure that says how true a condition is."""
    match condition:
        case Not(part):
            inner = degree_of(part, softness)
            return lambda message, states: 1.0 - inner(message, states)
        case All(parts):
            every = [degree_of(part, softness) for part in parts]
            return lambda message, states: min([each(message, states) for each in every])
        case Any(parts):
            some = [degree_of(part, softness) for part in parts]
            return lambda message, states: max([each(message, states) for each in some])
        case leaf:
            return _leaf(leaf, softness)


def _leaf(leaf: Leaf, softness: float) -> Degree:
    match leaf:
        case Compare(of, comparator, value) if not isinstance(value, str):
            return _soft(cast("Number", reader(of)), comparator, value, softness)
        case OneOf(of, values) if of.kind == "number":
            read = cast("Number", reader(of))
            some = [_soft(read, "==", float(value), softness) for value in values]
            return lambda message, states: max([each(message, states) for each in some])
        case _:
            test = test_of(leaf)
            return lambda message, states: 1.0 if test(message, states) else 0.0


def _soft(read: Number, comparator: Comparator, value: float, softness: float) -> Degree:
    width = abs(value) * softness
    if width == 0:
        test = _step(comparator, value)
        return lambda message, states: 1.0 if test(read(message, states)) else 0.0
    low, high = value - width, value + width
    match comparator:
        case ">" | ">=":
            return lambda message, states: rising(read(message, states), low, high)
        case "<" | "<=":
            return lambda message, states: falling(read(message, states), low, high)
        case "==":
            return lambda message, states: triangle(read(message, states), low, value, high)
        case "!=":
            return lambda message, states: 1 - triangle(read(message, states), low, value, high)


def _step(comparator: Comparator, value: float) -> Callable[[float], bool]:
    return {
        ">": lambda number: number > value,
        ">=": lambda number: number >= value,
        "<": lambda number: number < value,
        "<=": lambda number: number <= value,
        "==": lambda number: number == value,
        "!=": lambda number: number != value,
    }[comparator]


def support(condition: Condition, softness: float) -> Condition:
    """A plain condition that is true wherever the fuzzy one is above 0."""
    return _widened(condition, softness)


def core(condition: Condition, softness: float) -> Condition:
    """A plain condition that is true only where the fuzzy one is 1."""
    return _widened(condition, -softness)


def _widened(condition: Condition, softness: float) -> Condition:
    match condition:
        case Not(part):
            return Not(_widened(part, -softness))
        case All(parts):
            return All(tuple(_widened(part, softness) for part in parts))
        case Any(parts):
            return Any(tuple(_widened(part, softness) for part in parts))
        case Compare(of, comparator, value) if not isinstance(value, str):
            return _widened_edge(Compare(of, comparator, value), value, softness)
        case OneOf(of, values) if of.kind == "number":
            edges = [Compare(of, "==", float(value)) for value in values]
            return Any(tuple(_widened_edge(edge, float(edge.value), softness) for edge in edges))
        case leaf:
            return leaf


def _widened_edge(edge: Compare, value: float, softness: float) -> Condition:
    width = abs(value) * softness
    if width == 0:
        return edge
    match edge.comparator:
        case ">" | ">=":
            return Compare(edge.property, ">=", value - width)
        case "<" | "<=":
            return Compare(edge.property, "<=", value + width)
        case "==":
            return _within(edge.property, value, width) if width > 0 else edge
        case "!=":
            return edge if width > 0 else Not(_inside(edge.property, value, -width))


def _within(of: Property, value: float, width: float) -> Condition:
    return All((Compare(of, ">=", value - width), Compare(of, "<=", value + width)))


def _inside(of: Property, value: float, width: float) -> Condition:
    return All((Compare(of, ">", value - width), Compare(of, "<", value + width)))
