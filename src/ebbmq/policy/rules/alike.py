"""Which messages no rule can tell apart: they have the same key, and get the same answer.

A key has the values of all properties that some condition asks for. A number is told by the span it
lies in, between all the edges that conditions have; with `fuzzy` an edge is soft, so that numbers
are told as they are. So a few answers serve many messages, however many rules there are.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from ebbmq.limits import KIB
from ebbmq.model import NO_HEADERS
from ebbmq.policy.rules.conditions import KEYWORDS, Compare, OneOf, leaves_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ebbmq.model import Headers, Message
    from ebbmq.policy.rules.conditions import Condition
    from ebbmq.policy.rules.properties import Properties, States

_NOTHING: Final = 0
#: Up to so many headers each is asked for; of more, those that a message has.
_HEADERS_MAX: Final = 16


class Alike:
    """Tells messages by what the conditions of some rules ask for."""

    def __init__(self, conditions: Iterable[Condition], *, exact: bool = False) -> None:
        """Collects what is asked for.

        Args:
            conditions: all of them.
            exact: whether every difference between two numbers counts.
        """
        headers: dict[str, None] = {}
        texts: dict[str, None] = {}
        measures: set[str] = set()
        edges: dict[str, set[float]] = {}
        for leaf in leaves_of(conditions):
            keyword = KEYWORDS[leaf.property.keyword]
            if keyword.needs == "header":
                headers[str(leaf.property.argument)] = None
            elif keyword.needs == "device":
                measures.add(keyword.attribute)
            elif keyword.kind == "text":
                texts[keyword.attribute] = None
            elif isinstance(leaf, Compare | OneOf):
                values = leaf.values if isinstance(leaf, OneOf) else (leaf.value,)
                for value in map(float, values):
                    # Both sides of an edge, and the edge itself, are three spans.
                    edges.setdefault(keyword.attribute, set()).update(
                        (value, math.nextafter(value, math.inf))
                    )
        self._headers: Final = tuple(headers)
        self._texts: Final = texts
        self._numbers: Final = {
            name: None if exact else sorted(found) for name, found in edges.items()
        }
        #: Of devices, beside what placement itself asks of them.
        self._measures: Final = sorted(measures)

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
        seen = [getattr(message, name) for name in self._texts]
        seen += [self.number(name, getattr(message, name)) for name in self._numbers]
        return (*seen, *self._headers_of(message.headers))

    def text(self, attribute: str, value: str | None) -> object:
        """What they see of a text, by the name of its field."""
        return value if attribute in self._texts else _NOTHING

    def number(self, attribute: str, value: float) -> float:
        """What they see of a number, by the name of its field."""
        if attribute not in self._numbers:
            return _NOTHING
        edges = self._numbers[attribute]
        return value if edges is None else bisect_right(edges, value)

    def sizes(self, sizes: Sequence[int]) -> list[float]:
        """What they see of bodies of so many bytes."""
        seen = {size: self.number("size", size / KIB) for size in set(sizes)}
        return [seen[size] for size in sizes]

    def keys(self, messages: Sequence[Message], sizes: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        """What they see of each of some messages of these bytes: what it says of itself.

        What the messages of a batch share (queue, destination, client, confirm level) is told by
        `text`.
        """
        columns: list[list[Any]] = [
            [m.replicas for m in messages],
            [m.durable for m in messages],
            self.sizes(sizes),
        ]
        if "importance" in self._numbers:
            columns.append([m.importance for m in messages])
        if "type" in self._texts:
            columns.append([m.type for m in messages])
        if "routing_key" in self._texts:
            columns.append([m.key for m in messages])
        if "store" in self._texts:
            columns.append([m.store for m in messages])
        if self._headers:
            columns.append([self._headers_of(m.headers or NO_HEADERS) for m in messages])
        return zip(*columns, strict=True)

    def _headers_of(self, headers: Headers) -> tuple[object, ...]:
        asked = self._headers
        if len(asked) <= _HEADERS_MAX:
            return tuple(map(headers.get, asked))
        return tuple(sorted((name, headers[name]) for name in headers.keys() & set(asked)))
