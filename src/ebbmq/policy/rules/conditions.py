"""What a rule can ask: the keywords, and the condition of a rule as plain data.

A condition is a tree of frozen structs that can be compared, hashed, sent as JSON and turned into
whatever evaluates it: closures here, Spark columns in the pipeline. What its parts mean:

1. A number is always there: a message without accesses has the access rate 0, and a device nobody
   knows has status -100, endless latency and nothing free.
2. A text may be absent. Nothing is equal to an absent text, and it contains nothing.
3. `!=` is the opposite of `==`, so it is true of an absent text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Comparator = Literal["==", "!=", "<", "<=", ">", ">="]
Kind = Literal["number", "text"]


class Keyword(NamedTuple):
    """A word of the language that stands for a property of a message or a device."""

    name: str
    kind: Kind
    meaning: str
    #: The attribute of `Properties`, or of `DeviceState` where a device must be named.
    attribute: str
    needs: Literal["", "header", "device"] = ""
    choices: tuple[str, ...] = ()
    units: tuple[tuple[str, float], ...] = ()


_SIZE_UNITS: Final = (("B", 1 / 1024), ("KiB", 1.0), ("MiB", 1024.0), ("GiB", 1048576.0))
_AGE_UNITS: Final = (
    ("ms", 1 / 86_400_000),
    ("s", 1 / 86_400),
    ("m", 1 / 1_440),
    ("h", 1 / 24),
    ("d", 1.0),
)

KEYWORDS: Final = {
    keyword.name: keyword
    for keyword in (
        Keyword("SIZE", "number", "bytes of the body, in KiB", "size", units=_SIZE_UNITS),
        Keyword("TYPE", "text", "what the body is, such as BYTE or TEXT", "type"),
        Keyword("HEADER", "text", "the value of a header", "headers", "header"),
        Keyword(
            "DESTINATION",
            "text",
            "where it was published",
            "destination",
            choices=("QUEUE", "TOPIC"),
        ),
        Keyword("CLIENT_ID", "text", "the authenticated client that published it", "client_id"),
        Keyword("IMPORTANCE", "number", "1 to 10, as published", "importance"),
        Keyword("QUEUE", "text", "the name of its queue", "queue"),
        Keyword("ROUTING_KEY", "text", "its key", "routing_key"),
        Keyword("PRODUCER", "text", "who published it, as CLIENT_ID", "producer"),
        Keyword("CONSUMER", "text", "the client that last leased from its queue", "consumer"),
        Keyword(
            "QOS",
            "text",
            "the confirm level asked for",
            "qos",
            choices=("memory", "written", "synced"),
        ),
        Keyword("STORE", "text", "the device its producer asked for", "store"),
        Keyword("DECAY_SCORE", "number", "how faded it is", "decay_score"),
        Keyword("AGE", "number", "time since it was published, in days", "age", units=_AGE_UNITS),
        Keyword("ACCESS_RATE", "number", "reads a day", "access_rate"),
        Keyword("STATUS", "number", "0 (good) to -100", "status", "device"),
        Keyword("LATENCY_MS", "number", "of a write to a device", "latency_ms", "device"),
        Keyword("FREE_PERCENT", "number", "of a device's space", "free_percent", "device"),
    )
}


class Property(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A keyword, with the header or device it is asked of where it needs one."""

    keyword: str
    argument: str | None = None

    @property
    def kind(self) -> Kind:
        """Whether its values are numbers or texts."""
        return KEYWORDS[self.keyword].kind


class Always(msgspec.Struct, frozen=True, tag="always", cache_hash=True):
    """True of every message."""


class Compare(msgspec.Struct, frozen=True, tag="compare", cache_hash=True):
    """A property against a value; texts know only == and !=."""

    property: Property
    comparator: Comparator
    value: float | str


class OneOf(msgspec.Struct, frozen=True, tag="one_of", cache_hash=True):
    """A property is equal to one of the values, which are of its kind."""

    property: Property
    values: tuple[float | str, ...]


class IsPresent(msgspec.Struct, frozen=True, tag="is_present", cache_hash=True):
    """A text is there, be it empty."""

    property: Property


class Contains(msgspec.Struct, frozen=True, tag="contains", cache_hash=True):
    """A text has this part, upper and lower case told apart."""

    property: Property
    part: str


class Not(msgspec.Struct, frozen=True, tag="not", cache_hash=True):
    """The opposite."""

    part: Condition


class All(msgspec.Struct, frozen=True, tag="all", cache_hash=True):
    """Every part is true."""

    parts: tuple[Condition, ...]


class Any(msgspec.Struct, frozen=True, tag="any", cache_hash=True):
    """At least one part is true."""

    parts: tuple[Condition, ...]


Asking = Compare | OneOf | IsPresent | Contains
Leaf = Always | Asking
Condition = Leaf | Not | All | Any

ALWAYS: Final = Always()


def depth(condition: Condition) -> int:
    """How deep the tree is; a leaf has 1."""
    deepest, waiting = 0, [(condition, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        match node:
            case Not(part):
                waiting.append((part, level + 1))
            case All(parts) | Any(parts):
                waiting += [(part, level + 1) for part in parts]
            case _:
                pass
    return deepest


def leaves_of(conditions: Iterable[Condition]) -> Iterator[Asking]:
    """Every leaf that asks for a property."""
    waiting = list(conditions)
    while waiting:
        match waiting.pop():
            case Not(part):
                waiting.append(part)
            case All(parts) | Any(parts):
                waiting += parts
            case Always():
                pass
            case leaf:
                yield leaf


def properties_of(condition: Condition) -> set[Property]:
    """Every property a condition asks for."""
    return {leaf.property for leaf in leaves_of([condition])}
