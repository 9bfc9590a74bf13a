"""From JSON to the broker's nouns and back, one decode and one encode per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from ebbmq import choices, limits
from ebbmq.errors import ClientError, InvalidMessage, InvalidRequest
from ebbmq.model import NO_HEADERS, Kept, Lease, Message, Peeked
from ebbmq.wire.http.forms import (
    LeaseForm,
    MessageForm,
    PeekForm,
    RefusedForm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ebbmq.model import Headers

T = TypeVar("T")

TEXT: Final = "TEXT"
#: What msgspec says when a value has the right type but is out of bounds, or has no such choice.
_VALUE_PROBLEMS: Final = ("Expected `int` ", "Expected `float` ", "Expected `str` of", "Invalid ")
_LENGTH_PROBLEM: Final = "Expected `array` of length"
_NO_HEADERS: Final[dict[str, str]] = {}

encode = msgspec.json.Encoder().encode


def decoder(form: type[T]) -> Callable[[bytes], T]:
    """A function that reads a request's body as a form, or raises a ClientError that says where.

    No body at all is an empty form.
    """
    decode = msgspec.json.Decoder(form).decode

    def read(body: bytes) -> T:
        try:
            return decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _problem(error, form) from None

    return read


def _problem(error: Exception, form: Any) -> ClientError:
    if not isinstance(error, msgspec.ValidationError):
        what = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON"
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        return InvalidRequest(
            f"the request's body is {what}: {why[:200]}", "send one JSON object, encoded as UTF-8"
        )
    what, _, where = str(error).partition(" - at `$")
    where = where.rstrip("`").lstrip(".")
    detail = f"{where}: {what}"[:400] if where else what[:400]
    if what.startswith(_VALUE_PROBLEMS) and ", got" not in what:
        limits_of = "see /openapi.json for the limits of every field"
        return InvalidMessage(detail, choices.hint(form, where, limits_of))
    if what.startswith(_LENGTH_PROBLEM):
        return InvalidMessage(detail, "send it in parts")
    return InvalidRequest(detail, "see /openapi.json for the fields of this request")


class _Checked(Message, frozen=True, kw_only=True):
    """A message whose fields were checked while they were decoded."""

    @override
    def __post_init__(self) -> None:
        return


def messages_of(forms: Sequence[MessageForm]) -> list[Message]:
    """The messages of a publish.

    Raises:
        InvalidRequest: one of them has no body, or two.
        InvalidMessage: one of them is outside its limits.
    """
    return [
        (_Checked if len(body) <= limits.BODY_BYTES_MAX else Message)(
            body,
            importance=form.importance,
            ttl_ms=form.ttl_ms,
            decay_rate=form.decay_rate,
            delay_ms=form.delay_ms,
            headers=form.headers,
            id=form.id,
            key=form.key,
            replicas=form.replicas,
            store=form.store,
            durable=form.durable,
            type=form.type or ("BYTE" if form.text is UNSET else TEXT),
        )
        for form, body in zip(forms, _bodies(forms), strict=True)
    ]


def _bodies(forms: Sequence[MessageForm]) -> Iterator[bytes]:
    for number, form in enumerate(forms):
        text, body = form.text, form.body_b64
        if text is UNSET:
            if body is UNSET:
                raise InvalidRequest(
                    f"messages[{number}] has neither text nor body_b64",
                    'give the body as "text", or as "body_b64" in base64',
                )
            yield body
        else:
            if body is not UNSET:
                raise InvalidRequest(
                    f"messages[{number}] has both text and body_b64", "give the body once"
                )
            yield text.encode()


def form_of(message: Message) -> MessageForm:
    """A message as it travels to the server; its body stays exactly what it is."""
    text = as_text(message.body, message.type)
    return MessageForm(
        body_b64=message.body if text is UNSET else UNSET,
        text=text,
        importance=message.importance,
        ttl_ms=message.ttl_ms,
        decay_rate=message.decay_rate,
        delay_ms=message.delay_ms,
        headers=dict(message.headers) if message.headers is not None else None,
        id=message.id,
        key=message.key,
        replicas=message.replicas,
        store=message.store,
        durable=message.durable,
        type=None if message.type == "BYTE" or text is not UNSET else message.type,
    )


def as_text(body: bytes, kind: str) -> str | UnsetType:
    """A body as text if it was published as text and is UTF-8; UNSET: it travels as base64."""
    if kind != TEXT:
        return UNSET
    try:
        return body.decode()
    except UnicodeDecodeError:
        return UNSET


def lease_form(lease: Lease) -> LeaseForm:
    """A lease as it travels."""
    text = as_text(lease.body, lease.type)
    return LeaseForm(
        lease.id,
        _plain(lease.headers),
        lease.token,
        lease.attempt,
        lease.failures,
        lease.importance,
        lease.current_importance,
        lease.band,
        lease.ttl_ms,
        lease.decay_rate,
        lease.enqueued_at_ms,
        lease.deadline_ms,
        lease.latency_history,
        lease.type,
        lease.body if text is UNSET else UNSET,
        text,
        *msgspec.structs.astuple(lease.as_kept),
    )


def peek_form(peeked: Peeked) -> PeekForm:
    """A peeked message as it travels."""
    text = as_text(peeked.body, peeked.type)
    return PeekForm(
        peeked.id,
        _plain(peeked.headers),
        peeked.state,
        peeked.attempt,
        peeked.failures,
        peeked.importance,
        peeked.current_importance,
        peeked.band,
        peeked.ttl_ms,
        peeked.decay_rate,
        peeked.enqueued_at_ms,
        peeked.deadline_ms,
        peeked.latency_history,
        peeked.type,
        peeked.body if text is UNSET else UNSET,
        text,
        *msgspec.structs.astuple(peeked.as_kept),
    )


def _plain(headers: Headers) -> dict[str, str]:
    return _NO_HEADERS if headers is NO_HEADERS else dict(headers)


def lease_of(form: LeaseForm) -> Lease:
    """A lease as the embedded broker would have returned it."""
    return Lease(**_fields(form))


def peeked_of(form: PeekForm) -> Peeked:
    """A peeked message as the embedded broker would have returned it."""
    return Peeked(**_fields(form))


def _fields(form: LeaseForm | PeekForm) -> dict[str, Any]:
    fields = msgspec.structs.asdict(form)
    text, body = fields.pop("text"), fields.pop("body_b64")
    fields["body"] = body if text is UNSET else text.encode()
    fields["headers"] = fields["headers"] or NO_HEADERS
    kept = {name: fields.pop(name) for name in Kept.__struct_fields__}
    fields["kept"] = Kept(**kept)
    return fields


def refusals(tokens: Sequence[str]) -> list[RefusedForm]:
    """Tokens that hold no lease."""
    return [RefusedForm(token, "lease_lost") for token in tokens]
