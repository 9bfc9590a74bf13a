"""Writing tables of a lake: files nobody sees, then the manifest that shows all of them at once.

A run that is killed leaves files without a manifest, which the next one deletes; the name of a
directory says which run wrote it. Only one run writes at a time (`Lake.only_one`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ebbmq.feed import layout, manifests, runs
from ebbmq.feed.manifests import Manifest
from ebbmq_spark import soundness
from ebbmq_spark.jobs import history
from ebbmq_spark.lake import visible

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

    from ebbmq.feed.manifests import Part
    from ebbmq.feed.runs import Kind, Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.jobs.history import History
    from ebbmq_spark.lake import Lake

#: Runs of which plans, rates and rejected rows are kept, and of each kind records.
RUNS_KEPT: Final = 100
#: Of tables that every run writes as a whole, so many: one may be read while the next is written.
WHOLE_KEPT: Final = 3
#: How the places of runs are named: by instants.
_OF_RUNS: Final = "run=[0-9]*"


class Output:
    """What one run writes to a lake."""

    def __init__(self, lake: Lake, run: str, at_ms: int, writer: str = layout.PIPELINE) -> None:
        self.lake = lake
        self.run = run
        self.at_ms = at_ms
        self._writer = writer

    def begin(self, record: Record) -> None:
        """Say that the run was begun."""
        self.lake.create(runs.begun_file(self.run), runs.encode(record))

    def write(self, table: Table, frame: DataFrame) -> tuple[Part, ...]:
        """Write rows of a table where nobody sees them."""
        return self.lake.write(frame, layout.run_directory(table.name, self.run))

    def set_aside(self, table: Table, frame: DataFrame) -> None:
        """Keep rows that are none of a table beside it."""
        self.lake.write(frame, aside(table, self.run))

    def publish(
        self, table: Table, parts: tuple[Part, ...], number: int = 1, boot: int = 0
    ) -> None:
        """Make what was written visible, as a whole."""
        manifest = Manifest(
            table=table.name,
            version=table.version,
            node=self._writer,
            boot=boot,
            number=number,
            written_at_ms=self.at_ms,
            parts=parts,
        )
        path = layout.manifest_file(table.name, self.at_ms, self._writer, boot, number)
        self.lake.create(path, manifests.encode(manifest))

    def end(self, record: Record) -> None:
        """Say that the run was carried through; only now does it count."""
        self.lake.create(runs.record_file(self.run), runs.encode(record))
        self.lake.delete([runs.begun_file(self.run)])


def aside(table: Table, run: str) -> str:
    """Where rows are that a run found to be none of a table."""
    return f"{table.name}/{layout.REJECTED}/run={run}"


def sweep(
    lake: Lake,
    table: Table,
    keep: int,
    writer: str = layout.PIPELINE,
    needed: Collection[str] = (),
) -> int:
    """Delete what killed runs left of a table, and all but its last runs; returns how many.

    Args:
        lake: where.
        table: which.
        keep: how many of the last runs stay.
        writer: whose runs.
        needed: runs that stay however old they are.
    """
    found = visible(lake, table)
    own = [each for each in found.manifests if each.node == writer]
    old = [each for each in own[:-keep] if history.run_name(each.written_at_ms) not in needed]
    # The manifest goes first: whoever sees it finds its files.
    lake.delete([soundness.name_of(each) for each in old])
    named = {
        _directory(part.path) for each in found.manifests if each not in old for part in each.parts
    }
    # Names of runs are instants, others begin with who writes them; and a manifest that cannot be
    # read may name any of them, but what one that could be read named.
    pattern = _OF_RUNS if writer == layout.PIPELINE else f"run={writer}-*"
    places = {_directory(part.path) for each in old for part in each.parts}
    if not found.refused:
        places |= {*lake.directories(table.name)}
    left = [
        place
        for place in sorted(places)
        if fnmatchcase(place.rpartition("/")[2], pattern) and place not in named
    ]
    for place in left:
        lake.remove(place)
    return len(left)


def sweep_records(lake: Lake, known: History) -> None:
    """Delete all but the last records of each kind, and rejected rows of runs that have none.

    Args:
        lake: where.
        known: its records; one that cannot be read stays where it is.
    """
    for kind in {each.kind for each in known.records}:
        sweep_kind(lake, known, kind)
    begun = [name for name in lake.list(runs.RUNS) if name.endswith(runs.BEGUN)]
    lake.delete(begun[:-RUNS_KEPT])
    kept = {name.rpartition("/")[2].removesuffix(".json") for name in lake.list(runs.RUNS)}
    for place in lake.directories(f"{layout.EVENTS}/{layout.REJECTED}"):
        name = place.rpartition("/")[2]
        if fnmatchcase(name, _OF_RUNS) and name.removeprefix("run=") not in kept:
            lake.remove(place)


def sweep_kind(lake: Lake, known: History, kind: Kind) -> None:
    """Delete all but the last records of a kind.

    By kind, for each goes on from the last of its own, however many others there were since.
    """
    own = [each.run for each in known.records if each.kind == kind]
    lake.delete([runs.record_file(run) for run in own[:-RUNS_KEPT]])


def sweep_aside(lake: Lake, writer: str) -> None:
    """Delete rejected rows of who does not run, but for the last it set aside."""
    places = [
        place
        for place in lake.directories(f"{layout.EVENTS}/{layout.REJECTED}")
        if place.rpartition("/")[2].startswith(f"run={writer}-")
    ]
    for place in places[:-RUNS_KEPT]:
        lake.remove(place)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
