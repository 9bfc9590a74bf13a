"""Writing tables of a lake: files nobody sees, then the manifest that shows all of them at once.

A run that is killed leaves files without a manifest, which the next one deletes; the name of a
directory says which run wrote it. Only one run writes at a time (`Lake.only_one`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ebbmq.feed import layout, manifests, runs
from ebbmq.feed.manifests import Manifest
from ebbmq_spark.lake import visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ebbmq.feed.manifests import Part
    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.lake import Lake

#: Runs of which plans, rates, rejected rows and records are kept.
RUNS_KEPT: Final = 100
#: Of tables that every run writes as a whole, so many: one may be read while the next is written.
WHOLE_KEPT: Final = 3


class Output:
    """What one run writes to a lake."""

    def __init__(self, lake: Lake, run: str, at_ms: int, writer: str = layout.PIPELINE) -> None:
        self.lake = lake
        self.run = run
        self.at_ms = at_ms
        self._writer = writer

    def write(self, table: Table, frame: DataFrame) -> tuple[Part, ...]:
        """Write rows of a table where nobody sees them."""
        return self.lake.write(frame, layout.run_directory(table.name, self.run))

    def set_aside(self, table: Table, frame: DataFrame) -> None:
        """Keep rows that are none of a table beside it."""
        self.lake.write(frame, f"{table.name}/{layout.REJECTED}/run={self.run}")

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


def sweep(lake: Lake, table: Table, keep: int, writer: str = layout.PIPELINE) -> int:
    """Delete what killed runs left of a table, and all but its last runs; returns how many."""
    found = visible(lake, table)
    own = [each for each in found.manifests if each.node == writer]
    # The manifest goes first: whoever sees it finds its files.
    lake.delete(
        [
            layout.manifest_file(table.name, old.written_at_ms, old.node, old.boot, old.number)
            for old in own[:-keep]
        ]
    )
    others = [each for each in found.manifests if each.node != writer]
    named = {_directory(part.path) for each in (*own[-keep:], *others) for part in each.parts}
    # Names of runs are instants, others begin with who writes them; and a manifest that cannot be
    # read may name any of them.
    pattern = "run=[0-9]*" if writer == layout.PIPELINE else f"run={writer}-*"
    places = [] if found.refused else lake.directories(table.name)
    left = [
        place
        for place in places
        if fnmatchcase(place.rpartition("/")[2], pattern) and place not in named
    ]
    for place in left:
        lake.remove(place)
    return len(left)


def sweep_records(lake: Lake) -> None:
    """Delete all but the last records, and rejected rows of runs that have none."""
    records = [name for name in lake.list(runs.RUNS) if name.endswith(".json")]
    lake.delete(records[:-RUNS_KEPT])
    kept = {name.rpartition("/")[2].removesuffix(".json") for name in records[-RUNS_KEPT:]}
    for table in (layout.EVENTS,):
        for place in lake.directories(f"{table}/{layout.REJECTED}"):
            if place.rpartition("/")[2].removeprefix("run=") not in kept:
                lake.remove(place)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
