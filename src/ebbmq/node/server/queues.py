"""The endpoints of queues: declare, look, pause, purge, redrive, what left them and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from litestar import delete, get, patch, post, put

from ebbmq.errors import Draining, UnknownQueue
from ebbmq.model import QueueSpec
from ebbmq.node.moving import SOURCE
from ebbmq.node.server.asking import (
    Answer,
    Asking,
    NoFields,
    Turns,
    answer,
    body_of,
    caller_of,
    name_of,
    query_of,
)
from ebbmq.wire.http import managing

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.handlers import HTTPRouteHandler

    from ebbmq.model import Peeked
    from ebbmq.node.server.access import Caller
    from ebbmq.node.server.context import Context

_QUEUE: Final = "/v1/queues/{queue:str}"
#: After so many queues others get their turn: a listing must not hold up messages.
_LISTED_AT_ONCE: Final = 32


async def views(context: Context, caller: Caller) -> list[dict[str, Any]]:
    """Every queue the caller may see, with its specification and stats, by name."""
    found: list[dict[str, Any]] = []
    for number, spec in enumerate(sorted(await context.broker.queues(), key=lambda s: s.name)):
        if number % _LISTED_AT_ONCE == _LISTED_AT_ONCE - 1:
            await asyncio.sleep(0)
        if context.access.may_see(caller, spec.name):
            try:
                found.append({"spec": spec, "stats": await context.broker.stats(spec.name)})
            except UnknownQueue:
                continue  # deleted since
    return found


class Queues:
    """Endpoints below /v1/queues."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker
        self._scans = Turns("searches of the removals log", 2)
        self._redrives = Turns("redrives", 2)

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [
            get("/v1/queues")(self.list_all),
            put(_QUEUE)(self.declare),
            patch(_QUEUE)(self.declare),
            get(_QUEUE)(self.show),
            delete(_QUEUE, status_code=204)(self.delete),
            post(f"{_QUEUE}/pause", status_code=200)(self.pause),
            post(f"{_QUEUE}/resume", status_code=200)(self.resume),
            post(f"{_QUEUE}/purge", status_code=200)(self.purge),
            post(f"{_QUEUE}/redrive", status_code=200)(self.redrive),
            put(f"{_QUEUE}/decay-factor")(self.set_decay_factor),
            get(f"{_QUEUE}/removals")(self.removals),
        ]

    async def list_all(self, request: Asking) -> Answer:
        """All queues the caller may see."""
        query_of(request, NoFields)
        caller = caller_of(self._context, request)
        return answer({"queues": await views(self._context, caller)})

    async def declare(self, request: Asking) -> Answer:
        """Make a queue; one that is there must have the fields named, or takes them (PATCH)."""
        caller, queue = self._managed(request)
        query_of(request, NoFields)
        form = await body_of(request, managing.QueueForm)
        spec, fields = managing.spec_of(QueueSpec, queue, form)
        known = {spec.name: spec for spec in await self._broker.queues()}
        self._check_dead_queue(caller, spec, known)
        change = request.method == "PATCH"
        await self._broker.declare(spec, change=change, fields=fields)
        return answer(await self._view(spec.name), 200 if queue in known else 201)

    async def show(self, request: Asking) -> Answer:
        """One queue with its stats."""
        query_of(request, NoFields)
        caller = caller_of(self._context, request)
        queue = name_of(request, "queue")
        if not self._context.access.may_see(caller, queue):
            raise UnknownQueue(f"no queue {queue!r:.80}", "declare it first, or use another token")
        return answer(await self._view(queue))

    async def delete(self, request: Asking) -> None:
        """Remove a queue and all in it."""
        query_of(request, NoFields)
        _, queue = self._managed(request)
        await self._broker.delete(queue)

    async def pause(self, request: Asking) -> Answer:
        """Grant no more leases."""
        _, queue = await self._without_body(request)
        await self._broker.pause(queue)
        return answer(managing.PausedForm(paused=True))

    async def resume(self, request: Asking) -> Answer:
        """Grant leases again."""
        _, queue = await self._without_body(request)
        await self._broker.resume(queue)
        return answer(managing.PausedForm(paused=False))

    async def purge(self, request: Asking) -> Answer:
        """Remove every message that is not leased."""
        _, queue = await self._without_body(request)
        return answer(managing.PurgedForm(await self._broker.purge(queue)))

    async def redrive(self, request: Asking) -> Answer:
        """Move messages of a dead queue back to work; ends when the caller goes away."""
        caller, queue = self._managed(request)
        query_of(request, NoFields)
        form = await body_of(request, managing.RedriveForm)
        if form.to is not None:
            self._context.access.check(caller, "publish", form.to)
        where = await self._chosen(caller, form)
        with self._redrives:
            moving = asyncio.ensure_future(
                self._broker.redrive(queue, to=form.to, rate=form.rate, where=where)
            )
            self._context.ending.add(moving)
            try:
                return answer(managing.RedrivenForm(await _while_there(request, moving)))
            except asyncio.CancelledError:
                if not self._context.draining:
                    raise
                raise Draining(
                    f"the server is stopping, so not all of queue {queue!r} was moved",
                    "redrive again when it is back: what was moved is moved",
                ) from None
            finally:
                self._context.ending.discard(moving)

    async def set_decay_factor(self, request: Asking) -> Answer:
        """Multiply the rates of what is published until an instant."""
        _, queue = self._managed(request)
        query_of(request, NoFields)
        form = await body_of(request, managing.DecayFactorForm)
        await self._broker.set_decay_factor(queue, form.factor, form.until_ms, form.run)
        stats = await self._broker.stats(queue)
        return answer(managing.DecayFactorView(stats["decay_factor"]))

    async def removals(self, request: Asking) -> Answer:
        """What left the queue other than by ack, page by page."""
        caller = caller_of(self._context, request)
        queue = name_of(request, "queue")
        self._context.access.check(caller, "consume", queue)
        asked = query_of(request, managing.RemovalsQuery)
        with self._scans:
            found = await self._broker.removals(
                queue,
                reason=asked.reason,
                since_ms=asked.since_ms,
                after=asked.after,
                count=asked.count + 1,
            )
        more = len(found) > asked.count
        return answer(managing.RemovalsForm(found[: asked.count], more))

    def _managed(self, request: Asking) -> tuple[Caller, str]:
        caller, queue = caller_of(self._context, request), name_of(request, "queue")
        self._context.access.check(caller, "manage", queue)
        return caller, queue

    async def _without_body(self, request: Asking) -> tuple[Caller, str]:
        managed = self._managed(request)
        query_of(request, NoFields)
        await body_of(request, NoFields)
        return managed

    async def _view(self, queue: str) -> dict[str, Any]:
        stats = await self._broker.stats(queue)
        spec = next((spec for spec in await self._broker.queues() if spec.name == queue), None)
        if spec is None:
            raise UnknownQueue(f"queue {queue!r:.80} was deleted meanwhile", "declare it again")
        return {"spec": spec, "stats": stats}

    def _check_dead_queue(
        self, caller: Caller, spec: QueueSpec, known: dict[str, QueueSpec]
    ) -> None:
        """A dead queue is published to, and made where there is none: that takes its own scope."""
        before = known.get(spec.name)
        if spec.dead_queue is None or (before and before.dead_queue == spec.dead_queue):
            return
        self._context.access.check(
            caller, "publish" if spec.dead_queue in known else "manage", spec.dead_queue
        )

    async def _chosen(
        self, caller: Caller, form: managing.RedriveForm
    ) -> Callable[[Peeked], bool] | None:
        """Which messages may go: those asked for, to queues that the caller may publish to.

        A message says itself where it came from, and any publisher can write that.
        """
        ids = None if form.ids is None else frozenset(form.ids)
        targets: frozenset[str] | None = None
        access = self._context.access
        if form.to is None and not access.holds(caller, "publish", None):
            targets = frozenset(
                spec.name
                for spec in await self._broker.queues()
                if access.holds(caller, "publish", spec.name)
            )
        if ids is None and targets is None:
            return None
        return lambda seen: (
            (ids is None or seen.id in ids)
            and (targets is None or seen.headers.get(SOURCE) in targets)
        )


async def _while_there(request: Asking, work: asyncio.Future[int]) -> int:
    """Await work, or cancel it when the caller goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.ensure_future(gone())
    both: list[asyncio.Future[Any]] = [work, watching]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        return await work
    finally:
        watching.cancel()
