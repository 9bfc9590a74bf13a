"""The JSON of many leases at once, where they have most fields in common.

What all of them share is encoded once and makes a pattern, which each lease fills with its own. The
bytes are those that `forms.LeasesForm` would give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ebbmq.wire.http.codec import encode
from ebbmq.wire.http.forms import LeaseForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_BEGIN: Final = b'{"leases":['
_END: Final = b"]}"
_BODY: Final = "body_b64"
#: Fields of text that needs no escape; their quotes are part of the pattern.
_BARE: Final = ("id", "token")
_FIELDS: Final = tuple(name for name in LeaseForm.__struct_fields__ if name not in {_BODY, "text"})


def encode_alike(
    shared: Mapping[str, Any], own: Mapping[str, Sequence[Any]], bodies: Iterable[bytes]
) -> list[bytes]:
    """The parts of leases whose bodies travel as base64, each followed by a comma.

    Args:
        shared: the fields that are the same for all, by name.
        own: the others, one value per lease; `id` and `token` are among them.
        bodies: one per lease.
    """
    pattern = _pattern(shared, own)
    names = [name for name in _FIELDS if name in own]
    columns = [own[name] if name in _BARE else _texts(own[name]) for name in names]
    parts: list[bytes] = []
    for values, body in zip(zip(*columns, strict=True), bodies, strict=True):
        parts += ((pattern % values).encode(), encode(body), b"},")
    return parts


def encode_all(forms: Iterable[LeaseForm]) -> list[bytes]:
    """The parts of any leases, each followed by a comma."""
    return [part for form in forms for part in (encode(form), b",")]


def joined(parts: list[bytes]) -> bytes:
    """The answer that these parts make."""
    if parts:
        parts[-1] = parts[-1][:-1]
    return b"".join((_BEGIN, *parts, _END))


def _pattern(shared: Mapping[str, Any], own: Mapping[str, Sequence[Any]]) -> str:
    """A lease up to its body, with a place for each value of its own."""
    fields = []
    for name in _FIELDS:
        if name not in own:
            value = dict(shared[name]) if name == "headers" else shared[name]
            text = encode(value).decode().replace("%", "%%")
        else:
            text = '"%s"' if name in _BARE else "%s"
        fields.append(f'"{name}":{text}')
    return f'{{{",".join(fields)},"{_BODY}":'


def _texts(values: Sequence[Any]) -> list[str]:
    """Numbers, or null, as JSON."""
    return encode(values).decode()[1:-1].split(",")
