"""How true rules are of a message: of one rule by walking its condition, of all at once by columns.

A degree is a whole number of thousandths, so that sums are exact and a rule that is not soft has 0
or all of them. AND is the least of its parts, OR the greatest, NOT what is missing to the whole. An
edge is soft with `softness`: `SIZE > 10` with 0.2 is 0 up to 8, whole from 12 on, and rises evenly
between. Texts are true or not.

Theory of operation of `Evaluator`. NOT is pushed down to the leaves. Equal leaves are one, and so
are equal ANDs and ORs; each has a place in one vector of degrees. A message's texts are looked up
in dictionaries, which say the leaves to set; its numbers are compared with all edges in one step;
then ANDs and ORs follow, those of the same height in one step.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from ebbmq.policy.rules import conditions as c
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.properties import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from ebbmq.policy.rules.conditions import Condition, Property
    from ebbmq.policy.rules.properties import Properties, States

    Degrees = npt.NDArray[np.int16]

WHOLE: Final = 1_000
#: In the place of an endless latency: endless less endless is no number.
_ENDLESS: Final = 1e300
_HOLDS: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


# One rule


def degree_of(  # noqa: PLR0911  # one for each kind of condition
    condition: Condition, message: Properties, states: States, softness: float = 0.0
) -> int:
    """How true a condition is of a message, in thousandths."""
    match condition:
        case c.Not(part):
            return WHOLE - degree_of(part, message, states, softness)
        case c.All(parts):
            return min(degree_of(part, message, states, softness) for part in parts)
        case c.Any(parts):
            return max(degree_of(part, message, states, softness) for part in parts)
        case c.Always():
            return WHOLE
        case c.Compare(of, "!=", value):
            return WHOLE - degree_of(c.Compare(of, "==", value), message, states, softness)
        case c.OneOf(of, values):
            same = (c.Compare(of, "==", value) for value in values)
            return max(degree_of(each, message, states, softness) for each in same)
        case c.Compare(of, comparator, value) if not isinstance(value, str):
            number = cast("float", _read(of, message, states))
            return round(WHOLE * _soft(comparator, number, value, abs(value) * softness))
        case leaf:
            return WHOLE * _holds(leaf, cast("str | None", _read(leaf.property, message, states)))


def _holds(leaf: c.Asking, text: str | None) -> bool:
    match leaf:
        case c.Compare(value=value):
            return text == value
        case c.Contains(part=part):
            return text is not None and part in text
        case _:
            return text is not None


def _read(of: Property, message: Properties, states: States) -> float | str | None:
    keyword = KEYWORDS[of.keyword]
    if keyword.needs == "header":
        return message.headers.get(str(of.argument))
    source = states.get(str(of.argument), UNKNOWN) if keyword.needs else message
    return cast("float | str | None", getattr(source, keyword.attribute))


def _soft(comparator: str, number: float, value: float, width: float) -> float:
    if width == 0:
        return float(_HOLDS[comparator](number, value))
    low, high = value - width, value + width
    if comparator == "==":
        return min(rising(number, low, value), falling(number, value, high))
    return (rising if comparator in {">", ">="} else falling)(number, low, high)


def rising(number: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, evenly between."""
    return min(1.0, max(0.0, (min(number, _ENDLESS) - low) / (high - low)))


def falling(number: float, low: float, high: float) -> float:
    """1 up to `low`, 0 from `high` on, evenly between."""
    return min(1.0, max(0.0, (high - min(number, _ENDLESS)) / (high - low)))


# All rules


class _Node(NamedTuple):
    """An AND or an OR of other nodes; without parts a leaf, which may be negated."""

    leaf: Condition | None
    negated: bool = False
    conjunction: bool = True
    parts: tuple[_Node, ...] = ()

    @property
    def height(self) -> int:
        return 1 + max(part.height for part in self.parts) if self.parts else 0


def _node(condition: Condition, *, negated: bool = False) -> _Node:
    """The condition, or its opposite, with NOT at the leaves only."""
    match condition:
        case c.Not(part):
            return _node(part, negated=not negated)
        case c.All(parts) | c.Any(parts):
            conjunction = isinstance(condition, c.All) != negated
            inner = dict.fromkeys(_node(part, negated=negated) for part in parts)
            return _Node(None, conjunction=conjunction, parts=tuple(inner))
        case c.Compare(of, "!=", value):
            return _node(c.Compare(of, "==", value), negated=not negated)
        case c.OneOf(of, values):
            same = tuple(c.Compare(of, "==", value) for value in values)
            return _node(c.Any(same), negated=negated)
        case leaf:
            return _Node(leaf, negated)


class _Texts:
    """What is asked of one text: the leaves that are true of a word, a part, or of any text."""

    def __init__(self) -> None:
        self.words: defaultdict[str, list[int]] = defaultdict(list)
        self.parts: defaultdict[str, list[int]] = defaultdict(list)
        self.present: list[int] = []

    def note(self, leaf: Condition, number: int) -> None:
        match leaf:
            case c.Compare(value=value):
                self.words[str(value)].append(number)
            case c.Contains(part=part):
                self.parts[part].append(number)
            case _:
                self.present.append(number)

    def met(self, text: str, hits: list[int]) -> None:
        """Add the leaves that are true of a text."""
        if text in self.words:
            hits += self.words[text]
        hits += self.present
        for part, numbers in self.parts.items():
            if part in text:
                hits += numbers


class Evaluator:
    """Finds how true all of some conditions are of a message."""

    def __init__(self, conditions: Iterable[Condition], softness: float = 0.0) -> None:
        roots = [_node(condition) for condition in conditions]
        self._places: dict[_Node, int] = {}
        by_height: defaultdict[tuple[int, bool], dict[_Node, None]] = defaultdict(dict)
        waiting = list(dict.fromkeys(roots))
        while waiting:
            node = waiting.pop()
            known = by_height[node.height, node.conjunction]
            if node not in known:
                known[node] = None
                waiting += node.parts
        leaves = by_height.pop((0, True), {})
        self._note_leaves(list(leaves), softness)
        self._steps = [self._step(list(by_height[key]), key[1]) for key in sorted(by_height)]
        #: The degrees of a message of which no leaf is true.
        self._none = np.array([WHOLE * node.negated for node in self._places], dtype=np.int16)
        self._hit = WHOLE - self._none
        for node, place in self._places.items():
            if isinstance(node.leaf, c.Always):
                self._none[place] = self._hit[place]
        self._roots = np.array([self._places[root] for root in roots], dtype=np.intp)

    def _note_leaves(self, leaves: list[_Node], softness: float) -> None:
        """Give each leaf its place: edges that are sharp, those that are soft, then texts."""
        numbers: list[tuple[_Node, Property, str, float]] = []
        others: list[_Node] = []
        for node in leaves:
            match node.leaf:
                case c.Compare(of, comparator, value) if not isinstance(value, str):
                    numbers.append((node, of, comparator, value))
                case _:
                    others.append(node)
        sharp = [each for each in numbers if not each[3] * softness]
        soft = [each for each in numbers if each[3] * softness]
        for node in (*[each[0] for each in (*sharp, *soft)], *others):
            self._places[node] = len(self._places)
        asked = list(dict.fromkeys(of for _, of, _, _ in numbers))
        self._numbers = [(of, KEYWORDS[of.keyword]) for of in asked]
        place = {of: number for number, of in enumerate(asked)}
        self._sharp_of = np.array([place[of] for _, of, _, _ in sharp], dtype=np.intp)
        self._soft_of = np.array([place[of] for _, of, _, _ in soft], dtype=np.intp)
        spans = np.array([_span(how, value) for *_, how, value in sharp]).reshape(-1, 2)
        self._low, self._high = spans.T.copy()
        edges = [_edges(how, value, softness) for *_, how, value in soft]
        self._edges = np.array(edges).reshape(-1, 4).T.copy()
        self._headers: defaultdict[str, _Texts] = defaultdict(_Texts)
        texts: defaultdict[str, _Texts] = defaultdict(_Texts)
        for node in others:
            if isinstance(node.leaf, c.Compare | c.Contains | c.IsPresent):
                of = node.leaf.property
                table = self._headers if of.argument is not None else texts
                table[of.argument or KEYWORDS[of.keyword].attribute].note(
                    node.leaf, self._places[node]
                )
        self._texts = [(operator.attrgetter(name), table) for name, table in texts.items()]

    def _step(
        self, nodes: list[_Node], conjunction: bool
    ) -> tuple[Any, npt.NDArray[np.intp], npt.NDArray[np.intp], slice]:
        """ANDs or ORs of one height: what to take of the vector, and where it goes."""
        first = len(self._places)
        for node in nodes:
            self._places[node] = len(self._places)
        parts = [self._places[part] for node in nodes for part in node.parts]
        starts = np.cumsum([0, *(len(node.parts) for node in nodes[:-1])])
        reduce = (np.minimum if conjunction else np.maximum).reduceat
        return reduce, np.array(parts, dtype=np.intp), starts, slice(first, len(self._places))

    def fixed(self, states: States) -> list[float | None]:
        """The numbers that rules ask of devices in these states, in the places of all numbers."""
        return [
            min(getattr(states.get(str(of.argument), UNKNOWN), keyword.attribute), _ENDLESS)
            if keyword.needs
            else None
            for of, keyword in self._numbers
        ]

    def degrees(self, message: Properties, fixed: Sequence[float | None]) -> Degrees:
        """How true each condition is of a message, in the order of the conditions."""
        found = self._none.copy()
        sharp = len(self._sharp_of)
        if fixed:
            numbers = np.array(
                [
                    getattr(message, keyword.attribute) if value is None else value
                    for value, (_, keyword) in zip(fixed, self._numbers, strict=True)
                ]
            )
            if sharp:
                seen = numbers.take(self._sharp_of)
                within = (seen >= self._low) & (seen <= self._high)
                np.copyto(found[:sharp], self._hit[:sharp], where=within)
            if len(self._soft_of):
                self._add_soft(found[sharp : sharp + len(self._soft_of)], numbers)
        hits = self._hits(message)
        if hits:
            found[hits] = self._hit[hits]
        for reduce, parts, starts, place in self._steps:
            reduce(found.take(parts), starts, out=found[place])
        return found.take(self._roots)

    def _add_soft(self, into: Degrees, numbers: npt.NDArray[np.float64]) -> None:
        low, rise, high, fall = self._edges
        seen = numbers.take(self._soft_of)
        degrees = np.minimum((seen - low) / rise, (high - seen) / fall).clip(0.0, 1.0)
        whole = np.rint(degrees * WHOLE).astype(np.int16)
        into[:] = np.where(into, WHOLE - whole, whole)

    def _hits(self, message: Properties) -> list[int]:
        """The leaves about texts that are true of a message."""
        hits: list[int] = []
        for get, texts in self._texts:
            text = get(message)
            if text is not None:
                texts.met(text, hits)
        headers, asked = message.headers, self._headers
        for name in headers if len(headers) < len(asked) else asked:
            if name in asked and name in headers:
                asked[name].met(headers[name], hits)
        return hits


def _span(comparator: str, value: float) -> tuple[float, float]:
    """The numbers for which a comparison holds, both ends included."""
    match comparator:
        case "==":
            return value, value
        case "<" | "<=":
            return -math.inf, math.nextafter(value, -math.inf) if comparator == "<" else value
        case _:
            return math.nextafter(value, math.inf) if comparator == ">" else value, math.inf


def _edges(comparator: str, value: float, softness: float) -> tuple[float, float, float, float]:
    """Where a soft edge begins to rise, how wide it does, where it has fallen, how wide it does."""
    width = abs(value) * softness
    low, high = value - width, value + width
    match comparator:
        case "==":
            return low, value - low, high, high - value
        case "<" | "<=":
            return -math.inf, 1.0, high, high - low
        case _:
            return low, high - low, math.inf, 1.0
