"""What brokers made of a plan, as far as the lake tells it: for a report.

That a message is held to a plan, and each copy that is made for that, are events with the name of
the run in their reason, so that counts by the hour have them. Rows that are refused leave no event:
a broker writes down what became of the last runs with each snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ebbmq.feed.advice import of_plan
from ebbmq.feed.runs import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ebbmq.feed.advice import Applied
    from ebbmq.feed.runs import Record
    from ebbmq_spark.jobs.fleet import Fleet

_PINNED: Final = "pinned"
_UNPINNED: Final = "unpinned"
_COPIED: Final = "copied"


class Changed(NamedTuple):
    """What became of a plan."""

    run: str
    made_at_ms: int
    #: By action: what was asked for, messages that brokers held to it, copies they made for that.
    asked: Mapping[str, Action]
    applied: Mapping[str, int]
    copied: Mapping[str, Action]
    #: Rows that brokers refused, by reason.
    refused: Mapping[str, int]
    #: Messages that are held to it no more, by reason.
    ended: Mapping[str, int]
    #: Nodes that say what became of it.
    nodes: Sequence[str]

    @property
    def open(self) -> int:
        """Actions of which no broker has told yet."""
        asked = sum(each.count for each in self.asked.values())
        return max(0, asked - sum(self.applied.values()) - sum(self.refused.values()))


def last_plan(records: Sequence[Record]) -> Record | None:
    """The last run whose plan asked for something."""
    return next((each for each in reversed(records) if each.actions), None)


def changed(
    record: Record | None, fleet: Fleet, hours: Iterable[Mapping[str, Any]]
) -> Changed | None:
    """What became of the plan of a run.

    Args:
        record: the run; None: there is none.
        fleet: the last snapshots.
        hours: event, reason, count and bytes of the table PROFILES.
    """
    if record is None:
        return None
    applied: dict[str, int] = {}
    copied: dict[str, Action] = {}
    ended: dict[str, int] = {}
    for row in hours:
        why = of_plan(record.run, row["reason"])
        if why is None:
            continue
        what, count = why.partition(",")[0], row["count"]
        if row["event"] == _PINNED:
            applied[what] = applied.get(what, 0) + count
        elif row["event"] == _UNPINNED:
            ended[why] = ended.get(why, 0) + count
        elif row["event"] == _COPIED:
            known = copied.get(what, Action(0, 0))
            copied[what] = Action(known.count + count, known.bytes + row["bytes"])
    told = _told(record.run, fleet)
    return Changed(
        record.run, record.started_at_ms, record.actions, applied, copied,
        _refused(told.values()), ended, sorted(told),
    )  # fmt: skip


def _told(run: str, fleet: Fleet) -> dict[str, Applied]:
    """By node: what it says of a run."""
    return {
        each.node: one
        for each in fleet.snapshots
        for one in each.settings.advice
        if one.run == run and one.table == "plans"
    }


def _refused(told: Iterable[Applied]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in told:
        for reason, count in each.refused.items():
            found[reason] = found.get(reason, 0) + count
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))
