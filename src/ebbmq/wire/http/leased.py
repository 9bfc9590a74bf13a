"""The JSON of many leases at once, where they have most fields in common.

What all of them share is encoded once and makes a pattern, which each lease fills with its own. The
bytes are those that `forms.LeasesForm` would give.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pybase64 import b64encode

from ebbmq.wire.http.codec import encode
from ebbmq.wire.http.forms import LeaseForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_BEGIN: Final = b'{"leases":['
_END: Final = b"]}"
_BODY: Final = "body_b64"
#: Fields that are whole numbers: they fill their place in a pattern as they are.
_WHOLE: Final = ("attempt", "importance", "band", "enqueued_at_ms", "access_count")
_FIELDS: Final = tuple(name for name in LeaseForm.__struct_fields__ if name != "text")


def encode_alike(
    shared: Mapping[str, Any],
    own: Mapping[str, Sequence[Any]],
    spelled: Mapping[str, str],
    numbers: Sequence[int],
    bodies: Iterable[bytes],
) -> bytes:
    """Leases whose bodies travel as base64, with commas between them.

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
        if name == _BODY:
            text = '"%b"'
            columns.append(map(b64encode, bodies))
        elif name in spelled:
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
    pattern = f"{{{','.join(fields)}}}".encode()
    # One pattern for all of them: formatting it is one call, and nothing is joined after it.
    values = chain.from_iterable(zip(*columns, strict=True))
    return b",".join([pattern] * len(numbers)) % tuple(values)


def encode_all(forms: Iterable[LeaseForm]) -> bytes:
    """Any leases, with commas between them."""
    return b",".join(map(encode, forms))


def answer(parts: Iterable[bytes], following: int | None = None) -> bytes:
    """The answer that is made of these, of which none is empty."""
    end = _END if following is None else b'],"next":%d}' % following
    return b"%b%b%b" % (_BEGIN, b",".join(parts), end)


def _texts(values: Sequence[Any]) -> list[bytes]:
    """Each of these values as JSON; none of them has a comma."""
    return encode(values)[1:-1].split(b",")
