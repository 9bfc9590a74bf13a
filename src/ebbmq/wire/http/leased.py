"""The JSON of many leases at once, where they have most fields in common.

What all of them share is encoded once and makes a pattern, which each lease fills with its own. The
bytes are those that `forms.LeasesForm` would give.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from ebbmq.model import Kept
from ebbmq.wire.http.codec import encode
from ebbmq.wire.http.forms import LeaseForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_BEGIN: Final = b'{"leases":['
_END: Final = b"]}"
_BODY: Final = "body_b64"
#: Fields that are whole numbers: they fill their place in a pattern as they are.
_WHOLE: Final = ("attempt", "importance", "band", "enqueued_at_ms")
_FIELDS: Final = tuple(
    name
    for name in LeaseForm.__struct_fields__
    if name not in {_BODY, "text", *Kept.__struct_fields__}
)


def encode_alike(
    shared: Mapping[str, Any],
    own: Mapping[str, Sequence[Any]],
    spelled: Mapping[str, str],
    numbers: Sequence[int],
    bodies: Iterable[bytes],
) -> list[bytes]:
    """The parts of leases whose bodies travel as base64, each followed by a comma.

    Args:
        shared: the fields that are the same for all, by name.
        own: those of which each has its own value.
        spelled: those that are a text with the lease's number in it: how to format that.
        numbers: the number of each lease.
        bodies: the body of each.
    """
    fields: list[str] = []
    columns: list[Iterable[Any]] = []
    for name in _FIELDS:
        if name in spelled:
            text = f'"{spelled[name]}"'
            columns.append(numbers)
        elif name in own:
            is_whole = name in _WHOLE
            text = "%d" if is_whole else "%b"
            columns.append(own[name] if is_whole else _texts(own[name]))
        else:
            value = dict(shared[name]) if name == "headers" else shared[name]
            text = encode(value).decode().replace("%", "%%")
        fields.append(f'"{name}":{text}')
    pattern = f'{{{",".join(fields)},"{_BODY}":'.encode()
    heads = map(pattern.__mod__, zip(*columns, strict=True))
    return [part for triple in zip(heads, map(encode, bodies), repeat(b"},")) for part in triple]


def encode_all(forms: Iterable[LeaseForm]) -> list[bytes]:
    """The parts of any leases, each followed by a comma."""
    return [part for form in forms for part in (encode(form), b",")]


def joined(parts: list[bytes]) -> bytes:
    """The answer that these parts make."""
    if parts:
        parts[-1] = parts[-1][:-1]
    return b"".join((_BEGIN, *parts, _END))


def _texts(values: Sequence[Any]) -> list[bytes]:
    """Each of these values as JSON; none of them has a comma."""
    return encode(values)[1:-1].split(b",")
