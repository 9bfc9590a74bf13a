"""A management request as its endpoint sees it: who asks, for what, with which body and query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from litestar import Request, Response

from ebbmq import choices
from ebbmq.errors import EbbError, InvalidMessage, InvalidRequest, InvalidSpec, Overloaded
from ebbmq.node.server.answers import refusal
from ebbmq.wire.http import codec, routes

if TYPE_CHECKING:
    from types import TracebackType

    from ebbmq.node.server.access import Caller
    from ebbmq.node.server.answers import Header
    from ebbmq.node.server.context import Context

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Asking = Request[Any, Any, Any]
Answer = Response[bytes]
JSON: Final = "application/json"


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """A body or a query that says nothing."""


def caller_of(context: Context, request: Asking) -> Caller:
    """Who sends a request.

    Raises:
        Unauthenticated: nobody the server knows.
    """
    headers = request.scope["headers"]
    given = next((value for name, value in headers if name == b"authorization"), None)
    client = request.scope["client"]
    return context.access.caller(given, client[0] if client else None, headers)


def name_of(request: Asking, parameter: str) -> str:
    """A name in the path; it may hold any character, a slash is sent as %2F.

    Raises:
        InvalidRequest: it is not UTF-8.
    """
    try:
        return unquote_to_bytes(request.path_params[parameter]).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            "a name in the path is not UTF-8", "encode names as UTF-8, then with percent signs"
        ) from None


async def body_of(request: Asking, form: type[T]) -> T:
    """The body as a form; no body at all is an empty form.

    Raises:
        InvalidRequest: it is not JSON, or not of that form.
        InvalidSpec: a value is outside its limits.
    """
    try:
        return codec.decoder(form)(await request.body())
    except InvalidMessage as error:
        raise InvalidSpec(error.detail, error.action) from None


def query_of(request: Asking, form: type[S]) -> S:
    """The query as a form: known parameters only, each once.

    Raises:
        InvalidRequest: it is not of that form.
    """
    known = tuple(field.name for field in msgspec.structs.fields(form))
    given = routes.parameters(request.scope["query_string"], known)
    for name, value in given.items():
        # Words that stand for nothing are no values here: what is not asked for is left out.
        if value.lower() in {"", "null"}:
            raise InvalidRequest(f"parameter {name} is {value!r}", "leave it out")
    try:
        return msgspec.convert(given, form, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        action = choices.hint(form, name, "see /openapi.json for what it takes")
        raise InvalidRequest(f"parameter {name}: {what}", action) from None


def answer(value: object, status: int = 200) -> Answer:
    """An answer as JSON."""
    return Response(codec.encode(value), status_code=status, media_type=JSON)


def fault(error: EbbError, *headers: Header) -> Answer:
    """An error as clients read it, in the form of the message verbs."""
    status, told, body = refusal(error)
    names = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in (*told, *headers)
        if name not in {b"content-type", b"content-length"}
    }
    return Response(body, status_code=status, media_type=JSON, headers=names)


class Turns:
    """A bound on slow calls of one kind that are under way at once; more are refused."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._free = most

    def __enter__(self) -> None:
        if not self._free:
            raise Overloaded(
                f"as many {self._what} as the server allows at once are under way",
                "try again when one of them has ended",
            )
        self._free -= 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._free += 1
