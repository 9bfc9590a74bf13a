"""The endpoints of topics: declare them, and say which queues get what is published to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from litestar import delete, get, patch, put

from ebbmq.errors import UnknownQueue
from ebbmq.model import TopicSpec
from ebbmq.node.server.asking import (
    Answer,
    Asking,
    NoFields,
    answer,
    body_of,
    caller_of,
    name_of,
    query_of,
)
from ebbmq.wire.http import managing

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.access import Caller
    from ebbmq.node.server.context import Context

_TOPIC: Final = "/v1/topics/{topic:str}"
_SUBSCRIPTION: Final = f"{_TOPIC}/queues/{{queue:str}}"


class Topics:
    """Endpoints below /v1/topics."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [
            get("/v1/topics")(self.list_all),
            put(_TOPIC)(self.declare),
            patch(_TOPIC)(self.declare),
            get(_TOPIC)(self.show),
            delete(_TOPIC)(self.delete),
            put(_SUBSCRIPTION)(self.subscribe),
            delete(_SUBSCRIPTION, status_code=200)(self.unsubscribe),
        ]

    async def list_all(self, request: Asking) -> Answer:
        """All topics the caller may see."""
        query_of(request, NoFields)
        return answer({"topics": await self._views(caller_of(self._context, request))})

    async def declare(self, request: Asking) -> Answer:
        """Make a topic; one that is there must have the fields named, or takes them (PATCH)."""
        caller, topic = self._managed(request)
        query_of(request, NoFields)
        form = await body_of(request, managing.TopicForm)
        spec, fields = managing.spec_of(TopicSpec, topic, form)
        is_new = all(found["topic"] != topic for found in await self._broker.topics())
        change = request.method == "PATCH"
        await self._broker.declare_topic(spec, change=change, fields=fields)
        return answer(await self._view(caller, topic), 201 if is_new else 200)

    async def show(self, request: Asking) -> Answer:
        """One topic."""
        query_of(request, NoFields)
        caller = caller_of(self._context, request)
        return answer(await self._view(caller, name_of(request, "topic")))

    async def delete(self, request: Asking) -> None:
        """Remove a topic and its subscriptions."""
        query_of(request, NoFields)
        _, topic = self._managed(request)
        await self._broker.delete_topic(topic)

    async def subscribe(self, request: Asking) -> Answer:
        """Have a queue get what is published to a topic from now on."""
        caller, topic, queue = await self._subscription(request)
        await self._broker.subscribe(topic, queue)
        return answer(await self._view(caller, topic))

    async def unsubscribe(self, request: Asking) -> Answer:
        """Have a queue no longer get what is published to a topic."""
        caller, topic, queue = await self._subscription(request)
        await self._broker.unsubscribe(topic, queue)
        return answer(await self._view(caller, topic))

    async def _subscription(self, request: Asking) -> tuple[Caller, str, str]:
        """A queue gets messages by it: whoever decides that must manage both."""
        caller, topic = self._managed(request)
        queue = name_of(request, "queue")
        self._context.access.check(caller, "manage", queue)
        query_of(request, NoFields)
        await body_of(request, NoFields)
        return caller, topic, queue

    def _managed(self, request: Asking) -> tuple[Caller, str]:
        caller, topic = caller_of(self._context, request), name_of(request, "topic")
        self._context.access.check_topic(caller, "manage", topic)
        return caller, topic

    async def _view(self, caller: Caller, topic: str) -> dict[str, Any]:
        for view in await self._views(caller):
            if view["topic"] == topic:
                return view
        raise UnknownQueue(f"no topic {topic!r:.80}", "declare it first, or use another token")

    async def _views(self, caller: Caller) -> list[dict[str, Any]]:
        access = self._context.access
        return [
            {**found, "queues": [name for name in found["queues"] if access.may_see(caller, name)]}
            for found in await self._broker.topics()
            if access.may_see_topic(caller, found["topic"])
        ]
