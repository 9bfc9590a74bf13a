"""Which message verb a method and a path mean; every other path belongs to management."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from ebbmq import limits
from ebbmq.errors import InvalidRequest, UnknownPath

_VERBS: Final = {
    (b"queues", b"messages"): {"POST": "publish", "GET": "peek"},
    (b"queues", b"leases"): {"POST": "lease"},
    (b"queues", b"reads"): {"POST": "read"},
    (b"queues", b"acks"): {"POST": "ack"},
    (b"queues", b"retries"): {"POST": "retry"},
    (b"queues", b"releases"): {"POST": "release"},
    (b"queues", b"extensions"): {"POST": "extend"},
    (b"topics", b"messages"): {"POST": "publish_topic"},
}
_LEASES: Final = _VERBS[b"queues", b"leases"]
_READ_LEASE: Final = {"GET": "read_lease"}
#: "", v1, queues, {queue}, verb, and for a named lease its name.
_PARTS: Final = 5


class Route(NamedTuple):
    """A message verb on a queue or topic; `lease_name` only for a named lease read again."""

    verb: str
    name: str
    lease_name: str = ""


def parse(method: str, raw_path: bytes) -> Route | None:
    """The verb that is asked for; None if the path is not one of a message verb.

    Raises:
        UnknownPath: a part of it is empty; code `method_not_allowed`: the path is one of a verb,
            with another method.
        InvalidRequest: a name in the path is not UTF-8.
    """
    parts = raw_path.split(b"/")
    # For every path alike: a router that takes `/v1/queues/q/` for the queue itself would not do
    # so for its message verbs.
    if b"" in parts[1:] and raw_path != b"/":
        raise UnknownPath(
            f"{method:.20} {raw_path.decode('ascii', 'replace'):.200}: a part of the path is empty",
            "leave out slashes at the end and those that follow another; see /docs for every path",
        )
    methods = _methods(parts)
    if methods is None:
        return None
    if method not in methods:
        raise UnknownPath(
            f"{method:.20} is not for this path",
            f"use {' or '.join(methods)}",
            code="method_not_allowed",
        )
    lease_name = _text(parts[5]) if len(parts) > _PARTS else ""
    return Route(methods[method], _text(parts[3]), lease_name)


def allowed(raw_path: bytes) -> str:
    """The methods of a path of a message verb, as the header Allow names them."""
    return ", ".join(_methods(raw_path.split(b"/")) or ())


def _methods(parts: list[bytes]) -> dict[str, str] | None:
    if not _PARTS <= len(parts) <= _PARTS + 1 or parts[0] or parts[1] != b"v1":
        return None
    methods = _VERBS.get((parts[2], parts[4]))
    if len(parts) == _PARTS:
        return methods
    return _READ_LEASE if methods is _LEASES else None


def _text(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(
            "a name in the path is not UTF-8", "encode names as UTF-8, then with percent signs"
        ) from None


def parameters(query: bytes, known: tuple[str, ...]) -> dict[str, str]:
    """The parameters of a query string, each given once.

    Raises:
        InvalidRequest: a parameter is not known, given twice, or not UTF-8.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=16
        )
    except ValueError:
        raise InvalidRequest("the query string cannot be read", _known(known)) from None
    found = dict(pairs)
    for name in found:
        if name not in known:
            raise InvalidRequest(f"parameter {name!r:.80} is not known", _known(known))
    if len(found) != len(pairs):
        raise InvalidRequest("a parameter is given twice", "give each parameter once")
    return found


def _known(known: tuple[str, ...]) -> str:
    if known:
        return f"known parameters: {', '.join(known)}"
    return "this takes no parameters; fields go into the body"


def whole(found: dict[str, str], name: str, default: int | None = None) -> int | None:
    """A parameter as a whole number.

    Raises:
        InvalidRequest: it is not one.
    """
    text = found.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(limits.DURATION_MS_MAX)):
        raise InvalidRequest(f"parameter {name} is {text!r:.80}", "use a whole number")
    return int(text)


def flag(found: dict[str, str], name: str) -> bool:
    """A parameter as yes or no; no if it is not given.

    Raises:
        InvalidRequest: it is neither.
    """
    text = found.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(f"parameter {name} is {text!r:.80}", "use true or false")
    return text == "true"
