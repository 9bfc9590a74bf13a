"""Numbers and strings as Python itself has them, which is how they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def is_int(value: object, low: int, high: int) -> bool:
    """Whether it is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object, low: float, high: float) -> bool:
    """Whether it is a number within bounds, which NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_text(value: object) -> bool:
    """Whether it is a string that has bytes: half of a surrogate pair has none."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_plain(values: Iterable[object]) -> bool:
    """Whether all of them are of Python's own types already."""
    return _PLAIN.issuperset(map(type, values))


def plain(value: Any) -> Any:
    """What a number or string of another library, or of an enumeration, stands for."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    return int(value) if isinstance(value, int) else value


def make_plain(noun: msgspec.Struct, fields: Iterable[str]) -> None:
    """Have fields of a noun hold what they stand for."""
    for field in fields:
        value = getattr(noun, field)
        if type(value) not in _PLAIN:
            msgspec.structs.force_setattr(noun, field, plain(value))
