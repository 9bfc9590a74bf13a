"""Tables that find, for a message, what stands under the keys it has.

What stands there is a posting; what is in a posting is the business of who builds it. The tables
say which postings a message meets, in a time that depends on the message and on how many
properties are asked for, not on how many rules there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.keys import Key, PartKey, PresentKey, SpanKey, WordKey
from ebbmq.policy.rules.normal import INF, above
from ebbmq.policy.rules.properties import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ebbmq.policy.rules.conditions import Property
    from ebbmq.policy.rules.properties import Properties, States

    Get = Callable[[Any], Any]

E = TypeVar("E")  # an entry
P = TypeVar("P")  # a posting: what is made of the entries under one key

_Texts = tuple[dict[str, P], "_More[P] | None"]

#: A part of a text is looked up by a piece of it, of one of these lengths.
_PIECES: Final = (8, 4, 2, 1)
#: Searching for one part costs about as much as looking up pieces at so many places.
_CHARS_PER_SEARCH: Final = 256


P_co = TypeVar("P_co", covariant=True)


class Making(Protocol[E, P_co]):
    """What entries and postings are to whoever builds the tables."""

    def posting(self, entries: Sequence[E]) -> P_co:
        """What a message meets under a key."""
        ...

    def is_certain(self, entry: E) -> bool:
        """Whether an entry counts for every message that meets it."""
        ...

    def condensed(self, entries: Sequence[E]) -> list[E]:
        """As few certain entries as say the same as these, which are certain."""
        ...


class Tables(Generic[P]):
    """Postings by key."""

    def __init__(
        self, entries: Mapping[Key, Sequence[E]], always: Sequence[E], making: Making[E, P]
    ) -> None:
        by_property: defaultdict[Property, dict[Key, Sequence[E]]] = defaultdict(dict)
        for key, these in entries.items():
            by_property[key.property][key] = these
        self._always: Final = [making.posting(always)] if always else []
        self._headers: Final[dict[str, _Texts[P]]] = {}
        self._texts: Final[list[tuple[Get, dict[str, P], _More[P] | None]]] = []
        self._numbers: Final[list[tuple[Get, list[float], list[tuple[P, ...]]]]] = []
        self._devices: Final[list[tuple[str, Get, _Numbers[P]]]] = []
        for of, asked in by_property.items():
            keyword = KEYWORDS[of.keyword]
            get = attrgetter(keyword.attribute)
            if keyword.needs == "header":
                self._headers[str(of.argument)] = _texts(asked, making)
            elif keyword.needs == "device":
                self._devices.append((str(of.argument), get, _Numbers(asked, making)))
            elif keyword.kind == "number":
                numbers = _Numbers(asked, making)
                self._numbers.append((get, numbers.starts, numbers.leaves))
            else:
                self._texts.append((get, *_texts(asked, making)))

    def fixed(self, states: States) -> list[P]:
        """The postings every message meets while devices are in these states."""
        found = self._always.copy()
        for name, get, numbers in self._devices:
            found += numbers.met(get(states.get(name, UNKNOWN)))
        return found

    def met(self, message: Properties, fixed: list[P]) -> list[P]:
        """The fixed postings, and those under the keys a message has, none of them twice."""
        found = fixed.copy()
        for get, words, more in self._texts:
            text = get(message)
            if text in words:
                found.append(words[text])
            if more is not None and text is not None:
                more.collect(text, found)
        headers, tables = message.headers, self._headers
        for name in headers if len(headers) < len(tables) else tables:
            if name in tables and name in headers:
                words, more = tables[name]
                text = headers[name]
                if text in words:
                    found.append(words[text])
                if more is not None:
                    more.collect(text, found)
        for get, starts, leaves in self._numbers:
            found += leaves[bisect_right(starts, get(message))]
        return found


def _texts(entries: Mapping[Key, Sequence[E]], making: Making[E, P]) -> _Texts[P]:
    """What is asked of one text."""
    words: dict[str, P] = {}
    present: list[P] = []
    parts: dict[str, P] = {}
    for key, these in entries.items():
        posting = making.posting(these)
        match key:
            case WordKey(_, word):
                words[word] = posting
            case PartKey(_, part):
                parts[part] = posting
            case _:
                assert isinstance(key, PresentKey)
                present.append(posting)
    return words, _More(present, parts) if present or parts else None


class _More(Generic[P]):
    """What is asked of a text besides whole words.

    Which of many parts it contains is found by looking up its pieces instead of trying each part.
    """

    def __init__(self, present: list[P], parts: Mapping[str, P]) -> None:
        self._present = present
        self._parts = list(parts.items())
        common: Counter[str] = Counter()
        for part in parts:
            common.update(set(_pieces(part)))
        tables: defaultdict[int, defaultdict[str, list[tuple[str, P]]]]
        tables = defaultdict(lambda: defaultdict(list))
        for part, posting in parts.items():
            rarest = min(_pieces(part), key=lambda piece: common[piece])
            tables[len(rarest)][rarest].append((part, posting))
        self._tables = [(length, dict(table)) for length, table in tables.items()]
        self._only = None if present or len(parts) > 1 else self._parts[0]

    def collect(self, text: str, found: list[P]) -> None:
        if self._only is not None:
            part, posting = self._only
            if part in text:
                found.append(posting)
            return
        found += self._present
        searches = len(self._parts) * (1 + len(text) // _CHARS_PER_SEARCH)
        if searches <= len(text) * len(self._tables):
            found += [posting for part, posting in self._parts if part in text]
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
    """The spans a number lies in: a segment tree over the places where spans begin and end.

    A span stands in as few nodes as cover it. What is certain in the nodes above a leaf is added
    up in the leaf; the rest is shared by all leaves below its node.
    """

    def __init__(self, entries: Mapping[Key, Sequence[E]], making: Making[E, P]) -> None:
        spans = [(key, these) for key, these in entries.items() if isinstance(key, SpanKey)]
        starts = {key.low for key, _ in spans}
        starts |= {above(key.high) for key, _ in spans if key.high != INF}
        self.starts = sorted(starts)
        leaves = 1 << len(self.starts).bit_length()
        nodes: defaultdict[int, list[E]] = defaultdict(list)
        for key, these in spans:
            first = leaves + bisect_right(self.starts, key.low)
            last = leaves + bisect_right(self.starts, key.high)
            for node in _covering(first, last):
                nodes[node] += these
        # Leaf i holds the numbers from start i - 1 on; leaf 0 those before the first start.
        self.leaves: list[tuple[P, ...]] = _paths(nodes, leaves, making)[: len(starts) + 1]

    def met(self, number: float) -> tuple[P, ...]:
        return self.leaves[bisect_right(self.starts, number)]


def _covering(first: int, last: int) -> Iterator[int]:
    """The fewest nodes whose leaves are those from first to last."""
    while first <= last:
        if first & 1:
            yield first
            first += 1
        if not last & 1:
            yield last
            last -= 1
        first >>= 1
        last >>= 1


def _paths(
    nodes: Mapping[int, Sequence[E]], leaves: int, making: Making[E, P]
) -> list[tuple[P, ...]]:
    """For every leaf what stands in it and above it."""
    certain: list[list[E]] = [[] for _ in range(2 * leaves)]
    tested: list[tuple[P, ...]] = [()] * (2 * leaves)
    for node in range(1, 2 * leaves):
        these = nodes.get(node, ())
        own = [entry for entry in these if making.is_certain(entry)]
        above_it = certain[node >> 1]
        certain[node] = making.condensed([*above_it, *own]) if own else above_it
        others = [entry for entry in these if not making.is_certain(entry)]
        more = (making.posting(others),) if others else ()
        tested[node] = tested[node >> 1] + more
    return [
        ((making.posting(sure), *path) if sure else path)
        for sure, path in zip(certain[leaves:], tested[leaves:], strict=True)
    ]
