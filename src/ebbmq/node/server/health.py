"""Whether the process answers, and whether it should be sent work; if not, why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar import get

from ebbmq.errors import Unauthenticated
from ebbmq.node.server.asking import Answer, Asking, answer, caller_of
from ebbmq.wire.http import managing

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.context import Context

_UNAVAILABLE = 503


async def readiness(context: Context) -> managing.HealthForm:
    """What keeps the server from taking work, and what of its store is damaged."""
    store = await context.broker.health()
    problems = [managing.ProblemForm("store", detail) for detail in store["problems"]]
    if context.access.problem is not None:
        problems.append(managing.ProblemForm("users", context.access.problem))
    if context.draining:
        problems.append(managing.ProblemForm("draining", "the server was told to stop"))
    return managing.HealthForm(
        not problems,
        problems,
        store["damage"],
        store["devices"],
        store["feed"],
        context.pipeline.troubles() if context.pipeline is not None else [],
    )


class Health:
    """Endpoints below /health. They ask for no token, since what probes a server has none."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [get("/health/live")(self.live), get("/health/ready")(self.ready)]

    async def live(self, request: Asking) -> Answer:
        """The process answers; what it thinks of its store does not matter here."""
        return answer(managing.LiveForm(live=True))

    async def ready(self, request: Asking) -> Answer:
        """503 with the problems when no work should be sent here.

        Who has no token is told which kind of problem there is, not of which queue.
        """
        found = await readiness(self._context)
        try:
            caller = caller_of(self._context, request)
            tells = self._context.access.may_see(caller, None)
        except Unauthenticated:
            tells = False
        if not tells:
            found.damage = found.devices = found.feed = found.pipeline = []
            for problem in found.problems:
                problem.detail = "a token for the whole server is told more"
        return answer(found, 200 if found.ready else _UNAVAILABLE)
