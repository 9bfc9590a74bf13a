"""Which keys find a condition: if it is true of a message, the message has one of them.

A condition has a cover if every way of being true goes through something a table can be asked for:
a word, a part of a text, a header that is there, a span of numbers. `NOT a` has none, but then its
opposite has one: of every condition in normal form, at least one of the two has a cover, for a leaf
or its opposite has, an AND needs one covered part and an OR needs all.

Where there is a choice, a key few other conditions have is the better one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec

from ebbmq.policy.rules.normal import (
    INF,
    TRUE,
    And,
    Constant,
    Normal,
    Or,
    Part,
    Present,
    Spans,
    Words,
    join,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.policy.rules.conditions import Property


class WordKey(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The text is this."""

    property: Property
    word: str


class PartKey(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The text contains this."""

    property: Property
    part: str


class PresentKey(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The text is there."""

    property: Property


class SpanKey(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The number is in this span."""

    property: Property
    low: float
    high: float


Key = WordKey | PartKey | PresentKey | SpanKey


class Cover(NamedTuple):
    """Keys of which a message has one if the condition is true of it."""

    cost: float
    keys: tuple[Key, ...]
    #: What must be true of a message that has a key, for the condition to be.
    rest: Normal

    @property
    def exact(self) -> bool:
        """Having a key is all there is to the condition, and nobody has two of them."""
        return self.rest == TRUE


class Popularity:
    """How many conditions a message with a key would have to be tried against."""

    def __init__(self, conditions: Iterable[Normal]) -> None:
        self._texts: Counter[Key] = Counter()
        self._lows: defaultdict[Property, list[float]] = defaultdict(list)
        self._highs: defaultdict[Property, list[float]] = defaultdict(list)
        waiting = list(conditions)
        while waiting:
            match waiting.pop():
                case And(parts) | Or(parts):
                    waiting += parts
                case Constant():
                    pass
                case Spans(of, spans):
                    self._lows[of] += [low for low, _ in spans]
                    self._highs[of] += [high for _, high in spans]
                case leaf:
                    self._texts.update(keys_of(leaf))
        for bounds in (*self._lows.values(), *self._highs.values()):
            bounds.sort()

    def of(self, key: Key) -> float:
        """The number of conditions behind a key; of a span, where it begins."""
        if not isinstance(key, SpanKey):
            return self._texts[key]
        at = key.low if key.low != -INF else key.high
        lows, highs = self._lows[key.property], self._highs[key.property]
        return bisect_right(lows, at) - bisect_left(highs, at)


def keys_of(leaf: Spans | Words | Part | Present) -> tuple[Key, ...]:
    """The keys of a leaf, as if it were not negated."""
    match leaf:
        case Spans(of, spans):
            return tuple(SpanKey(of, low, high) for low, high in spans)
        case Words(of, words):
            return tuple(WordKey(of, word) for word in words)
        case Part(of, part):
            return (PartKey(of, part),)
        case Present(of):
            return (PresentKey(of),)
        case _:
            assert_never(leaf)


def cover(condition: Normal, popularity: Popularity) -> Cover | None:
    """The cheapest cover, or None where the condition can be true of a message with no key."""
    match condition:
        case Constant(true):
            return None if true else Cover(0, (), TRUE)
        case And(parts):
            return _cheapest(parts, popularity)
        case Or(parts):
            covers = [cover(part, popularity) for part in parts]
            keys = dict.fromkeys(key for found in covers if found for key in found.keys)
            cost = sum(found.cost for found in covers if found)
            return None if None in covers else Cover(cost, tuple(keys), condition)
        case leaf:
            if not isinstance(leaf, Spans) and leaf.negated:
                return None
            return Cover(sum(map(popularity.of, keys_of(leaf))), keys_of(leaf), TRUE)


def _cheapest(parts: tuple[Normal, ...], popularity: Popularity) -> Cover | None:
    best: tuple[Cover, Normal] | None = None
    for part in parts:
        found = cover(part, popularity)
        if found is not None and (best is None or found.cost < best[0].cost):
            best = found, part
    if best is None:
        return None
    others = [part for part in parts if part is not best[1]]
    return best[0]._replace(rest=join([*others, best[0].rest], conjunction=True))
