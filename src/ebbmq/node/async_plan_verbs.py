"""The verbs about the pipeline's plans that the awaitable broker has."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.feed.advice import Applied, Plans
    from ebbmq.node.broker import Broker


class AsyncPlanVerbs:
    """PlanVerbs, awaited: a plan is nothing for the loop's thread."""

    _broker: Broker

    async def plans(self) -> Plans:
        """See Broker.plans."""
        return await asyncio.to_thread(self._broker.plans)

    async def plan_outcomes(self) -> dict[tuple[str, str], int]:
        """See Broker.plan_outcomes."""
        return self._broker.plan_outcomes()

    async def apply_plans(
        self, run: str | None = None, *, progress: Callable[[Applied], None] | None = None
    ) -> list[Applied]:
        """See Broker.apply_plans; `progress` is called in another thread."""
        return await asyncio.to_thread(partial(self._broker.apply_plans, run, progress=progress))
