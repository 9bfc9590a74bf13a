"""Conditions in a form an index can use: no NOT but at the leaves, and numbers as spans.

Numbers are always there, so the opposite of a span is the numbers beside it, and everything that is
asked of one number within an AND or an OR is one leaf. `>` is `>=` of the next float, so that every
span includes both its ends.
"""

from __future__ import annotations

import math
from typing import Final, assert_never

import msgspec

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
    Property,
)

Span = tuple[float, float]
INF: Final = math.inf


class Constant(msgspec.Struct, frozen=True, tag=True):
    """True of every message, or of none."""

    true: bool


class Spans(msgspec.Struct, frozen=True, tag=True):
    """The number lies in one of these; they are in order and do not touch."""

    property: Property
    spans: tuple[Span, ...]


class Words(msgspec.Struct, frozen=True, tag=True):
    """The text is one of these; or, negated, is absent or another."""

    property: Property
    words: tuple[str, ...]
    negated: bool = False


class Part(msgspec.Struct, frozen=True, tag=True):
    """The text contains this; or, negated, is absent or does not."""

    property: Property
    part: str
    negated: bool = False


class Present(msgspec.Struct, frozen=True, tag=True):
    """The text is there; or, negated, is not."""

    property: Property
    negated: bool = False


class And(msgspec.Struct, frozen=True, tag=True):
    """Two or more parts, none of them an And, at most one Spans of a property."""

    parts: tuple[Normal, ...]


class Or(msgspec.Struct, frozen=True, tag=True):
    """Two or more parts, none of them an Or, at most one Spans of a property."""

    parts: tuple[Normal, ...]


Normal = Constant | Spans | Words | Part | Present | And | Or

TRUE: Final = Constant(true=True)
FALSE: Final = Constant(true=False)
EVERY: Final[Span] = (-INF, INF)


def normal(condition: Condition, *, negated: bool = False) -> Normal:
    """The normal form of a condition, or of its opposite."""
    match condition:
        case Not(part):
            return normal(part, negated=not negated)
        case All(parts) | Any(parts):
            inner = [normal(part, negated=negated) for part in parts]
            return join(inner, conjunction=isinstance(condition, All) != negated)
        case leaf:
            return _leaf(leaf, negated)


def opposite(condition: Normal) -> Normal:
    """What is true where the condition is not."""
    match condition:
        case Constant(true):
            return FALSE if true else TRUE
        case Spans(of, spans):
            return spans_leaf(of, outside(spans))
        case And(parts) | Or(parts):
            return join([opposite(part) for part in parts], conjunction=isinstance(condition, Or))
        case leaf:
            return msgspec.structs.replace(leaf, negated=not leaf.negated)


def join(parts: list[Normal], *, conjunction: bool) -> Normal:
    """AND or OR of parts that are normal already."""
    kind = And if conjunction else Or
    spans: dict[Property, tuple[Span, ...]] = {}
    rest: dict[Normal, None] = {}
    for outer in parts:
        for part in outer.parts if isinstance(outer, kind) else (outer,):
            if isinstance(part, Spans):
                before = spans.get(part.property)
                spans[part.property] = (
                    part.spans
                    if before is None
                    else (intersection if conjunction else union)(before, part.spans)
                )
            else:
                rest[part] = None
    found = [*(spans_leaf(of, these) for of, these in spans.items()), *rest]
    decided, neutral = (FALSE, TRUE) if conjunction else (TRUE, FALSE)
    if decided in found:
        return decided
    found = [part for part in found if part != neutral]
    return kind(tuple(found)) if found[1:] else found[0] if found else neutral


def spans_leaf(of: Property, spans: tuple[Span, ...]) -> Normal:
    """The leaf of these spans."""
    if not spans:
        return FALSE
    return TRUE if spans == (EVERY,) else Spans(of, spans)


def _leaf(leaf: Leaf, negated: bool) -> Normal:
    match leaf:
        case Always():
            return FALSE if negated else TRUE
        case Compare(of, comparator, value):
            return _comparison(of, comparator, value, negated)
        case OneOf(of, values):
            return _one_of(of, values, negated)
        case IsPresent(of):
            return Present(of, negated)
        case Contains(of, part):
            return Part(of, part, negated) if part else Present(of, negated)
        case _:
            assert_never(leaf)


def _comparison(of: Property, comparator: str, value: float | str, negated: bool) -> Normal:
    if isinstance(value, str):
        return Words(of, (value,), (comparator == "!=") != negated)
    spans = _compared(comparator, value)
    return spans_leaf(of, outside(spans) if negated else spans)


def _one_of(of: Property, values: tuple[float | str, ...], negated: bool) -> Normal:
    if of.kind == "text":
        return Words(of, tuple(str(value) for value in values), negated)
    spans: tuple[Span, ...] = ()
    for value in values:
        spans = union(spans, ((float(value), float(value)),))
    return spans_leaf(of, outside(spans) if negated else spans)


def _compared(comparator: str, value: float) -> tuple[Span, ...]:
    match comparator:
        case "==":
            return ((value, value),)
        case "!=":
            return outside(((value, value),))
        case "<":
            return ((-INF, below(value)),)
        case "<=":
            return ((-INF, value),)
        case ">":
            return ((above(value), INF),)
        case _:
            return ((value, INF),)


def above(value: float) -> float:
    """The next number."""
    return math.nextafter(value, INF)


def below(value: float) -> float:
    """The number before."""
    return math.nextafter(value, -INF)


def outside(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """All other numbers."""
    found: list[Span] = []
    start = -INF
    for low, high in spans:
        if low > start:
            found.append((start, below(low)))
        if high == INF:
            return tuple(found)
        start = above(high)
    return (*found, (start, INF))


def union(first: tuple[Span, ...], second: tuple[Span, ...]) -> tuple[Span, ...]:
    """The numbers in either."""
    found: list[Span] = []
    for low, high in sorted((*first, *second)):
        if found and low <= above(found[-1][1]):
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def intersection(first: tuple[Span, ...], second: tuple[Span, ...]) -> tuple[Span, ...]:
    """The numbers in both."""
    return tuple(
        (max(a, c), min(b, d)) for a, b in first for c, d in second if max(a, c) <= min(b, d)
    )
