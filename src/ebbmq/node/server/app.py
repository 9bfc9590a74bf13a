"""The ASGI application: message verbs go to the bare handlers, everything else to management."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ebbmq.errors import EbbError, TooLarge, UnknownQueue
from ebbmq.node.server import management
from ebbmq.node.server.answers import INTERNAL, AsgiPeer
from ebbmq.node.server.messages import Messages, Request
from ebbmq.node.server.polling import Polling
from ebbmq.wire.http import routes

if TYPE_CHECKING:
    from ebbmq.node.server.answers import Peer, Receive, Scope, Send
    from ebbmq.node.server.context import Context

#: Where a scope says who gets the answer, if it knows better than ASGI does.
PEER: Final = "ebbmq.peer"

_logger = logging.getLogger("ebbmq.server")


class _Gone(Exception):  # noqa: N818  # nobody is told of it
    """The caller went away before its request was complete."""


class App:
    """One per process; it owns nothing but what it was given."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._management = management.build(context)
        self._polling = Polling(context)
        self._verbs = Messages(context).verbs | {
            "read_lease": self._polling.read_lease,
            "read": self._polling.read,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        peer: Peer = scope.get("extensions", {}).get(PEER) or AsgiPeer(send)
        try:
            route = routes.parse(scope["method"], scope["raw_path"])
            if route is None:
                await self._management(scope, receive, send)
            else:
                await self._answer(route, scope, receive, peer)
        except EbbError as error:
            self.context.note_refusal(error)
            if error.code == "method_not_allowed":
                allow = routes.allowed(scope["raw_path"]).encode()
                await peer.refuse(error, (b"allow", allow))
            else:
                await peer.refuse(error)
        except _Gone:
            return
        except Exception:
            _logger.exception("request_failed method=%s path=%s", scope["method"], scope["path"])
            self.context.note_refusal(INTERNAL)
            await peer.refuse(INTERNAL)

    async def _answer(
        self, route: routes.Route, scope: Scope, receive: Receive, peer: Peer
    ) -> None:
        headers = scope["headers"]
        client = scope["client"]
        caller = self.context.access.caller(
            next((value for name, value in headers if name == b"authorization"), None),
            client[0] if client else None,
            headers,
        )
        body = await self._body(receive)
        if scope["query_string"] and scope["method"] == "POST":
            routes.parameters(scope["query_string"], ())
        request = Request(route, caller, scope["query_string"], body)
        try:
            if route.verb == "lease":
                await self._polling.lease(request, receive, peer)
            else:
                await peer.answer(await self._verbs[route.verb](request))
        except UnknownQueue as error:
            raise self.context.access.told(caller, error) from None

    async def _body(self, receive: Receive) -> bytes:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Gone
        body: bytes = event.get("body", b"")
        if not event.get("more_body"):
            return body
        # A connection of `receiving` hands a body over in one piece; other servers do not.
        parts = [body]
        size = len(body)
        while event.get("more_body"):
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _Gone
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self.context.config.http.request_bytes_max:
                raise TooLarge(
                    f"the request has more than {self.context.config.http.request_bytes_max} bytes",
                    "publish in parts, or raise http.request_bytes_max",
                )
        return b"".join(parts)
