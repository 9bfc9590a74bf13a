"""Structs in Thrift's compact protocol, in which a Parquet file tells of itself; written only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_I16, _I32, _I64, _BINARY, _LIST, _STRUCT = 4, 5, 6, 8, 9, 12
#: From here on a number takes more than a byte.
_LONG: Final = 0x80
_SHORT: Final = [bytes((value,)) for value in range(_LONG)]
#: A list that is longer says so behind its header.
_LENGTH_MAX: Final = 14


class Value(NamedTuple):
    """A value of some kind, encoded."""

    kind: int
    packed: bytes


def i16(value: int) -> Value:
    """A number of 16 bits."""
    return Value(_I16, _zigzag(value))


def i32(value: int) -> Value:
    """A number of 32 bits."""
    return Value(_I32, _zigzag(value))


def i64(value: int) -> Value:
    """A number of 64 bits."""
    return Value(_I64, _zigzag(value))


def binary(value: bytes) -> Value:
    """Bytes."""
    return Value(_BINARY, varint(len(value)) + value)


def text(value: str) -> Value:
    """Text."""
    return binary(value.encode())


def several(values: Sequence[Value]) -> Value:
    """A list of values of one kind, of which there is at least one."""
    kind, count = values[0].kind, len(values)
    begin = bytes((min(count, _LENGTH_MAX + 1) << 4 | kind,))
    length = varint(count) if count > _LENGTH_MAX else b""
    return Value(_LIST, b"".join([begin, length, *[each.packed for each in values]]))


def struct(fields: dict[int, Value]) -> Value:
    """Fields by their numbers, which rise, by 15 at most."""
    out, last = [], 0
    for number, (kind, packed) in fields.items():
        out += [bytes(((number - last) << 4 | kind,)), packed]
        last = number
    out.append(b"\0")
    return Value(_STRUCT, b"".join(out))


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
    if value < _LONG:
        return _SHORT[value]
    out = bytearray()
    while value >= _LONG:
        out.append(value & 0x7F | _LONG)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)
