"""The verbs about the pipeline's plans that the broker has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.errors import InvalidSpec
from ebbmq.feed.plans import PlanRow
from ebbmq.node.advising.rows import COLUMNS
from ebbmq.plain import is_text, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def apply_plan_rows(self, run: str, rows: Sequence[PlanRow]) -> Applied:
        """Apply rows of a plan that the caller read; for brokers without a lake.

        After the last rows, none are handed over: that says that the plan was gone through. Until
        then it is one of which a part is missing, and new to whoever looks for such.

        Args:
            run: whose plan it is.
            rows: at most limits.PLAN_ROWS_MAX; those about other nodes are left out.

        Raises:
            InvalidSpec: there are too many rows, something else is among them, or the run has no
                name.
        """
        run = plain(run)
        if not is_text(run) or not 1 <= len(run) <= limits.NAME_CHARS_MAX:
            raise InvalidSpec(
                f"run is {run!a:.80}", f"use a string of 1 to {limits.NAME_CHARS_MAX} characters"
            )
        if len(rows) > limits.PLAN_ROWS_MAX:
            raise InvalidSpec(
                f"{len(rows)} rows of a plan at once",
                f"hand over at most {limits.PLAN_ROWS_MAX} in a call",
            )
        for row in rows:
            if not isinstance(row, PlanRow):
                raise InvalidSpec(
                    f"a row of a plan is {type(row).__name__}", "hand over rows as PlanRow(..)"
                )
        columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
        return self.engine.adviser.apply_rows(run, columns)
