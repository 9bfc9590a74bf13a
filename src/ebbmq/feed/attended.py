"""What a server and the run of the pipeline that it starts as its child tell each other.

Each is one line of JSON: the errand on the child's standard input, for it may hold secrets, and
what came of it on its standard output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ebbmq.feed.runs import Record


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a run, beside what its command line says."""

    #: Of the lake's store, and of Spark.
    lake_options: dict[str, str] = {}
    conf: dict[str, str] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says of itself when it ends."""

    #: None if another was at work on the lake, and the run was left to it.
    run: str | None = None
    #: Actions of its plan, in all and by kind.
    actions: int = 0
    plan: dict[str, int] = {}
    looked_at: int = 0
    messages: int = 0
    events: int = 0

    @classmethod
    def of(cls, record: Record) -> Outcome:
        """What there is to say of a run."""
        plan = {action: each.count for action, each in sorted(record.actions.items())}
        return cls(
            run=record.run,
            actions=sum(plan.values()),
            plan=plan,
            looked_at=record.looked_at,
            messages=record.messages,
            events=record.events,
        )
