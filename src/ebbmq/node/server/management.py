"""Everything over HTTP but the message verbs, as one application: Litestar routes, this refuses."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes

from litestar import Litestar, Request, get, post
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from ebbmq import limits
from ebbmq.errors import EbbError, InvalidRequest, InvalidSpec, UnknownPath, UnknownQueue
from ebbmq.node.server.answers import INTERNAL
from ebbmq.node.server.asking import (
    Answer,
    Asking,
    NoFields,
    Turns,
    answer,
    body_of,
    caller_of,
    fault,
    name_of,
    query_of,
)
from ebbmq.node.server.devices import Devices
from ebbmq.node.server.health import Health
from ebbmq.node.server.manual import Manual
from ebbmq.node.server.metrics import Metrics
from ebbmq.node.server.page import StartPage
from ebbmq.node.server.plans import Plans
from ebbmq.node.server.queues import Queues
from ebbmq.node.server.rules import Rules
from ebbmq.node.server.topics import Topics
from ebbmq.wire.http import managing

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.access import Caller
    from ebbmq.node.server.answers import Application, Header, Receive, Scope, Send
    from ebbmq.node.server.context import Context

#: Two of the longest names with every byte percent-encoded, and some more. Litestar remembers a
#: thousand paths, whoever sent them: none of them may be large.
_PATH_BYTES_MAX: Final = 8 * limits.KIB

_logger = logging.getLogger("ebbmq.server")


def build(context: Context) -> Application:
    """The application that answers every path that is not one of a message verb."""
    litestar = Litestar(
        handlers(context),
        exception_handlers={
            UnknownQueue: partial(_refuse_unknown, context),
            EbbError: partial(_refuse, context),
            HTTPException: partial(_refuse_http, context),
            Exception: partial(_fail, context),
        },
        openapi_config=None,
        logging_config=None,
        request_max_body_size=context.config.http.request_bytes_max,
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if len(scope["raw_path"]) > _PATH_BYTES_MAX:
            raise UnknownPath(
                f"a path of {len(scope['raw_path'])} bytes: nothing is there",
                f"names have at most {limits.NAME_CHARS_MAX} characters; see /docs for every path",
            )
        # Litestar splits the decoded path; a name with a slash must stay one part.
        parts = scope["raw_path"].split(b"/")
        path = "/".join(quote(unquote_to_bytes(part), safe="") for part in parts)
        # Litestar answers OPTIONS itself, and names the methods of one handler only. It knows no
        # HEAD, which probes send: that is GET, whose body the connection leaves out.
        method = {"OPTIONS": "options", "HEAD": "GET"}.get(scope["method"], scope["method"])
        await litestar({**scope, "path": path, "method": method}, receive, send)  # type: ignore[arg-type]

    return application


def handlers(context: Context) -> list[HTTPRouteHandler]:
    """Every endpoint there is."""
    parts = (Queues, Topics, Rules, Devices, Plans, Store, Health, Metrics, StartPage, Manual)
    return [route for part in parts for route in part(context).routes()]


class Store:
    """Endpoints about the whole store: where a message is, and a copy of everything."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._searches = Turns("searches for a message", 2)
        self._backups = Turns("backups", 1)

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [
            get("/v1/messages/{id:str}")(self.why),
            post("/v1/backup", status_code=200)(self.backup),
        ]

    async def why(self, request: Asking) -> Answer:
        """Where a message is, or why it left; one of a queue the caller may not see is unknown."""
        query_of(request, NoFields)
        caller = caller_of(self._context, request)
        identity = name_of(request, "id")
        with self._searches:
            found = await self._context.broker.why(identity)
        if not self._context.access.may_see(caller, found["queue"]):
            found = {
                "id": identity,
                "queue": None,
                "state": "unknown",
                "reason": "never issued here",
            }
        elif "headers" in found and not self._may_read(caller, found):
            found |= {"type": None, "headers": None}
        return answer(found)

    def _may_read(self, caller: Caller, found: dict[str, Any]) -> bool:
        """Whether a caller may know what only those know who may lease a message."""
        access, queue = self._context.access, found["queue"]
        if not access.holds(caller, "consume", queue):
            return False
        return not found["privileged"] or access.consumer(caller, queue).privileged

    async def backup(self, request: Asking) -> Answer:
        """Copy the store to a directory of the server's machine, while it is in use."""
        self._context.access.check(caller_of(self._context, request), "manage", None)
        query_of(request, NoFields)
        target = (await body_of(request, managing.BackupForm)).target
        if not target.startswith("/"):
            raise InvalidSpec(
                f"target is {target!r:.200}", "give a full path on the server's machine"
            )
        with self._backups:
            return answer(managing.BackedUpForm(await self._context.broker.backup(target)))


Failed = Request[Any, Any, Any]


def _refuse_unknown(context: Context, request: Failed, error: UnknownQueue) -> Answer:
    return _refuse(context, request, context.access.told(caller_of(context, request), error))


def _refuse(context: Context, _request: Failed, error: EbbError, *headers: Header) -> Answer:
    context.note_refusal(error)
    return fault(error, *headers)


def _refuse_http(context: Context, request: Failed, error: HTTPException) -> Answer:
    what = f"{request.method.upper()} {request.scope['path']}"[:200]
    if isinstance(error, MethodNotAllowedException):
        methods = (error.headers or {}).get("allow", "").split(", ")
        allow = ", ".join(sorted(method for method in methods if method != "OPTIONS"))
        refused: EbbError = UnknownPath(
            f"{what}: not with this method", f"use {allow}", code="method_not_allowed"
        )
        return _refuse(context, request, refused, (b"allow", allow.encode()))
    if isinstance(error, NotFoundException):
        refused = UnknownPath(f"{what}: nothing is there", "see /docs for every path")
    else:
        refused = InvalidRequest(str(error.detail)[:200], "see /docs for what is taken")
    return _refuse(context, request, refused)


def _fail(context: Context, request: Failed, error: Exception) -> Answer:
    _logger.error(
        "request_failed method=%s path=%s", request.method, request.scope["path"], exc_info=error
    )
    return _refuse(context, request, INTERNAL)
