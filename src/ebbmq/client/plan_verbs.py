"""The verbs about plans of the pipeline that both clients have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from ebbmq.client import plan_calls, scripts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.client.scripts import Script
    from ebbmq.feed.advice import Applied, Plans

T = TypeVar("T")


class PlanVerbs(ABC):
    """For threads."""

    @abstractmethod
    def _play(self, script: Script[T]) -> T:
        """Do what a script says."""

    def plans(self) -> Plans:
        """See Broker.plans."""
        return self._play(scripts.one(plan_calls.every()))

    def apply_plans(
        self, run: str | None = None, *, progress: Callable[[Applied], None] | None = None
    ) -> list[Applied]:
        """See Broker.apply_plans; the server tells no more than the end, `plans` more."""
        done = self._play(scripts.one(plan_calls.apply(run, scripts.LONG_WORK_MS)))
        if progress is not None:
            for each in done:
                progress(each)
        return done


class AsyncPlanVerbs(ABC):
    """Awaited."""

    @abstractmethod
    async def _play(self, script: Script[T]) -> T:
        """Do what a script says."""

    async def plans(self) -> Plans:
        """See Broker.plans."""
        return await self._play(scripts.one(plan_calls.every()))

    async def apply_plans(
        self, run: str | None = None, *, progress: Callable[[Applied], None] | None = None
    ) -> list[Applied]:
        """See Broker.apply_plans; the server tells no more than the end, `plans` more."""
        done = await self._play(scripts.one(plan_calls.apply(run, scripts.LONG_WORK_MS)))
        if progress is not None:
            for each in done:
                progress(each)
        return done
