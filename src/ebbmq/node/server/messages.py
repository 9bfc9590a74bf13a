"""The message verbs over HTTP: decode once, call the broker, encode once.

Publishing, settling and looking answer with what the broker returned. Leasing is in `polling`: who
is granted leases may be gone before they are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from ebbmq import limits
from ebbmq.errors import Draining, InvalidMessage, LeaseLost, Overloaded
from ebbmq.node.peeking import Between
from ebbmq.wire.http import codec, forms, routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ebbmq.node.server.access import Caller
    from ebbmq.node.server.context import Context

_publish: Final = codec.decoder(forms.PublishForm)
_ack: Final = codec.decoder(forms.AckForm)
_retry: Final = codec.decoder(forms.RetryForm)
_release: Final = codec.decoder(forms.ReleaseForm)
_extend: Final = codec.decoder(forms.ExtendForm)

_PEEK_COUNT: Final = 10
_STATES: Final[tuple[str, ...]] = get_args(forms.State)


class Request(NamedTuple):
    """A message verb that a caller asks for."""

    route: routes.Route
    caller: Caller
    query: bytes
    body: bytes


class Messages:
    """Answers message verbs with the JSON of what the broker did."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker
        self.verbs: dict[str, Callable[[Request], Awaitable[bytes]]] = {
            "publish": self._publish,
            "publish_topic": self._publish_topic,
            "peek": self._peek,
            "ack": self._ack,
            "retry": self._retry,
            "release": self._release,
            "extend": self._extend,
        }

    async def _publish(self, request: Request) -> bytes:
        queue = request.route.name
        self._context.access.check(request.caller, "publish", queue)
        check_intake(self._context)
        asked = _publish(request.body)
        receipts = await self._broker.publish(
            queue,
            codec.messages_of(asked.messages),
            asked.confirm,
            asked.timeout_ms,
            request.caller.name,
        )
        return codec.encode(forms.ReceiptsForm(receipts))

    async def _publish_topic(self, request: Request) -> bytes:
        access, topic = self._context.access, request.route.name
        access.check_topic(request.caller, "publish", topic)
        check_intake(self._context)
        asked = _publish(request.body)
        receipts = await self._broker.publish_topic(
            topic,
            codec.messages_of(asked.messages),
            asked.confirm,
            asked.timeout_ms,
            request.caller.name,
        )
        # Who may publish to a topic need not know every queue that is subscribed to it.
        seen = {q: each for q, each in receipts.items() if access.may_see(request.caller, q)}
        return codec.encode(forms.TopicReceiptsForm(seen))

    async def _peek(self, request: Request) -> bytes:
        queue = request.route.name
        self._context.access.check(request.caller, "consume", queue)
        check_memory(self._context)
        found = routes.parameters(request.query, ("count", "state", "counted", "after", "up_to"))
        count = routes.whole(found, "count", _PEEK_COUNT)
        state = found.get("state", "ready")
        if state not in _STATES:
            raise InvalidMessage(f"state is {state!r:.80}", f"use one of {', '.join(_STATES)}")
        between = Between(found.get("after"), found.get("up_to"))
        peeked = await self._broker.peek(
            queue,
            _PEEK_COUNT if count is None else count,
            state=state,  # type: ignore[arg-type]  # it is one of _STATES
            counted=routes.flag(found, "counted"),
            consumer=self._context.access.consumer(request.caller, queue),
            bytes_max=limits.ANSWER_BYTES_MAX,
            between=between if any(between) else None,
        )
        return codec.encode(forms.PeeksForm([codec.peek_form(each) for each in peeked]))

    async def _ack(self, request: Request) -> bytes:
        asked = _ack(self._settling(request))
        refused = await _refused(self._broker.ack(request.route.name, asked.tokens, asked.confirm))
        return codec.encode(forms.AckedForm(len(asked.tokens) - len(refused), _told(refused)))

    async def _retry(self, request: Request) -> bytes:
        asked = _retry(self._settling(request))
        refused = await _refused(
            self._broker.retry(request.route.name, asked.tokens, delay_ms=asked.delay_ms)
        )
        return codec.encode(forms.RetriedForm(len(asked.tokens) - len(refused), _told(refused)))

    async def _release(self, request: Request) -> bytes:
        asked = _release(self._settling(request))
        refused = await _refused(self._broker.release(request.route.name, asked.tokens))
        return codec.encode(forms.ReleasedForm(len(asked.tokens) - len(refused), _told(refused)))

    async def _extend(self, request: Request) -> bytes:
        asked = _extend(self._settling(request))
        refused = await _refused(
            self._broker.extend(request.route.name, asked.tokens, asked.timeout_ms)
        )
        return codec.encode(forms.ExtendedForm(len(asked.tokens) - len(refused), _told(refused)))

    def _settling(self, request: Request) -> bytes:
        self._context.access.check(request.caller, "consume", request.route.name)
        return request.body


async def _refused(settling: Awaitable[None]) -> Sequence[str]:
    """Tokens that hold no lease: over HTTP they are part of the answer, not an error."""
    try:
        await settling
    except LeaseLost as error:
        return error.tokens
    return ()


def _told(tokens: Sequence[str]) -> list[forms.RefusedForm]:
    return codec.refusals(tokens) if tokens else []


def check_intake(context: Context) -> None:
    """Refuse new work once the server is told to stop.

    Raises:
        Draining: it is.
    """
    if context.draining:
        raise Draining(
            "the server is stopping and takes no more messages",
            "try again in a few seconds, or on another server; leases can still be settled",
        )


def check_memory(context: Context) -> None:
    """Refuse to make large answers while those that were made are not taken.

    Raises:
        Overloaded: requests and answers in RAM are at their limit.
    """
    if context.pending_bytes > context.config.http.pending_bytes_max:
        raise Overloaded(
            "requests that are being answered take all the memory set aside for them",
            "try again after the time in Retry-After; http.pending_bytes_max is the limit",
        )
