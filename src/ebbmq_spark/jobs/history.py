"""Runs that were: their records in the lake."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.feed import runs
from ebbmq.feed.manifests import UnknownFeed
from ebbmq_spark.lake import opened

if TYPE_CHECKING:
    from ebbmq.feed.runs import Record
    from ebbmq_spark.lake import Where

#: Of so many runs that counted the tables stay, however old they are.
NEEDED: Final = 2


class History(NamedTuple):
    """The records of runs that were carried through, the last one last."""

    records: list[Record]
    #: By name, why one cannot be read.
    refused: dict[str, UnknownFeed]
    #: Runs that were begun and have no record, at work or killed.
    begun: list[Record]

    def last(self, kind: runs.Kind) -> Record | None:
        """The last run of a kind."""
        return next((each for each in reversed(self.records) if each.kind == kind), None)

    def needed(self) -> set[str]:
        """Runs whose tables the next run may go on from."""
        own = (each.counted for each in reversed(self.records) if each.kind == "run")
        counted = dict.fromkeys(run for run in own if run is not None)
        # If what the last one counted is damaged, the next run goes on from the one before it.
        return set(list(counted)[:NEEDED])


def read(where: Where) -> History:
    """The history of a lake; a record that cannot be read is named, the others are there.

    Raises:
        UnknownFeed: there is no such lake.
    """
    lake = opened(where)
    lake.require()
    found = History([], {}, [])
    names = [name for name in lake.list(runs.RUNS) if name.endswith((".json", runs.BEGUN))]
    for name, stored in zip(names, lake.read_many(names), strict=True):
        try:
            if stored is not None:  # else it went meanwhile
                record = runs.decode(stored, name.rpartition("/")[2])
                (found.begun if name.endswith(runs.BEGUN) else found.records).append(record)
        except UnknownFeed as error:
            found.refused[name] = error
    ended = {each.run for each in found.records}
    return found._replace(begun=[each for each in found.begun if each.run not in ended])


def run_name(at_ms: int) -> str:
    """The name of a run that begins at an instant; names sort by it."""
    at = datetime.fromtimestamp(at_ms / 1_000, tz=UTC)
    return f"{at:%Y%m%dT%H%M%S}{at_ms % 1_000:03d}Z"
