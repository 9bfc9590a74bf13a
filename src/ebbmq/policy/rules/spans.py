"""Fuzzy conditions that are soft spans of one number, and what they ask for besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.policy.rules.conditions import ALWAYS, KEYWORDS, All, Compare

if TYPE_CHECKING:
    from ebbmq.policy.rules.conditions import Condition, Property

_UP: Final = (">", ">=")
_DOWN: Final = ("<", "<=")


class Span(NamedTuple):
    """Rises between two numbers, falls between two others, and what must be true besides."""

    property: Property
    rises: tuple[float, float] | None
    falls: tuple[float, float] | None
    rest: Condition


def span_of(condition: Condition, softness: float) -> Span | None:
    """A condition as a soft span of one number, and a rest without numbers; None if it is none."""
    parts = condition.parts if isinstance(condition, All) else (condition,)
    edges: dict[str, tuple[float, float]] = {}
    found: Property | None = None
    rest: list[Condition] = []
    for part in parts:
        if not isinstance(part, Compare) or isinstance(part.value, str):
            rest.append(part)
            continue
        way = "up" if part.comparator in _UP else "down" if part.comparator in _DOWN else None
        width = abs(part.value) * softness
        if way is None or not width or way in edges or KEYWORDS[part.property.keyword].needs:
            return None
        if found not in {None, part.property}:
            return None
        found = part.property
        edges[way] = part.value - width, part.value + width
    if found is None:
        return None
    besides = ALWAYS if not rest else rest[0] if not rest[1:] else All(tuple(rest))
    return Span(found, edges.get("up"), edges.get("down"), besides)
