"""Normal forms as closures, fewer and flatter than those of the conditions they came from.

Equal forms are one closure, so that whoever holds many can tell which of them are the same.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from typing import TYPE_CHECKING, cast

from ebbmq.policy.rules.compile import Number, Test, Text, joined, reader
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.normal import And, Constant, Normal, Or, Part, Present, Spans, Words

if TYPE_CHECKING:
    from ebbmq.policy.rules.conditions import Property
    from ebbmq.policy.rules.properties import Properties, States


class Closures:
    """Makes the closure of a form once."""

    def __init__(self) -> None:
        self._made: dict[Normal, Test] = {}

    def of(self, form: Normal) -> Test:
        """The closure that says whether a form is true of a message."""
        made = self._made.get(form)
        if made is None:
            made = self._made[form] = self._make(form)
        return made

    def _make(self, form: Normal) -> Test:
        match form:
            case And(parts) | Or(parts):
                inner = [self.of(part) for part in parts]
                return joined(inner, conjunction=isinstance(form, And))
            case Constant(true):
                return lambda message, states: true
            case Spans(of, spans):
                return _spans(of, spans)
            case leaf:
                return _text(leaf)


def _spans(of: Property, spans: tuple[tuple[float, float], ...]) -> Test:
    low, high = spans[0]
    if KEYWORDS[of.keyword].needs or spans[1:]:
        read, lows = cast("Number", reader(of)), [low for low, _ in spans]

        def test(message: Properties, states: States) -> bool:
            number = read(message, states)
            at = bisect_right(lows, number)
            return at > 0 and number <= spans[at - 1][1]

        return test
    get = operator.attrgetter(KEYWORDS[of.keyword].attribute)
    return lambda message, states: low <= get(message) <= high


def _text(leaf: Words | Part | Present) -> Test:
    negated = leaf.negated
    if isinstance(leaf, Words) and not leaf.words[1:]:
        return _word(leaf.property, leaf.words[0], negated)
    read = cast("Text", reader(leaf.property))
    match leaf:
        case Words(_, words):
            among = frozenset(words)
            return lambda message, states: (read(message, states) in among) != negated
        case Present():
            return lambda message, states: (read(message, states) is None) == negated
        case Part(_, part):

            def test(message: Properties, states: States) -> bool:
                text = read(message, states)
                return (text is not None and part in text) != negated

            return test


def _word(of: Property, word: str, negated: bool) -> Test:
    if of.argument is not None:
        name = of.argument
        if negated:
            return lambda message, states: message.headers.get(name) != word
        return lambda message, states: message.headers.get(name) == word
    get = operator.attrgetter(KEYWORDS[of.keyword].attribute)
    if negated:
        return lambda message, states: cast("bool", get(message) != word)
    return lambda message, states: cast("bool", get(message) == word)
