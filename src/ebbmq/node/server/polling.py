"""Leasing over HTTP: wait for messages, and give back what could not be told to who asked.

A caller may go away while it waits, or before it read the answer. Its leases would then be held by
nobody until they expire; so they are released, which keeps their place and counts no failure.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import EbbError
from ebbmq.node.server.messages import check_intake, check_memory
from ebbmq.wire.http import codec, forms, leased, routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.node.leasing import Consumer
    from ebbmq.node.outflow import Delivery
    from ebbmq.node.server.answers import Peer, Receive
    from ebbmq.node.server.context import Context
    from ebbmq.node.server.messages import Request

_lease: Final = codec.decoder(forms.LeaseRequest)
_read: Final = codec.decoder(forms.ReadForm)
_NO_LEASES: Final = b'{"leases":[]}'


class Polling:
    """Answers lease calls."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker

    async def lease(self, request: Request, receive: Receive, peer: Peer) -> None:
        """Lease, waiting if asked to, and answer; whatever ends it early gives the leases back."""
        context, queue = self._context, request.route.name
        context.access.check(request.caller, "consume", queue)
        check_intake(context)
        check_memory(context)
        asked = _lease(request.body)
        leases = await self._lease(
            queue, asked, 0, self._context.access.consumer(request.caller, queue)
        )
        has_waited = not leases and asked.wait_ms > 0
        if has_waited:
            leases = await self._poll(
                queue, asked, receive, self._context.access.consumer(request.caller, queue)
            )
        if not leases:
            await peer.answer(_NO_LEASES)
            return
        taken = False
        try:
            if has_waited:
                # The caller's token may have been removed meanwhile.
                context.access.check(request.caller, "consume", queue)
            await peer.answer(tokens_of(leases) if asked.tokens_only else answer_of(leases))
            taken = await peer.has_taken_all()
        finally:
            if not taken and asked.name is None:
                await self._give_back(queue, leases)

    async def read_lease(self, request: Request) -> bytes:
        """Leases of a name again, as many as fit into an answer."""
        queue, name = request.route.name, request.route.lease_name
        self._context.access.check(request.caller, "consume", queue)
        check_memory(self._context)
        found = routes.parameters(request.query, ("from", "to"))
        first, last = routes.whole(found, "from", 0) or 0, routes.whole(found, "to")
        most, consumer = (
            limits.ANSWER_BYTES_MAX,
            self._context.access.consumer(request.caller, queue),
        )
        return answer_of(
            *await self._broker.take_named(queue, name, first, last, most, consumer=consumer)
        )

    async def read(self, request: Request) -> bytes:
        """Leases by their tokens, as many as fit into an answer."""
        queue = request.route.name
        self._context.access.check(request.caller, "consume", queue)
        check_memory(self._context)
        tokens = _read(request.body).tokens
        return answer_of(*await self._broker.take_held(queue, tokens, limits.ANSWER_BYTES_MAX))

    async def _lease(
        self, queue: str, asked: forms.LeaseRequest, wait_ms: int, consumer: Consumer
    ) -> list[Delivery]:
        return await self._broker.take(
            queue,
            asked.count,
            wait_ms,
            asked.lease_timeout_ms,
            asked.name,
            None if asked.tokens_only else limits.ANSWER_BYTES_MAX,
            consumer=consumer,
            bodies=not asked.tokens_only,
        )

    async def _poll(
        self, queue: str, asked: forms.LeaseRequest, receive: Receive, consumer: Consumer
    ) -> list[Delivery]:
        """Wait for messages as long as the caller is there and the server is not stopping."""
        lease = asyncio.ensure_future(self._lease(queue, asked, asked.wait_ms, consumer))
        gone = asyncio.ensure_future(_gone(receive))
        self._context.ending.add(lease)
        try:
            await asyncio.wait((lease, gone), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if lease.done() and not lease.cancelled() and lease.exception() is None:
                await self._give_back(queue, lease.result())
            raise
        finally:
            self._context.ending.discard(lease)
            gone.cancel()
            lease.cancel()
        if not lease.done():
            await asyncio.wait([lease])
        return [] if lease.cancelled() else lease.result()

    async def _give_back(self, queue: str, leases: Sequence[Delivery]) -> None:
        with suppress(EbbError):
            await self._broker.release(queue, [t for each in leases for t in each.tokens()])


def tokens_of(leases: Sequence[Delivery]) -> bytes:
    """The answer to who wants tokens alone."""
    return codec.encode(forms.LeasesForm([], [t for each in leases for t in each.tokens()]))


def answer_of(leases: Sequence[Delivery], following: int | None = None) -> bytes:
    """The answer: where leases are much alike, without an object for each."""
    parts: list[bytes] = []
    for each in leases:
        alike = each.alike()
        if alike is None:
            parts.append(leased.encode_all(map(codec.lease_form, each.leases())))
        else:
            parts.append(leased.encode_alike(*alike, each.grants.seqs, each.payloads))
    return leased.answer(parts, following)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
