"""Which messages no rule can tell apart: they have the same key, and get the same answer.

A number is told by the span it lies in, between all the places where a condition begins or ends;
a text by the words, the parts and the presence that some condition asks for. What no condition asks
for is no part of a key. So a few answers serve many messages, however many rules there are.

With `fuzzy` an edge is soft, so that numbers are told as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from ebbmq.limits import KIB
from ebbmq.model import NO_HEADERS
from ebbmq.policy.rules.conditions import KEYWORDS, leaves_of
from ebbmq.policy.rules.normal import INF, Part, Present, Spans, Words, above, normal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ebbmq.model import Headers, Message
    from ebbmq.policy.rules.conditions import Condition, Property
    from ebbmq.policy.rules.properties import Properties, States

#: Texts whose parts were looked for are remembered up to so many, of at most this length.
_TEXTS_MAX: Final = 8_192
_TEXT_CHARS_MAX: Final = 1_024
#: Up to so many headers with more than words asked of them are looked at one by one.
_TABLES_MAX: Final = 6
_NOTHING: Final = 0


class Alike:
    """Tells messages by what the conditions of some rules ask for."""

    def __init__(self, conditions: Iterable[Condition], *, exact: bool = False) -> None:
        """Collects what is asked for.

        Args:
            conditions: all of them.
            exact: whether every difference between two numbers counts.
        """
        texts: dict[Property, _Asked] = {}
        bounds: dict[Property, set[float]] = {}
        for leaf in leaves_of(conditions):
            if leaf.property.kind == "number":
                edges = bounds.setdefault(leaf.property, set())
                told = normal(leaf)
                if isinstance(told, Spans):
                    edges.update(low for low, _ in told.spans)
                    edges.update(above(high) for _, high in told.spans if high != INF)
            else:
                told = normal(leaf)
                assert isinstance(told, Words | Part | Present)
                texts.setdefault(leaf.property, _Asked()).note(told)
        # Headers with their values, of which nothing else is asked; and what is asked of others.
        words: set[tuple[str, str]] = set()
        self._headers: Final[dict[str, _Texts]] = {}
        self._texts: Final[dict[str, _Texts]] = {}
        self._numbers: Final[dict[str, list[float] | None]] = {}
        for of, asked in texts.items():
            keyword = KEYWORDS[of.keyword]
            if keyword.needs != "header":
                self._texts[keyword.attribute] = asked.texts()
            elif asked.parts or asked.present:
                self._headers[str(of.argument)] = asked.texts()
            else:
                words.update((str(of.argument), word) for word in asked.words)
        self._words: Final = frozenset(words)
        for of, edges in bounds.items():
            keyword = KEYWORDS[of.keyword]
            # What is asked of devices is the same for all messages at a moment.
            if not keyword.needs:
                self._numbers[keyword.attribute] = None if exact else sorted(edges)
        #: Of devices, beside what placement itself asks of them.
        self._measures: Final = sorted(
            {KEYWORDS[of.keyword].attribute for of in bounds if KEYWORDS[of.keyword].needs}
        )
        in_kib = self._numbers.get("size")
        self._sizes: Final = None if in_kib is None else [edge * KIB for edge in in_kib]

    def asks(self, attribute: str) -> bool:
        """Whether some condition asks for a property, by the name of its field."""
        return attribute in self._texts or attribute in self._numbers

    def devices(self, states: States) -> dict[str, tuple[object, ...]]:
        """What the conditions and placement see of the devices; measures change all the time."""
        return {
            name: (
                state.status,
                state.durable,
                state.usable,
                state.tier,
                state.failure_domain,
                *(getattr(state, measure) for measure in self._measures),
            )
            for name, state in states.items()
        }

    def key(self, message: Properties) -> tuple[object, ...]:
        """What the conditions see of a message."""
        told = [self.text(name, getattr(message, name)) for name in self._texts]
        told += [self.number(name, getattr(message, name)) for name in self._numbers]
        return (*told, *[column[0] for column in self._header_columns([message.headers])])

    def text(self, attribute: str, value: str | None) -> object:
        """What they see of a text, by the name of its field."""
        asked = self._texts.get(attribute)
        return _NOTHING if asked is None else asked[value]

    def number(self, attribute: str, value: float) -> float:
        """What they see of a number, by the name of its field."""
        if attribute not in self._numbers:
            return _NOTHING
        edges = self._numbers[attribute]
        return value if edges is None else bisect_right(edges, value)

    def sizes(self, sizes: Sequence[int]) -> list[int]:
        """What they see of bodies of so many bytes."""
        if "size" not in self._numbers:
            return [_NOTHING] * len(sizes)
        edges = self._sizes
        if edges is None:
            return list(sizes)
        if sizes.count(sizes[0]) == len(sizes):
            return [bisect_right(edges, float(sizes[0]))] * len(sizes)
        return [bisect_right(edges, float(size)) for size in sizes]

    def keys(self, messages: Sequence[Message], sizes: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        """What they see of each of some messages of these bytes: what it says of itself.

        For all that is published, hence column by column. What the messages of a batch share
        (queue, destination, client, confirm level) is told by `text`.
        """
        columns: list[list[Any]] = [
            [m.replicas for m in messages],
            [m.durable for m in messages],
        ]
        if "size" in self._numbers:
            columns.append(self.sizes(sizes))
        if "importance" in self._numbers:
            columns.append([m.importance for m in messages])
        texts = self._texts
        if (types := texts.get("type")) is not None:
            columns.append([types[m.type] for m in messages])
        if (names := texts.get("routing_key")) is not None:
            columns.append([names[m.key] for m in messages])
        if (stores := texts.get("store")) is not None:
            columns.append([stores[m.store] for m in messages])
        columns += self._header_columns([m.headers or NO_HEADERS for m in messages])
        return zip(*columns, strict=True)

    def _header_columns(self, several: list[Headers]) -> list[list[object]]:
        words, tables = self._words, self._headers
        columns: list[list[object]] = []
        if words:
            columns.append([words.intersection(headers.items()) for headers in several])
        if len(tables) <= _TABLES_MAX:
            for name, table in tables.items():
                columns.append([table[headers.get(name)] for headers in several])
        else:
            columns.append([self._in_tables(headers) for headers in several])
        return columns

    def _in_tables(self, headers: Headers) -> tuple[object, ...]:
        tables = self._headers
        names = sorted(headers.keys() & tables.keys())
        told = [(name, tables[name][headers[name]]) for name in names]
        return tuple([each for each in told if each[1]])


class _Asked:
    """What is asked of one text."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.parts: dict[str, None] = {}
        self.present = False

    def note(self, leaf: Words | Part | Present) -> None:
        match leaf:
            case Words(_, words):
                for word in words:
                    self.words.setdefault(word, len(self.words) + 1)
            case Part(_, part):
                self.parts[part] = None
            case Present():
                self.present = True

    def texts(self) -> _Texts:
        return _Texts(self.words, tuple(self.parts), present=self.present)


class _Texts(dict[str | None, object]):
    """What conditions see of a text, found when it is first asked for; 0 is nothing of interest."""

    def __init__(self, words: dict[str, int], parts: tuple[str, ...], *, present: bool) -> None:
        super().__init__({None: _NOTHING})
        if not parts:
            self.update(words)
        self._words = words
        self._parts = parts
        self._other = len(words) + 1 if present else _NOTHING

    def __missing__(self, text: str | None) -> object:
        if not self._parts or text is None:
            return self._other
        held = tuple(number for number, part in enumerate(self._parts) if part in text)
        word = self._words.get(text, self._other)
        seen = (word, held) if held else word
        if len(text) <= _TEXT_CHARS_MAX:
            if len(self) >= _TEXTS_MAX:
                self.clear()
                self[None] = _NOTHING
            self[text] = seen
        return seen
