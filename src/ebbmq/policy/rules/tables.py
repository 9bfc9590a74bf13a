"""Tables that find, for a message, what stands under the keys it has.

What stands there is a posting; what is in a posting is the business of who builds it. The tables
say which postings a message meets, in a time that depends on the message and on how many
properties are asked for, not on how many rules there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from ebbmq.policy.rules.compile import reader
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.keys import Key, PartKey, PresentKey, SpanKey, WordKey
from ebbmq.policy.rules.normal import INF, above

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ebbmq.policy.rules.compile import Number
    from ebbmq.policy.rules.conditions import Property
    from ebbmq.policy.rules.properties import Properties, States

E = TypeVar("E")  # an entry
P = TypeVar("P")  # a posting: what is made of the entries under one key

#: A part of a text is looked up by a piece of it, of one of these lengths.
_PIECES: Final = (8, 4, 2, 1)
#: Searching for one part costs about as much as looking up pieces at so many places.
_CHARS_PER_SEARCH: Final = 256


class Tables(Generic[P]):
    """Postings by key."""

    def __init__(
        self, entries: Mapping[Key, Sequence[E]], always: Sequence[E], make: Callable[[list[E]], P]
    ) -> None:
        by_property: defaultdict[Property, dict[Key, Sequence[E]]] = defaultdict(dict)
        for key, these in entries.items():
            by_property[key.property][key] = these
        self._always: Final = [make(list(always))] if always else []
        self._headers: Final[dict[str, _Texts[P]]] = {}
        self._texts: Final[list[tuple[str, _Texts[P]]]] = []
        self._numbers: Final[list[tuple[Number, _Numbers[P]]]] = []
        for of, asked in by_property.items():
            keyword = KEYWORDS[of.keyword]
            if keyword.kind == "number":
                self._numbers.append((cast("Number", reader(of)), _Numbers(asked, make)))
            elif of.argument is not None:
                self._headers[of.argument] = _Texts(asked, make)
            else:
                self._texts.append((keyword.attribute, _Texts(asked, make)))

    def met(self, message: Properties, states: States) -> list[P]:
        """The postings under the keys a message has, none of them twice."""
        found = self._always.copy()
        for attribute, table in self._texts:
            text = getattr(message, attribute)
            if text is not None:
                table.collect(text, found)
        headers = message.headers
        if headers:
            tables = self._headers
            for name in headers if len(headers) < len(tables) else tables:
                if name in tables and name in headers:
                    tables[name].collect(headers[name], found)
        for read, numbers in self._numbers:
            numbers.collect(read(message, states), found)
        return found


class _Texts(Generic[P]):
    """What is asked of one text."""

    def __init__(self, entries: Mapping[Key, Sequence[E]], make: Callable[[list[E]], P]) -> None:
        self._words: dict[str, P] = {}
        self._present: list[P] = []
        parts: dict[str, P] = {}
        for key, these in entries.items():
            posting = make(list(these))
            match key:
                case WordKey(_, word):
                    self._words[word] = posting
                case PartKey(_, part):
                    parts[part] = posting
                case _:
                    assert isinstance(key, PresentKey)
                    self._present.append(posting)
        self._parts = _Parts(parts) if parts else None

    def collect(self, text: str, found: list[P]) -> None:
        posting = self._words.get(text)
        if posting is not None:
            found.append(posting)
        if self._present:
            found += self._present
        if self._parts is not None:
            self._parts.collect(text, found)


class _Parts(Generic[P]):
    """Which of many parts a text contains, by looking up its pieces instead of trying each."""

    def __init__(self, parts: Mapping[str, P]) -> None:
        self._all = list(parts.items())
        common: Counter[str] = Counter()
        for part in parts:
            common.update(set(_pieces(part)))
        tables: defaultdict[int, defaultdict[str, list[tuple[str, P]]]]
        tables = defaultdict(lambda: defaultdict(list))
        for part, posting in parts.items():
            rarest = min(_pieces(part), key=lambda piece: common[piece])
            tables[len(rarest)][rarest].append((part, posting))
        self._tables = [(length, dict(table)) for length, table in tables.items()]

    def collect(self, text: str, found: list[P]) -> None:
        searches = len(self._all) * (1 + len(text) // _CHARS_PER_SEARCH)
        if searches <= len(text) * len(self._tables):
            found += [posting for part, posting in self._all if part in text]
            return
        for length, table in self._tables:
            met = {
                piece
                for at in range(len(text) - length + 1)
                if (piece := text[at : at + length]) in table
            }
            for piece in met:
                found += [posting for part, posting in table[piece] if part in text]


def _pieces(part: str) -> list[str]:
    length = next(length for length in _PIECES if length <= len(part))
    return [part[at : at + length] for at in range(len(part) - length + 1)]


class _Numbers(Generic[P]):
    """The spans a number lies in: a segment tree over the places where spans begin and end."""

    def __init__(self, entries: Mapping[Key, Sequence[E]], make: Callable[[list[E]], P]) -> None:
        spans = {
            (key.low, key.high): these for key, these in entries.items() if isinstance(key, SpanKey)
        }
        starts = {low for low, _ in spans}
        starts |= {above(high) for _, high in spans if high != INF}
        self._starts = sorted(starts)
        # Leaf i holds the numbers from start i - 1 on; leaf 0 those before the first start.
        self._leaves = 1 << len(self._starts).bit_length()
        nodes: defaultdict[int, list[E]] = defaultdict(list)
        for (low, high), these in spans.items():
            first = self._leaves + bisect_right(self._starts, low)
            last = self._leaves + bisect_right(self._starts, high)
            while first <= last:
                if first & 1:
                    nodes[first] += these
                    first += 1
                if not last & 1:
                    nodes[last] += these
                    last -= 1
                first >>= 1
                last >>= 1
        self._nodes = {node: make(these) for node, these in nodes.items()}

    def collect(self, number: float, found: list[P]) -> None:
        node = self._leaves + bisect_right(self._starts, number)
        nodes = self._nodes
        while node:
            if node in nodes:
                found.append(nodes[node])
            node >>= 1
