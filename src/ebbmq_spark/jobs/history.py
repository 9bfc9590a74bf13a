"""Runs that were: their records in the lake."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ebbmq.feed import runs
from ebbmq.feed.manifests import UnknownFeed
from ebbmq_spark.lake import opened

if TYPE_CHECKING:
    from ebbmq.feed.runs import Record
    from ebbmq_spark.lake import Where


class History(NamedTuple):
    """The records of runs that were carried through, the last one last."""

    records: list[Record]
    refused: list[UnknownFeed]

    def last(self, kind: runs.Kind) -> Record | None:
        """The last run of a kind."""
        return next((each for each in reversed(self.records) if each.kind == kind), None)

    def last_counted(self) -> Record | None:
        """The last run that leaves rates to go on from, its own or those of one before it."""
        counted = [each for each in self.records if each.kind == "run" and each.counted is not None]
        return counted[-1] if counted else None

    def needed(self) -> set[str]:
        """Runs whose tables the next run goes on from."""
        last = (self.last("run"), self.last_counted())
        return {each.counted for each in last if each is not None and each.counted is not None}


def read(where: Where) -> History:
    """The history of a lake; a record that cannot be read is named, the others are there.

    Raises:
        UnknownFeed: there is no such lake.
    """
    lake = opened(where)
    lake.require()
    found = History([], [])
    names = [name for name in lake.list(runs.RUNS) if name.endswith(".json")]
    for name, stored in zip(names, lake.read_many(names), strict=True):
        try:
            if stored is not None:  # else it went meanwhile
                found.records.append(runs.decode(stored, name.rpartition("/")[2]))
        except UnknownFeed as error:
            found.refused.append(error)
    return found


def run_name(at_ms: int) -> str:
    """The name of a run that begins at an instant; names sort by it."""
    at = datetime.fromtimestamp(at_ms / 1_000, tz=UTC)
    return f"{at:%Y%m%dT%H%M%S}{at_ms % 1_000:03d}Z"
