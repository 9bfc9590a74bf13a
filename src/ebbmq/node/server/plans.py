"""The endpoints of plans: what was made of the pipeline's advice, and have some applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar import get, post

from ebbmq.node.server.asking import (
    Answer,
    Asking,
    NoFields,
    Turns,
    answer,
    body_of,
    caller_of,
    query_of,
)
from ebbmq.wire.http.plans import AppliedPlansForm, ApplyPlansForm

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.context import Context


class Plans:
    """Endpoints of /v1/plans; they take the scope manage for everything."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._applications = Turns("applications of plans", 2)

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [
            get("/v1/plans")(self.show),
            post("/v1/plans", status_code=200)(self.apply),
        ]

    async def show(self, request: Asking) -> Answer:
        """The runs that were applied, the one at hand, and what is wrong."""
        self._check(request)
        return answer(await self._context.broker.plans())

    async def apply(self, request: Asking) -> Answer:
        """Apply what the lake has."""
        self._check(request)
        form = await body_of(request, ApplyPlansForm)
        with self._applications:
            return answer(AppliedPlansForm(await self._context.broker.apply_plans(form.run)))

    def _check(self, request: Asking) -> None:
        self._context.access.check(caller_of(self._context, request), "manage", None)
        query_of(request, NoFields)
