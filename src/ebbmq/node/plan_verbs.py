"""The verbs about the pipeline's plans that the broker has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.feed.advice import Applied, Plans
    from ebbmq.node.engine import Engine


class PlanVerbs:
    """Advice that is applied survives a power cut when a call returns."""

    engine: Engine

    def plans(self) -> Plans:
        """The runs whose plans and rates were applied, and what became of their rows."""
        return self.engine.adviser.told()

    def plan_outcomes(self) -> dict[tuple[str, str], int]:
        """Rows looked at since the broker was opened, by table and by what became of them."""
        return dict(self.engine.adviser.outcomes)

    def apply_plans(
        self, run: str | None = None, *, progress: Callable[[Applied], None] | None = None
    ) -> list[Applied]:
        """Apply plans and rates from the lake of the configuration.

        Every action is checked against the present first; those that are outdated are refused and
        counted. Twice is as once. What is to be moved is moved in the background.

        Args:
            run: which; None takes all that are new.
            progress: told of the run at hand, after some rows each.

        Raises:
            InvalidSpec: no lake is configured.
            UnknownRun: there is no such run in the lake.
        """
        if run is None:
            return self.engine.adviser.look(progress)
        return self.engine.adviser.apply_run(run, progress)
