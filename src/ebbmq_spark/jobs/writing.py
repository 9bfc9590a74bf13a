"""Writing tables of a lake: files nobody sees, then the manifest that shows all of them at once.

A run that is killed leaves files without a manifest, which the next one deletes; the name of a
directory says which run wrote it. Only one run writes at a time (`history.only_one`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types

from ebbmq.feed import layout, manifests, runs
from ebbmq.feed.manifests import Manifest, Part
from ebbmq_spark.lake import visible

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
#: Runs of which plans, rates, rejected rows and records are kept.
RUNS_KEPT: Final = 100
#: Of tables that every run writes as a whole, so many: one may be read while the next is written.
WHOLE_KEPT: Final = 3


class Output:
    """What one run writes to a lake."""

    def __init__(self, root: Path, run: str, at_ms: int, writer: str = layout.PIPELINE) -> None:
        self.root = root
        self.run = run
        self.at_ms = at_ms
        self._writer = writer

    def write(self, table: Table, frame: DataFrame) -> tuple[Part, ...]:
        """Write rows of a table where nobody sees them."""
        place = self.root / layout.run_directory(table.name, self.run)
        frame.write.mode("overwrite").parquet(str(place.resolve()))
        return self._parts(place)

    def set_aside(self, table: Table, frame: DataFrame) -> None:
        """Keep rows that are none of a table beside it."""
        place = self.root / table.name / layout.REJECTED / f"run={self.run}"
        frame.write.mode("overwrite").parquet(str(place.resolve()))
        self._parts(place)

    def _parts(self, place: Path) -> tuple[Part, ...]:
        found = []
        for path in sorted(place.glob("*.parquet")):
            rows = pq.read_metadata(path).num_rows
            found.append(Part(str(path.relative_to(self.root)), rows, path.stat().st_size))
        for other in (*place.glob(".*.crc"), *place.glob("_SUCCESS")):
            other.unlink()
        return tuple(found)

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
        appear(self.root / path, manifests.encode(manifest))

    def end(self, record: Record) -> None:
        """Say that the run was carried through; only now does it count."""
        appear(self.root / runs.record_file(self.run), runs.encode(record))


def appear(place: Path, data: bytes) -> None:
    """Write a file that did not exist so that nobody ever sees a part of it."""
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        beside.write_bytes(data)
        try:
            os.link(beside, place)
        except OSError as error:
            if error.errno not in _NO_LINKS or place.exists():
                raise
            beside.rename(place)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def replace(place: Path, data: bytes) -> None:
    """Write a file in place of another, so that there is always one of the two."""
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    place.parent.mkdir(parents=True, exist_ok=True)
    beside.write_bytes(data)
    beside.rename(place)


def sweep(root: Path, table: Table, keep: int, writer: str = layout.PIPELINE) -> int:
    """Delete what killed runs left of a table, and all but its last runs; returns how many."""
    found = visible(root, table)
    own = [each for each in found.manifests if each.node == writer]
    for old in own[:-keep]:
        # The manifest goes first: whoever sees it finds its files.
        name = layout.manifest_file(table.name, old.written_at_ms, old.node, old.boot, old.number)
        (root / name).unlink(missing_ok=True)
    others = [each for each in found.manifests if each.node != writer]
    named = {_directory(part.path) for each in (*own[-keep:], *others) for part in each.parts}
    # Names of runs are instants, others begin with who writes them; and a manifest that cannot be
    # read may name any of them.
    pattern = "run=[0-9]*" if writer == layout.PIPELINE else f"run={writer}-*"
    places = [] if found.refused else sorted((root / table.name).glob(pattern))
    left = [place for place in places if str(place.relative_to(root)) not in named]
    for place in left:
        shutil.rmtree(place, ignore_errors=True)
    return len(left)


def sweep_records(root: Path) -> None:
    """Delete all but the last records, and rejected rows of runs that have none."""
    places = sorted((root / runs.RUNS).glob("*.json"))
    for old in places[:-RUNS_KEPT]:
        old.unlink(missing_ok=True)
    kept = {place.stem for place in places[-RUNS_KEPT:]}
    for table in (layout.EVENTS,):
        for place in (root / table / layout.REJECTED).glob("run=*"):
            if place.name.removeprefix("run=") not in kept:
                shutil.rmtree(place, ignore_errors=True)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
